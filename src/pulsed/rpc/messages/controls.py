"""Controls as messages, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.limit import KeyUse, LimitUse
from pulsed.model.rate import Rate
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.values import maybe, maybe_instant, maybe_stamp

SCOPES = {scope: pb.ControlScope.Value(f"CONTROL_SCOPE_{scope.name}") for scope in ControlScope}
_SCOPE_OF = {number: scope for scope, number in SCOPES.items()}


def scope_of(number: int) -> ControlScope:
    """Return the scope of a number; refuses an unknown one."""
    if number not in _SCOPE_OF:
        raise ValueError("a control needs a scope: queue, topic or limit")
    return _SCOPE_OF[number]


def numbers_message(numbers: Numbers) -> pb.Numbers:
    """Return numbers as a message."""
    return pb.Numbers(
        running=numbers.running,
        rate=None if numbers.rate is None else _rate_message(numbers.rate),
        age_seconds=numbers.age,
        sequential=numbers.sequential,
        weights=numbers.weights,
    )


def numbers_of(message: Any) -> Numbers:
    """Return the numbers of a message; refuses those out of range."""
    return Numbers(
        running=maybe(message, "running"),
        rate=_rate_of(message.rate) if message.HasField("rate") else None,
        age=maybe(message, "age_seconds"),
        sequential=message.sequential,
        weights=dict(message.weights),
    )


def control_message(control: Control) -> pb.Control:
    """Return a control as a message."""
    declared, override = control.declared, control.override
    return pb.Control(
        scope=SCOPES[control.scope],
        name=control.name,
        paused=control.paused,
        paused_at=maybe_stamp(control.paused_at),
        paused_by=control.paused_by,
        declared=None if declared is None else numbers_message(declared),
        override=None if override is None else numbers_message(override),
        updated_at=maybe_stamp(control.updated_at),
    )


def control_of(message: Any) -> Control:
    """Return the control of a message."""
    return Control(
        scope=scope_of(message.scope),
        name=message.name,
        paused=message.paused,
        paused_at=maybe_instant(message, "paused_at"),
        paused_by=maybe(message, "paused_by"),
        declared=numbers_of(message.declared) if message.HasField("declared") else None,
        override=numbers_of(message.override) if message.HasField("override") else None,
        updated_at=maybe_instant(message, "updated_at"),
    )


def _rate_message(rate: Rate) -> pb.Rate:
    return pb.Rate(count=rate.count, per_seconds=rate.seconds, burst=rate.burst)


def _rate_of(message: Any) -> Rate:
    return Rate(message.count, message.per_seconds, maybe(message, "burst"))


def limit_use_message(use: LimitUse) -> pb.LimitUse:
    """Return what a limit has in use as a message."""
    return pb.LimitUse(
        running=use.running,
        waiting=use.waiting,
        keys=[
            pb.LimitUse.Key(
                key=each.key,
                running=each.running,
                waiting=each.waiting,
                holders=map(str, each.holders),
                tat=maybe_stamp(each.tat),
            )
            for each in use.keys
        ],
        at_least=use.at_least,
    )


def limit_use_of(message: Any) -> LimitUse:
    """Return what a limit has in use."""
    keys = (
        KeyUse(
            key=each.key,
            running=each.running,
            waiting=each.waiting,
            holders=tuple(map(UUID, each.holders)),
            tat=maybe_instant(each, "tat"),
        )
        for each in message.keys
    )
    return LimitUse(
        running=message.running,
        waiting=message.waiting,
        keys=tuple(keys),
        at_least=message.at_least,
    )
