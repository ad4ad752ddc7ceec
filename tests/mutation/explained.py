"""Mutants that no test kills, and why that is right.

A name is that of a mutant, or of a statement whose conditions all have the same reason.
"""

from __future__ import annotations

_SAME_ELSEWHERE = "It only chooses where a claim scans; the pick that follows has the condition."
_OWNER_COVERS = "An ended job has no owner, so the owner covers for it; a test removes both."

EXPLAINED: dict[str, str] = {
    "checkpoints.record: j.status = 'RUNNING'": _OWNER_COVERS,
    "claiming.claim: j.status NOT IN ('RUNNING', 'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')": (
        "The pick in the same transaction covers for it where one transaction runs at a time."
    ),
    "claiming.levels": _SAME_ELSEWHERE,
    "claiming.others_first": _SAME_ELSEWHERE,
}


def is_explained(mutant: str) -> bool:
    """Return whether a mutant may survive."""
    return mutant in EXPLAINED or mutant.partition(":")[0] in EXPLAINED
