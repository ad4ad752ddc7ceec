"""Ids of jobs: UUIDv7 for new ones, UUIDv8 for ids computed from others."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload
from uuid import UUID, SafeUUID

import msgspec

_id_lock = threading.Lock()
_last_instant = 0
_random: Iterator[int] = iter(())
"""Random numbers of 64 bits, read from the kernel in blocks: one read costs as much as the rest of
an id."""

_RANDOM_BLOCK = struct.Struct("128Q")


def new_job_id() -> UUID:
    """Return a UUIDv7, later than every one this process made before.

    The 12 bits after the version count 1/4096 of a millisecond (RFC 9562, method 3), so that
    jobs enqueued one after the other also sort that way.
    """
    global _last_instant, _random  # noqa: PLW0603 - one counter per process is the point
    instant = time.time_ns() * 4096 // 1_000_000
    with _id_lock:
        if instant <= _last_instant:
            instant = _last_instant + 1
        _last_instant = instant
        random = next(_random, None)
        if random is None:
            _random = iter(_RANDOM_BLOCK.unpack(os.urandom(_RANDOM_BLOCK.size)))
            random = next(_random)
    number = (instant >> 12) << 80 | 0x7 << 76 | (instant & 0xFFF) << 64
    return uuid_of(number | 0b10 << 62 | random & 0x3FFF_FFFF_FFFF_FFFF)


class JobIds(Sequence[UUID]):
    """Ids in one piece of memory, as stores write them. A ``UUID`` is made when one is read."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data
        """16 bytes for each."""

    def __len__(self) -> int:
        return len(self.data) // ID_BYTES

    @overload
    def __getitem__(self, place: int) -> UUID: ...

    @overload
    def __getitem__(self, place: slice) -> JobIds: ...

    def __getitem__(self, place: int | slice) -> UUID | JobIds:
        if isinstance(place, slice):
            return JobIds(b"".join(self.each()[place]))
        at = range(0, len(self.data), ID_BYTES)[place]
        return UUID(bytes=self.data[at : at + ID_BYTES])

    def __iter__(self) -> Iterator[UUID]:
        # Decoded in C, in half the time of ``uuid_of``.
        count = struct.pack(">BI", 0xDD, len(self))  # the beginning of an array in MessagePack
        return iter(_UUIDS.decode(count + self.each_after(b"\xc4\x10")))

    def each(self) -> Sequence[bytes]:
        """Return the bytes of each id."""
        return struct.unpack(f"{ID_BYTES}s" * len(self), self.data)

    def each_after(self, head: bytes) -> bytes:
        """Return the bytes of all ids, with the same ``head`` before each of them."""
        step = len(head) + ID_BYTES
        made = bytearray((head + bytes(ID_BYTES)) * len(self))
        for place in range(ID_BYTES):
            made[len(head) + place :: step] = self.data[place::ID_BYTES]
        return bytes(made)


ID_BYTES = 16
_UUIDS = msgspec.msgpack.Decoder(list[UUID])


def new_job_ids(count: int) -> JobIds:
    """Return so many ids, as ``new_job_id`` would one by one, in a fifth of the time.

    They are a 1/4096 of a millisecond apart, so that the last of many is some milliseconds ahead.
    """
    global _last_instant  # noqa: PLW0603 - as above
    instant = time.time_ns() * 4096 // 1_000_000
    with _id_lock:
        first = max(instant, _last_instant + 1)
        _last_instant = first + count - 1
    times = struct.pack(f">{count}Q", *chain.from_iterable(_first_halves(first, count)))
    randoms = bytearray(os.urandom(8 * count))
    randoms[::8] = randoms[::8].translate(_WITH_VARIANT)
    data = bytearray(ID_BYTES * count)
    for place in range(8):
        data[place::ID_BYTES] = times[place::8]
        data[place + 8 :: ID_BYTES] = randoms[place::8]
    return JobIds(bytes(data))


def _first_halves(first: int, count: int) -> Iterator[range]:
    """Yield the upper 64 bits of the ids of so many instants: time, version, part of a millisecond.

    Those of one millisecond are numbers in a row.
    """
    end = first + count
    while first < end:
        next_millisecond = (first >> 12) + 1 << 12
        lowest = (first >> 12) << 16 | 0x7 << 12 | first & 0xFFF
        yield range(lowest, lowest + min(end, next_millisecond) - first)
        first = next_millisecond


_WITH_VARIANT = bytes(0b10 << 6 | byte & 0x3F for byte in range(256))


def computed_id(milliseconds: int, digest: bytes) -> UUID:
    """Return a deterministic job id, the same in every process that computes it: a UUIDv8.

    It begins with a time, as those of ``new_job_id`` do, so that all of them sort together.
    """
    hashed = int.from_bytes(digest[:10], "big") & _HASHED
    return uuid_of((milliseconds & 0xFFFF_FFFF_FFFF) << 80 | _COMPUTED | hashed)


_COMPUTED = 0x8 << 76 | 0b10 << 62
_HASHED = (1 << 80) - 1 & ~(0xF << 76 | 0b11 << 62)


def uuid_of(number: int) -> UUID:
    """Return the UUID of a number without the constructor's checks, in a third of its time."""
    made = object.__new__(UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


_set_int = vars(UUID)["int"].__set__
_set_is_safe = vars(UUID)["is_safe"].__set__
_UNKNOWN = SafeUUID.unknown


def _reset_after_fork() -> None:
    global _id_lock, _random  # noqa: PLW0603 - the parent may have held the lock while it forked
    _id_lock = threading.Lock()
    _random = iter(())  # inherited ones would give parent and child the same ids


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
