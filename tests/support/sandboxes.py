"""What the tests of the test kit share."""

from datetime import UTC, datetime

from pulsed.testing import Ran

START = datetime(2030, 1, 1, tzinfo=UTC)


def outcomes(runs: list[Ran]) -> list[str]:
    """Return the runs as texts: topic and outcome."""
    return [f"{ran.topic} {ran.outcome}" for ran in runs]
