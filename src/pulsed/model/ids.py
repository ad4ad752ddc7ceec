"""Ids of jobs: UUIDv7 for new ones, UUIDv8 for ids computed from others."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from uuid import UUID, SafeUUID

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
        instant = _last_instant = max(instant, _last_instant + 1)
        random = next(_random, None)
        if random is None:
            _random = iter(_RANDOM_BLOCK.unpack(os.urandom(_RANDOM_BLOCK.size)))
            random = next(_random)
    return _uuid7(instant, random)


def new_job_ids(count: int) -> list[UUID]:
    """Return so many ids, as ``new_job_id`` would one by one, in a third of the time.

    They are a 1/4096 of a millisecond apart, so that the last of many is some milliseconds ahead.
    """
    global _last_instant  # noqa: PLW0603 - as above
    instant = time.time_ns() * 4096 // 1_000_000
    with _id_lock:
        first = max(instant, _last_instant + 1)
        _last_instant = first + count - 1
    randoms = struct.unpack(f"{count}Q", os.urandom(8 * count))
    return [_uuid7(at, random) for at, random in enumerate(randoms, first)]


def _uuid7(instant: int, random: int) -> UUID:
    number = (instant >> 12) << 80 | 0x7 << 76 | (instant & 0xFFF) << 64
    return uuid_of(number | 0b10 << 62 | random & 0x3FFF_FFFF_FFFF_FFFF)


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
