"""Open the store that a URL names, database or server; gRPC is imported only for a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsed.errors import ConfigError
from pulsed.store import open as databases
from pulsed.store.open import StoreSettings, require

if TYPE_CHECKING:
    from pulsed.store.base import Store

SCHEMES = ("pulse", "pulses")


def is_remote(url: str) -> bool:
    """Whether a URL names a pulsed server."""
    return url.partition(":")[0].lower() in SCHEMES


def open_store(url: str, settings: StoreSettings | None = None) -> Store:
    """Return the store a URL names; nothing is opened before its first use."""
    if not is_remote(url):
        return databases.open_store(url, settings)
    settings = settings or StoreSettings()
    if settings.clock is not None:
        raise ConfigError("A test's clock needs a database: a server follows its own database's.")
    require(url, "server", "grpc")
    from pulsed.rpc.client.connection import RemoteOptions  # noqa: PLC0415 - heavy
    from pulsed.rpc.client.store import RemoteStore  # noqa: PLC0415 - heavy

    return RemoteStore(
        url, RemoteOptions(retry=settings.retry, dequeue_retry=settings.dequeue_retry)
    )
