"""Whether it is safe for a server to listen on an address."""

from __future__ import annotations

import logging

from pulsed.errors import ConfigError
from pulsed.rpc.address import is_loopback, listening_address

log = logging.getLogger("pulsed.server")


def check_exposure(listen: str, *, tls: bool, credentials: bool, insecure: bool) -> None:
    """Refuse an address that other machines can reach, unless TLS and credentials protect it."""
    listening_address(listen, "127.0.0.1:50051")
    if is_loopback(listen) or (tls and credentials):
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
