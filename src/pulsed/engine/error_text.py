"""Exceptions as the texts that are stored about them, whatever their own code does."""

from __future__ import annotations

import traceback

from pulsed.handler import clean_text


def describe(error: BaseException) -> str:
    """Return ``Type: message``."""
    name, text = type(error).__qualname__, message(error)
    return clean_text(f"{name}: {text}" if text else name)


def message(error: BaseException) -> str:
    """Return an exception's text, whatever its own ``__str__`` does."""
    try:
        return clean_text(str(error))
    except BaseException:  # noqa: BLE001 - somebody else's code
        return "(its message cannot be shown)"


def trace(error: BaseException) -> str:
    """Return the traceback."""
    try:
        return clean_text("".join(traceback.format_exception(error)))
    except BaseException:  # noqa: BLE001 - somebody else's code
        return "(its traceback cannot be shown)"
