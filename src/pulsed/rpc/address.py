"""``pulse://`` and ``pulses://`` URLs: the servers' addresses and the client's credentials."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pulsed.errors import ConfigError, InvalidURL
from pulsed.listen_address import is_loopback
from pulsed.store.open import redacted

PORT = 50051
TOKEN_VARIABLE = "PULSED_TOKEN"  # noqa: S105 - the name of a variable
FORM = "pulse://host:50051 or, with TLS, pulses://name:token@host:50051"
OPTIONS = ("ca", "cert", "key", "plaintext")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A parsed URL: the servers, and how to authenticate to them."""

    hosts: tuple[str, ...]
    """``host:port``, in the order given."""
    tls: bool = False
    token: str | None = None
    ca: str | None = None
    """File of the CA that signed the servers' certificates; None: the system's CAs."""
    cert: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Return the address in a URL; the token may also come from the environment."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise InvalidURL(f"{redacted(url)!r} is not understood ({error}): {FORM}.") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := set(options) - set(OPTIONS):
            raise InvalidURL(
                f"{redacted(url)!r} has an option that does not exist: {min(unknown)!r}. "
                f"There are {', '.join(OPTIONS)}."
            )
        if parts.path not in ("", "/") or parts.fragment:
            raise InvalidURL(f"{redacted(url)!r} names a server and nothing in it: {FORM}.")
        login, _, places = parts.netloc.rpartition("@")
        hosts = tuple(_host(place, url) for place in places.split(","))
        token = unquote(login.partition(":")[2]) or os.environ.get(TOKEN_VARIABLE) or None
        if login and not login.partition(":")[2]:
            raise InvalidURL(f"{redacted(url)!r} has a name but no token: {FORM}.")
        tls = parts.scheme.lower() == "pulses"
        cls._check_secrecy(url, hosts, options, tls=tls, token=token)
        if ("cert" in options) != ("key" in options):
            raise InvalidURL(f"{redacted(url)!r} needs both cert= and key=, or neither.")
        files = {name: options.get(name) for name in ("ca", "cert", "key")}
        return cls(hosts, tls, token, **files)

    @staticmethod
    def _check_secrecy(
        url: str, hosts: tuple[str, ...], options: dict[str, str], *, tls: bool, token: str | None
    ) -> None:
        """Refuse to send a token over a network in the clear, unless ``plaintext=yes``."""
        if token and not tls and options.get("plaintext") != "yes":
            for host in hosts:
                if not is_loopback(host.rpartition(":")[0].strip("[]")):
                    raise ConfigError(
                        f"{redacted(url)!r} would send the token to {host} in the clear. Use "
                        "pulses://, or add ?plaintext=yes if you trust that network."
                    )

    def read(self, name: str) -> bytes | None:
        """Return the contents of the file ``ca``, ``cert`` or ``key``; None if there is none."""
        path = getattr(self, name)
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{name}={path} of the server's URL cannot be read: {error}"
            ) from error


def _host(place: str, url: str) -> str:
    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidURL(f"{redacted(url)!r} names no server; write {FORM}.")
    return f"{host}:{port}"
