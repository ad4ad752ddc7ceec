"""How a command ends: the exit codes, and the one place that turns an error into a message."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn

import click

from pulsed.cli.plain import harmless
from pulsed.cli.streams import StdoutError, give_up_stdout, prepare_streams
from pulsed.errors import (
    BulkNotFound,
    ConfigError,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PulsedError,
    ScheduleNotFound,
    SchemaError,
    StorageError,
    StorageFull,
    StorageReadOnly,
    WorkerNotFound,
)

DEBUG_VARIABLE = "PULSED_DEBUG"

_EXTRA_APP = re.compile(r"unexpected extra argument \([\w.]+:\w+\)")
# From click 8.2 on; before, the help was shown without an error.
_NO_ARGUMENTS: type[click.UsageError] | tuple[()] = getattr(
    click.exceptions, "NoArgsIsHelpError", ()
)

_SURROGATE = re.compile("[\ud800-\udfff]")
"""How Python decodes bytes that are not UTF-8."""


class Code(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    SCHEMA = 5
    UNHEALTHY = 6
    JOB_FAILED = 7
    INTERRUPTED = 130


# The first match wins, so the narrower error stands before the wider one.
_CODES: tuple[tuple[type[PulsedError], Code], ...] = (
    (SchemaError, Code.SCHEMA),
    (StorageFull, Code.FAILURE),
    (StorageReadOnly, Code.FAILURE),
    (StorageError, Code.UNREACHABLE),
    (ConfigError, Code.USAGE),
    (InvalidJob, Code.USAGE),
    (JobNotFound, Code.NOT_FOUND),
    (ScheduleNotFound, Code.NOT_FOUND),
    (BulkNotFound, Code.NOT_FOUND),
    (WorkerNotFound, Code.NOT_FOUND),
    (JobFailed, Code.JOB_FAILED),
    (JobCancelled, Code.JOB_FAILED),
)


class CommandError(click.ClickException):
    """An error of the command line itself, with its exit code."""

    def __init__(self, message: str, code: Code = Code.FAILURE) -> None:
        super().__init__(message)
        self.code = code


def code_for(error: PulsedError) -> Code:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.FAILURE)


def say(message: str) -> None:
    """Print a message that is not data, on stderr."""
    with contextlib.suppress(OSError):  # the exit code still reports it
        print(f"pulsed: {harmless(message)}", file=sys.stderr)


def exit_after(run: Callable[[], Any]) -> NoReturn:
    """Run a command and exit: with what it returned, or with the code and message of its error."""
    prepare_streams()
    try:
        code = _code_after(run)
        sys.stdout.flush()
    except StdoutError as error:
        give_up_stdout()
        if not error.has_no_reader:  # as in `pulsed jobs list | head`
            say(str(error))
        code = Code.FAILURE
    sys.exit(code)


def _code_after(run: Callable[[], Any]) -> int:
    """Run a command, print its error, and return its exit code."""
    try:
        code = run()
    except StdoutError:
        raise
    except click.exceptions.Exit as finished:
        return finished.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return Code.INTERRUPTED
    except _NO_ARGUMENTS as error:
        print(error.format_message())
        return Code.OK
    except click.UsageError as error:
        say(error.format_message())
        if error.ctx is not None:
            say(_how_it_takes_an_app(error, error.ctx) or f"see {error.ctx.command_path} --help")
        return Code.USAGE
    except CommandError as error:
        say(error.message)
        return error.code
    except click.ClickException as error:
        say(error.format_message())
        return error.exit_code
    except PulsedError as error:
        _show_traceback_if_asked()
        say(str(error))
        return code_for(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence against a traceback
        _show_traceback_if_asked()
        if isinstance(error, UnicodeEncodeError) and _SURROGATE.search(error.object):
            say(f"{error.object!a} is not valid UTF-8")
            return Code.USAGE
        say(f"{type(error).__name__}: {error}")
        say(f"this is a bug in pulsed, or in your app; {DEBUG_VARIABLE}=1 shows where it happened")
        return Code.FAILURE
    return code if isinstance(code, int) else Code.OK


def _how_it_takes_an_app(error: click.UsageError, ctx: click.Context) -> str | None:
    """Return how a command takes an app, if it was given in the way of other commands."""
    app = next((each for each in ctx.command.params if each.name == "app"), None)
    is_option = isinstance(error, click.NoSuchOption) and error.option_name == "--app"
    if is_option and isinstance(app, click.Argument):
        return f"name the app without an option: {ctx.command_path} MODULE:APP"
    if isinstance(app, click.Option) and _EXTRA_APP.search(error.message):
        return f"name the app with --app: {ctx.command_path} --app MODULE:APP"
    return None


def is_debugging() -> bool:
    """Whether the user wants tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def _show_traceback_if_asked() -> None:
    if is_debugging():
        print(harmless(traceback.format_exc()), end="", file=sys.stderr)
