"""The actor that the audit log names for acts of this process."""

from __future__ import annotations

import getpass
import os
import socket

from pulsed.model.audit import Operator

VARIABLE = "PULSED_ACTOR"


def operator(detail: str = "") -> Operator:
    """Return the actor: ``PULSED_ACTOR``, or else the user and the host of this process."""
    return Operator(os.environ.get(VARIABLE) or f"{_user()}@{socket.gethostname()}", detail=detail)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return f"uid-{os.getuid()}"
