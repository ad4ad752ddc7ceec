"""Exceptions as stored text; an error in an exception's own ``__str__`` does no harm."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pulsed.handler import clean_text
from pulsed.handler.function import code_of

OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""The folder of pulsed's own code."""


def type_name(kind: type[BaseException]) -> str:
    """Return the full name of an error's class; without the module if it is built in."""
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def describe(error: BaseException) -> str:
    """Return ``Type: message``."""
    name, text = type(error).__qualname__, message(error)
    return clean_text(f"{name}: {text}" if text else name)


def message(error: BaseException) -> str:
    """Return an exception's text, whatever its own ``__str__`` does."""
    try:
        return clean_text(str(error))
    except BaseException:  # noqa: BLE001 - the exception's own code
        return "(its message cannot be shown)"


def trace(error: BaseException) -> str:
    """Return the formatted traceback, from the handler's frame on."""
    try:
        begin = from_the_handler(error)
        return clean_text("".join(traceback.format_exception(type(error), error, begin)))
    except BaseException:  # noqa: BLE001 - the exception's own code
        return "(its traceback cannot be shown)"


def handler_line(error: BaseException, handler: Callable[..., Any]) -> str:
    """Return the innermost line of the handler's own file that the error passed: ``jobs.py:12``."""
    code = code_of(handler)
    file = code.co_filename if code is not None else ""
    found = ""
    here = error.__traceback__
    while here is not None:
        if here.tb_frame.f_code.co_filename == file:
            found = f"{Path(file).name}:{here.tb_lineno}"
        here = here.tb_next
    return clean_text(found)


def from_the_handler(error: BaseException) -> TracebackType | None:
    """Return the traceback without the worker's frames above the handler.

    Returns all of it if the error was raised before the handler was called.
    """
    here = error.__traceback__
    while here is not None and here.tb_frame.f_code.co_filename.startswith(OURS):
        here = here.tb_next
    return here or error.__traceback__
