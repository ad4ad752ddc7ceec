"""Test your jobs: a database and a clock of the test's own, and a worker that ends when it is idle.

``with override(app) as sandbox:`` redirects your app; ``sandbox.drain()`` runs what is due. Nothing
here needs pytest.
"""

from pulsed.errors import DrainLimit
from pulsed.testing.clock import Clock
from pulsed.testing.context import context
from pulsed.testing.draining import adrain, drain
from pulsed.testing.ran import Ended, Ran
from pulsed.testing.sandbox import Sandbox, override

__all__ = [
    "Clock",
    "DrainLimit",
    "Ended",
    "Ran",
    "Sandbox",
    "adrain",
    "context",
    "drain",
    "override",
]
