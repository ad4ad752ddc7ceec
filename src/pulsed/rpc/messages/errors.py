"""Errors across the wire: from pulsed's error tree to a gRPC status, and back.

A status code tells clients in every language what to do. The name of pulsed's error goes beside it
in the trailing metadata, so that a Python client raises exactly what the server raised.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import grpc

from pulsed import errors
from pulsed.rpc.messages.contract import ERROR_KEY, JOB_KEY

Code = grpc.StatusCode

# The first match decides, so the narrower error stands before the wider one.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (errors.TransientStorageError, Code.UNAVAILABLE),
    (errors.StorageRefused, Code.INVALID_ARGUMENT),
    (errors.StorageFull, Code.RESOURCE_EXHAUSTED),
    (errors.StorageReadOnly, Code.FAILED_PRECONDITION),
    (errors.NotADatabase, Code.FAILED_PRECONDITION),
    (errors.DatabaseReplaced, Code.FAILED_PRECONDITION),
    (errors.SchemaError, Code.FAILED_PRECONDITION),
    (errors.AccessDenied, Code.PERMISSION_DENIED),
    (errors.ServerTooOld, Code.UNIMPLEMENTED),
    (errors.StorageError, Code.INTERNAL),
    (errors.InvalidJob, Code.INVALID_ARGUMENT),
    (errors.JobNotFound, Code.NOT_FOUND),
    (errors.ScheduleNotFound, Code.NOT_FOUND),
    (errors.ScheduleChanged, Code.ABORTED),
    (errors.DuplicateKey, Code.ALREADY_EXISTS),
    (errors.JobError, Code.FAILED_PRECONDITION),
    (errors.PulsedError, Code.INTERNAL),
)

TRANSIENT = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.CANCELLED, Code.UNKNOWN}
"""Transient failures of the network, the server or its database. A connection that was cut leaves
UNKNOWN, or INTERNAL without the name of a pulsed error."""

_TOO_LARGE = "larger than max"
"""What gRPC itself says of a message above the limit, on either side."""

DENIED = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}

_RAISED_BY_NAME = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, errors.PulsedError)
    and not issubclass(kind, errors.JobError)
}

_RAISED_ABOUT_A_JOB: dict[str, type[errors.JobError]] = {
    kind.__name__: kind
    for kind in (
        errors.DuplicateKey,
        errors.LeaseLost,
        errors.JobNotFound,
        errors.InvalidTransition,
    )
}


class Refusal(Exception):
    """Refuses a request with a gRPC status of its own; raised inside a server only."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the status, its text and the trailing metadata for an error."""
    if isinstance(error, Refusal):
        return error.code, str(error), ()
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        # Its text may hold anything; the server's log has it.
        return Code.INTERNAL, f"the server failed: {type(error).__name__}", ((ERROR_KEY, ""),)
    name = (ERROR_KEY, type(error).__name__)
    if isinstance(error, errors.JobError):
        return code, str(error), (name, (JOB_KEY, str(error.job_id)))
    return code, str(error), (name,)


def error_of(failure: grpc.RpcError, what: str, where: str) -> errors.PulsedError:
    """Return the pulsed error that a failed call stands for."""
    status: Any = failure
    code, text = status.code(), status.details() or ""
    trailing = {key: str(value) for key, value in status.trailing_metadata() or ()}
    name = trailing.get(ERROR_KEY)
    if name and (kind := _RAISED_BY_NAME.get(name)) is not None:
        return kind(text)
    if name and JOB_KEY in trailing and (about := _RAISED_ABOUT_A_JOB.get(name)) is not None:
        return about(text, job_id=UUID(trailing[JOB_KEY]))
    if code in TRANSIENT or (code is Code.INTERNAL and name is None):
        return errors.ServerUnreachable(
            f"{what} failed: the pulsed server at {where} is not reachable ({code.name}: {text})."
        )
    if code in DENIED:
        return errors.AccessDenied(f"{what} was refused by the pulsed server at {where}: {text}")
    if code is Code.UNIMPLEMENTED:
        return errors.ServerTooOld(
            f"{what} failed: the pulsed server at {where} is too old for it; upgrade the server."
        )
    if code is Code.INVALID_ARGUMENT:
        return errors.StorageRefused(text)
    if code is Code.RESOURCE_EXHAUSTED and _TOO_LARGE in text:
        return errors.StorageRefused(
            f"{what} needs a message that is too large for the pulsed server at {where}: {text}"
        )
    return errors.StorageError(f"{what} failed at the pulsed server at {where}: {text}")


def lost(job_id: UUID) -> Refusal:
    """Return the answer to a report whose lease is lost."""
    return Refusal(
        Code.FAILED_PRECONDITION,
        f"Job {job_id} is not leased under this token any more: another run decides. Forget it.",
    )


def invalid(message: str) -> Refusal:
    """Return the answer to a request that can never be accepted."""
    return Refusal(Code.INVALID_ARGUMENT, message)
