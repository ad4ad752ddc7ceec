"""Connections to servers: which one to ask, and a channel to it for every way of calling.

Blocking callers share one channel of the process; every event loop has its own. A forked child
drops them all unclosed and makes new ones.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import grpc
import grpc._channel  # else imported by the first call, and a fork then would lock it for ever
from grpc import aio

from pulsed.rpc.address import Address
from pulsed.rpc.messages.contract import TOKEN_KEY, Method


class Endpoints:
    """The servers of a URL, and the one that is asked just now."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._hosts = list(hosts)
        # So that many workers do not all meet at the first.
        Random().shuffle(self._hosts)  # noqa: S311
        self._lock = threading.Lock()

    @property
    def current(self) -> str:
        """The server to ask."""
        return self._hosts[0]

    def leave(self, host: str) -> None:
        """Ask another one from now on, if there is another."""
        with self._lock:
            if self._hosts[0] == host:
                self._hosts.append(self._hosts.pop(0))

    def __str__(self) -> str:
        return ", ".join(self._hosts)


def channel_options(keepalive: float) -> list[tuple[str, int]]:
    """Return what both kinds of channels are made with."""
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
        ("grpc.enable_retries", 0),  # we do that, and know what may be repeated
        ("grpc.use_local_subchannel_pool", 1),  # a fork's child must not find its parent's
    ]


def metadata_of(address: Address) -> tuple[tuple[str, str], ...]:
    """Return what goes with every call."""
    return ((TOKEN_KEY, f"Bearer {address.token}"),) if address.token else ()


class Channels:
    """The channels of one event loop, or of all blocking callers; one for each server."""

    def __init__(
        self, address: Address, keepalive: float, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.loop = loop
        self._address = address
        self._options = channel_options(keepalive)
        self._open: dict[str, Any] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def call(self, host: str, method: Method) -> Any:
        """Return what calls a method on a server."""
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
