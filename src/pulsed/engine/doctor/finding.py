"""What a check returns, and the limits that several checks share."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

CLOCK_TOLERANCE = 1.0
"""Seconds that a clock may be off."""
WAITED_TOO_LONG = 60.0
"""Seconds after which a due job or schedule should have been taken up."""


class Severity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    level: Severity
    detail: str
    advice: str = ""


def is_healthy(findings: list[Finding]) -> bool:
    """Whether nothing failed."""
    return all(finding.level is not Severity.FAIL for finding in findings)
