"""What a step came to, in words: for the terminal and for the dashboard."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from pulsed.client.job_tree import Node, Step
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.step import StepKind, StepState
from pulsed.wording import format_duration

Tone: TypeAlias = Literal["good", "bad", "waiting", "running", "soft", ""]


class Said(NamedTuple):
    """A text, and how it is meant."""

    text: str
    tone: Tone = ""


def outcome_of(step: Step, node: Node) -> Said:
    """Return the outcome of a step and how long it took, or what it waits for."""
    took = format_duration(step.seconds)
    match step.checkpoint.kind, step.checkpoint.state:
        case StepKind.VERSION, _:
            return Said(f"version {step.checkpoint.value}")
        case StepKind.SLEEP, _:
            return _sleep(step, took, node)
        case _, StepState.OPEN:
            return _open(step, took, node)
        case ((StepKind.FAN_OUT | StepKind.STEP), state):
            return Said(f"{_word(state)} in {took}", _tone(state))
        case StepKind.SIGNAL, StepState.DONE:
            return Said(f"came after {took}", "good")
        case StepKind.JOB, StepState.DONE:
            return Said(f"ended after {took}", "good")
        case _, state:
            return Said(f"{_word(state)} after {took}", _tone(state))


def _sleep(step: Step, took: str, node: Node) -> Said:
    if step.ended_at is not None:
        return Said(f"slept {took}", "good")
    if not step.is_awaited:
        return _unfinished(took, node)
    return Said(f"sleeps{_left(step)}", "waiting")


def _open(step: Step, took: str, node: Node) -> Said:
    if not step.is_awaited:
        return _unfinished(took, node)
    awaited = {
        StepKind.SIGNAL: "waits for this signal",
        StepKind.JOB: f"waits for job {node.job.wait_key}",
        StepKind.FAN_OUT: "waits for its children",
    }[step.checkpoint.kind]
    return Said(f"{awaited} for {took} now{_left(step)}", "waiting")


def _left(step: Step) -> str:
    until = step.checkpoint.until
    return "" if until is None else f", {format_duration((until - step.now).total_seconds())} left"


def _unfinished(took: str, node: Node) -> Said:
    """Return the text for an open wait whose job is not waiting: it was woken, or has ended."""
    if node.job.status in TERMINAL:
        return Said("not over when the job ended", "soft")
    return Said(f"begun {took} ago", "running")


def _word(state: StepState) -> str:
    return state.replace("_", " ").lower()


def _tone(state: StepState) -> Tone:
    return "good" if state is StepState.DONE else "bad"
