"""The actor that the audit log names for acts of this process."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator
from contextvars import ContextVar

import msgspec

from pulsed.model.audit import Operator

VARIABLE = "PULSED_ACTOR"

_acting: ContextVar[Operator | None] = ContextVar("pulsed_operator", default=None)


@contextlib.contextmanager
def acting_as(who: Operator) -> Iterator[None]:
    """Name another actor for what is done inside: the visitor of a dashboard, for example."""
    before = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(before)


def operator(detail: str = "") -> Operator:
    """Return the actor: of ``acting_as``, or ``PULSED_ACTOR``, or else the user and the host."""
    if (who := _acting.get()) is not None:
        return msgspec.structs.replace(who, detail=detail)
    return Operator(os.environ.get(VARIABLE) or f"{_user()}@{socket.gethostname()}", detail=detail)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return f"uid-{os.getuid()}"
