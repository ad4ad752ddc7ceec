"""How a workflow leaves its slot while it waits."""

from __future__ import annotations

from pulsed.model.outcome import Waiting


class Suspension(BaseException):
    """Unwinds the handler of a workflow that waits; a later run replays it and gets further.

    Not an ``Exception``: a handler's ``except Exception`` must not catch this.
    """

    def __init__(self, outcome: Waiting) -> None:
        super().__init__("the workflow waits: let this pass")
        self.outcome = outcome


def is_suspension(error: BaseException) -> bool:
    """Whether an error is only a suspension, or a ``TaskGroup``'s group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Suspension)[1] is None
    return isinstance(error, Suspension)
