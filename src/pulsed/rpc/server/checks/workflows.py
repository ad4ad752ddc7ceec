"""Validation of workflow requests: a refusal is about one item, and others go through."""

from __future__ import annotations

import math
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption, InvalidPayload
from pulsed.handler import clean_text
from pulsed.handler.options import checked_count, checked_name
from pulsed.handler.payload import MAX_PAYLOAD
from pulsed.model.outcome import Waiting
from pulsed.model.step import Checkpoint, StepKind, Wait
from pulsed.rpc.messages.contract import LARGEST_ANSWER
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.server.json_text import checked_json

LONGEST_HASH = 200
LONGEST_FAMILY = 250
"""Characters of a step's name and the numbers that follow it."""
LARGEST_NUMBER = 2**31 - 1


def checked_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that every database can store, or refuse it; a long error is cut."""
    try:
        checked_name("name of a step", checkpoint.name)
        checked_count("nth", checkpoint.nth, 1, LARGEST_NUMBER)
        checked_count("seq", checkpoint.seq, 1, LARGEST_NUMBER)
        checked_count("tries", checkpoint.tries, 0, LARGEST_NUMBER)
    except InvalidOption as error:
        raise invalid(str(error)) from None
    if not 0 <= checkpoint.took < math.inf:  # also false for NaN
        raise invalid(f"A step cannot have taken {checkpoint.took} seconds.")
    if len(checkpoint.input_hash) > LONGEST_HASH or "\0" in checkpoint.input_hash:
        raise invalid(f"input_hash must be a digest of at most {LONGEST_HASH} characters.")
    if checkpoint.value is not None:
        _check_value(checkpoint, checkpoint.value)
    if checkpoint.error is None:
        return checkpoint
    return msgspec.structs.replace(checkpoint, error=clean_text(checkpoint.error))


def _check_value(checkpoint: Checkpoint, value: str) -> None:
    most = LARGEST_ANSWER if checkpoint.kind is StepKind.FAN_OUT else MAX_PAYLOAD
    try:
        checked_json(f"The value of {checkpoint.name!r}", value, most=most)
    except InvalidPayload as error:
        raise invalid(str(error)) from None


def checked_waiting(outcome: Waiting) -> Waiting:
    """Return a suspension whose wait can end, or refuse it."""
    wait = outcome.wait
    if wait.delay is not None and math.isnan(wait.delay):
        raise invalid("The delay of a wait must be a number of seconds.")
    _check_key(wait)
    return Waiting(wait, checked_checkpoint(outcome.checkpoint))


def _check_key(wait: Wait) -> None:
    match wait.kind:
        case StepKind.SLEEP:
            if wait.key:
                raise invalid("A sleep has no key: it ends by itself.")
        case StepKind.SIGNAL:
            try:
                checked_name("name of a signal", wait.key)
            except InvalidOption as error:
                raise invalid(str(error)) from None
        case StepKind.FAN_OUT:
            check_family(wait.key)
        case StepKind.JOB:
            try:
                UUID(wait.key)
            except ValueError:
                raise invalid(f"The job waited for, {wait.key!r:.60}, is not a UUID.") from None
        case StepKind.STEP | StepKind.VERSION:
            raise invalid(f"A job cannot wait for a {wait.kind.value}.")


def check_family(name: str | None) -> None:
    """Refuse a ``parent_step`` that cannot identify a parent's children."""
    if not name or len(name) > LONGEST_FAMILY or "\0" in name:
        raise invalid(
            f"Children need a parent_step of 1 to {LONGEST_FAMILY} characters: the key under which "
            "their parent waits for them."
        )
