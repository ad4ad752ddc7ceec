"""Times as people write and read them: ``2h``, ``3d``, ISO-8601; ``5 min ago``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from pulsed.wording import format_duration, parse_duration


def parse_instant(text: str) -> datetime | None:
    """Return an ISO-8601 instant in UTC; one without a zone is local time."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def duration(value: str | float) -> float:
    """Parse an option's seconds, written with units or without."""
    seconds = float(value) if isinstance(value, int | float) else parse_duration(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no duration; write 90, 30s, 5m, 2h or 3d.")
    return seconds


def past(value: str | datetime) -> datetime:
    """Parse an option's instant; ``2h`` is two hours before now."""
    return _instant(value, -1, "write 30m, 2h or 3d for so long ago, or 2026-11-15T09:00:00Z.")


def future(value: str | datetime) -> datetime:
    """Parse an option's instant, which must be written in full."""
    return _instant(value, None, "write 2026-11-15T09:00:00Z.")


def coming(value: str | datetime) -> datetime:
    """Parse an option's instant; ``2h`` is two hours from now."""
    return _instant(value, 1, "write 30m, 2h or 3d from now, or 2026-11-15T09:00:00Z.")


def expiry(value: str | float | datetime) -> float | datetime:
    """Parse an option's seconds, or an instant that is written in full."""
    if isinstance(value, str) and parse_duration(value) is None:
        return _instant(value, None, "write 30s, 5m or 2h, or 2026-11-15T09:00:00Z.")
    return value if isinstance(value, datetime) else duration(value)


def _instant(value: str | datetime, direction: int | None, advice: str) -> datetime:
    """Parse an instant or, if there is a direction, a duration from now."""
    if isinstance(value, datetime):
        return value
    seconds = None if direction is None else parse_duration(value)
    if direction is not None and seconds is not None:
        return _from_now(direction * seconds)
    instant = parse_instant(value)
    if instant is None:
        raise click.BadParameter(f"{value!r} is no time; {advice}")
    return instant


def _from_now(seconds: float) -> datetime:
    try:
        return datetime.now(UTC) + timedelta(seconds=seconds)
    except OverflowError:
        farthest = datetime.max.replace(tzinfo=UTC)
        return farthest if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def relative(instant: datetime, now: datetime) -> str:
    """Return an instant relative to ``now``: ``in 5 min``, ``3 h ago``."""
    seconds = (instant - now).total_seconds()
    return f"in {format_duration(seconds)}" if seconds > 0 else f"{format_duration(-seconds)} ago"


def iso(instant: datetime | None) -> str | None:
    """Return an instant in ISO-8601, in UTC."""
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def moment(instant: datetime, now: datetime) -> str:
    """Return an instant as text, with its distance from ``now``."""
    return f"{iso(instant.replace(microsecond=0))} ({relative(instant, now)})"
