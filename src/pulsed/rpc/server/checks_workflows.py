"""What a server accepts of workflows: a refusal is about this very item, and others go through."""

from __future__ import annotations

import math
from uuid import UUID

from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_count, checked_name
from pulsed.model.outcome import Waiting
from pulsed.model.step import Checkpoint, StepKind, Wait
from pulsed.rpc.messages.errors import invalid

LONGEST_HASH = 200
LONGEST_FAMILY = 250
"""A step's name, and the numbers that follow it."""
LARGEST_NUMBER = 2**31 - 1


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that no database can store; its value is looked at elsewhere."""
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


def check_waiting(outcome: Waiting) -> None:
    """Refuse a suspension that could not end as it says."""
    check_checkpoint(outcome.checkpoint)
    wait = outcome.wait
    if wait.delay is not None and math.isnan(wait.delay):
        raise invalid("The delay of a wait must be a number of seconds.")
    _check_key(wait)


def _check_key(wait: Wait) -> None:
    match wait.kind:
        case StepKind.SLEEP:
            return
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
    """Refuse what children cannot be told apart by."""
    if not name or len(name) > LONGEST_FAMILY or "\0" in name:
        raise invalid(
            f"Children need a parent_step of 1 to {LONGEST_FAMILY} characters: the key under which "
            "their parent waits for them."
        )
