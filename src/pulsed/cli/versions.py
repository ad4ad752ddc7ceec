"""Which pulsed this is."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def pulsed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("pulsed")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"


def describe() -> str:
    """Return the version, and that of the Python it runs on, which bug reports forget."""
    return f"pulsed {pulsed_version()} (Python {platform.python_version()})"
