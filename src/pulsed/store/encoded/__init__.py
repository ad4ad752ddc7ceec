"""A store behind a codec: the database, a server and their operators see only envelopes."""

from pulsed.store.encoded.store import bare, encoded

__all__ = ["bare", "encoded"]
