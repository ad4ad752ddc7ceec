"""Whether it is safe for a server to listen on an address."""

from __future__ import annotations

import logging

from pulsed.errors import ConfigError
from pulsed.listen_address import ListenAddress

log = logging.getLogger("pulsed.server")


def parsed(listen: str) -> ListenAddress:
    """Return the address that a server listens on."""
    return ListenAddress.parse(listen, "127.0.0.1:50051", needs_host=True)


def check_exposure(listen: str, *, tls: bool, credentials: bool, insecure: bool) -> None:
    """Refuse an address that other machines can reach, unless TLS and credentials protect it."""
    if parsed(listen).is_loopback or (tls and credentials):
        return
    missing = " and ".join(
        name for name, there in (("TLS", tls), ("credentials", credentials)) if not there
    )
    if not insecure:
        raise ConfigError(
            f"{listen} can be reached from other machines, and there is no {missing}: anyone "
            "who finds it could read, change and run your jobs. Give a certificate and tokens or a "
            "client CA (see docs/server.md), listen on 127.0.0.1, or pass --insecure."
        )
    log.warning(
        "--insecure: %s is reachable from other machines without %s. Anyone who can connect "
        "can read, change and run your jobs.",
        listen,
        missing,
    )
