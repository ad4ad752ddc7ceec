"""Exceptions as the texts that are stored about them, whatever their own code does."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

from pulsed.handler import clean_text

OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""Where the code of pulsed is."""


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
    """Return the traceback, from the handler on."""
    try:
        begin = _in_the_handler(error.__traceback__)
        return clean_text("".join(traceback.format_exception(type(error), error, begin)))
    except BaseException:  # noqa: BLE001 - somebody else's code
        return "(its traceback cannot be shown)"


def _in_the_handler(begin: TracebackType | None) -> TracebackType | None:
    """Skip the calls by which a worker gets there; all of it is ours if it did not get there."""
    here = begin
    while here is not None and here.tb_frame.f_code.co_filename.startswith(OURS):
        here = here.tb_next
    return here or begin
