"""Connections to servers: which server to call, and a channel to it for sync and async callers.

Blocking callers share one channel per process; every event loop has its own. A forked child
drops all of them without closing them and opens new ones.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import grpc
import grpc._channel  # else the first call imports it; a fork then leaves its lock held forever
from grpc import aio

from pulsed.rpc.address import ServerAddress
from pulsed.rpc.messages.contract import TOKEN_KEY, Method


class Endpoints:
    """The servers of a URL, and the one that calls go to."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._hosts = list(hosts)
        # Spreads workers over the servers: not all of them start with the first.
        Random().shuffle(self._hosts)  # noqa: S311
        self._lock = threading.Lock()

    @property
    def current(self) -> str:
        """The server to call."""
        return self._hosts[0]

    def leave(self, host: str) -> None:
        """Switch from this server to the next, if there is one and it is still the current."""
        with self._lock:
            if self._hosts[0] == host:
                self._hosts.append(self._hosts.pop(0))

    def __str__(self) -> str:
        return ", ".join(self._hosts)


def channel_options(keepalive: float) -> list[tuple[str, int]]:
    """Return the gRPC options of blocking and async channels."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", round(keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive * 500)),
        ("grpc.http2.ping_timeout_ms", round(keepalive * 500)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.enable_retries", 0),  # pulsed retries, and knows which calls may be repeated
        ("grpc.use_local_subchannel_pool", 1),  # a forked child must not reuse its parent's
    ]


def metadata_of(address: ServerAddress) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call: the token, if there is one."""
    return ((TOKEN_KEY, f"Bearer {address.token}"),) if address.token else ()


class Channels:
    """The channels of one event loop, or of all blocking callers; one for each server."""

    def __init__(
        self, address: ServerAddress, keepalive: float, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.loop = loop
        self._address = address
        self._options = channel_options(keepalive)
        self._open: dict[str, Any] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def call(self, host: str, method: Method) -> Any:
        """Return the callable that invokes a method on a server."""
        found = self._calls.get((host, method.name))
        if found is None:
            channel = self._channel(host)
            make = channel.stream_stream if method.streams else channel.unary_unary
            found = self._calls[host, method.name] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return found

    def _channel(self, host: str) -> Any:
        with self._lock:
            if host not in self._open:
                self._open[host] = self._connect(host)
            return self._open[host]

    def _connect(self, host: str) -> Any:
        kind: Any = grpc if self.loop is None else aio
        if not self._address.tls:
            return kind.insecure_channel(host, options=self._options)
        credentials = grpc.ssl_channel_credentials(
            self._address.read("ca"), self._address.read("key"), self._address.read("cert")
        )
        return kind.secure_channel(host, credentials, options=self._options)

    def take_all(self) -> list[Any]:
        """Return the channels and forget them."""
        with self._lock:
            channels = list(self._open.values())
            self._open.clear()
            self._calls.clear()
        return channels
