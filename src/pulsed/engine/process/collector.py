"""Python's garbage collector in a process that is only a worker or a server."""

from __future__ import annotations

import gc

YOUNG = 10_000
"""Objects after which the young ones are searched for cycles, where Python's default is 700 or
2,000. A batch of a thousand jobs is larger than that, so each job would be visited several times
before it has ended, and none of them is part of a cycle."""

_AT_START = gc.get_threshold()


def collect_less_often() -> None:
    """Leave out what is there now, and collect less often, unless the app has its own threshold."""
    gc.freeze()  # modules and classes stay: a collection need not visit them each time
    if gc.get_threshold() == _AT_START:
        young, *older = _AT_START
        gc.set_threshold(max(young, YOUNG), *older)
