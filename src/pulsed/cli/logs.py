"""Logs of a worker, on stderr: text for people, JSON for collectors, the job on every record."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from pulsed.cli.plain import harmless, harmless_json
from pulsed.cli.view.times import iso
from pulsed.engine.job_logging import JobLogFilter

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ("debug", "info", "warning", "error")
COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


def log_options(command: F) -> F:
    """Give a command ``--log-level`` and ``--log-format``."""
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        default="info",
        envvar="PULSED_LOG_LEVEL",
        show_default=True,
    )
    form = click.option(
        "--log-format",
        type=click.Choice(("text", "json")),
        default="text",
        envvar="PULSED_LOG_FORMAT",
        show_default=True,
    )
    return level(form(command))


def set_up_logs(level: str, form: str, *, with_pid: bool = False) -> None:
    """Send every record to stderr. An app that configures logging itself comes later and wins."""
    handler = logging.StreamHandler()
    handler.addFilter(JobLogFilter())
    handler.setFormatter(JsonLines() if form == "json" else Lines(with_pid=with_pid))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


class Lines(logging.Formatter):
    """One line a record: time, level, logger, message, and the job it is about."""

    def __init__(self, *, with_pid: bool = False) -> None:
        super().__init__()
        self._pid = f"[{os.getpid()}] " if with_pid else ""
        self._coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with a traceback below it if there is one."""
        clock = datetime.fromtimestamp(record.created, UTC).astimezone()
        level = f"{record.levelname:7}"
        if self._coloured and record.levelno in COLOURS:
            level = click.style(level, fg=COLOURS[record.levelno])
        text = f"{clock:%H:%M:%S}.{clock.microsecond // 1000:03} {self._pid}{level} {record.name}: "
        # Further lines are indented: none can pass for a record of its own.
        text += harmless(record.getMessage()).replace("\n", "\n    ") + self._job(record)
        if record.exc_info:
            text += "\n" + harmless(self.formatException(record.exc_info))
        return text

    def _job(self, record: logging.LogRecord) -> str:
        fields = record.__dict__
        if fields.get("job_id", "-") == "-" or fields["job_id"] in record.getMessage():
            return ""
        job = harmless(f"  [{fields['topic']} {fields['job_id']} attempt {fields['attempt']}]")
        return click.style(job, dim=True) if self._coloured else job


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
"""What every record has; the rest came in as ``extra``."""


class JsonLines(logging.Formatter):
    """One JSON object a record, with the job that it is about and whatever ``extra`` it carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        fields: dict[str, Any] = {
            "time": iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        for name, value in record.__dict__.items():
            outside_of_jobs = name in ("job_id", "topic", "attempt") and value == "-"
            if name not in _STANDARD and name not in fields and not outside_of_jobs:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return harmless_json(json.dumps(fields, ensure_ascii=False, default=str))
