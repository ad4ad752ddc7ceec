"""A clock that stands still until a test moves it."""

from datetime import UTC, datetime, timedelta


class Clock:
    """Pass it as ``clock=``: the store then reads the time from it alone."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        """Let time pass (or, with a negative number, jump back)."""
        self.now += timedelta(seconds=seconds)
        return self.now

    def after(self, seconds: float) -> datetime:
        """The instant ``seconds`` from now."""
        return self.now + timedelta(seconds=seconds)
