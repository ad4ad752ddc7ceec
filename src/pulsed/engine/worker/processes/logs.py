"""Log records of a job process, sent to its worker, whose handlers write them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pulsed.engine.worker.processes.messages import LONGEST_LINE, LogLine
from pulsed.handler import clean_text

MOST_EXTRA = 32
LONGEST_EXTRA = 1_000

_OF_EVERY_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def lowest_level() -> int:
    """Return the level below which this worker writes no record of its root logger."""
    return logging.getLogger().getEffectiveLevel()


def forward_logs(send: Callable[[LogLine], None], level: int) -> None:
    """Send the records of this process; the app may configure its logs otherwise."""
    logging.basicConfig(level=level, handlers=[_Forwarding(send)])


def write(line: LogLine, job: Mapping[str, Any]) -> None:
    """Write a record that a process has sent, with the fields of the job that it runs."""
    logger = logging.getLogger(line.name)
    if logger.isEnabledFor(line.level):
        made = {"created": line.created, "msecs": line.created % 1 * 1000, "exc_text": line.trace}
        record = logger.makeRecord(
            line.name, line.level, line.file, line.line, line.message, (), None, line.function
        )
        vars(record).update({**job, **line.extra, **made})
        logger.handle(record)


class _Forwarding(logging.Handler):
    def __init__(self, send: Callable[[LogLine], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(_line(record))
        except Exception:  # noqa: BLE001 - as every log handler does
            self.handleError(record)


def _line(record: logging.LogRecord) -> LogLine:
    trace = record.exc_text
    if trace is None and record.exc_info:
        trace = logging.Formatter().formatException(record.exc_info)
    return LogLine(
        name=record.name,
        level=record.levelno,
        message=clean_text(record.getMessage(), LONGEST_LINE),
        created=record.created,
        file=record.pathname,
        line=record.lineno,
        function=record.funcName or "",
        trace=None if trace is None else clean_text(trace, LONGEST_LINE),
        extra=_extra(record),
    )


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return the record's own fields that are plain values."""
    names = [name for name in vars(record) if name not in _OF_EVERY_RECORD][:MOST_EXTRA]
    fields = {name: getattr(record, name) for name in names}
    return {
        name: clean_text(value, LONGEST_EXTRA) if isinstance(value, str) else value
        for name, value in fields.items()
        if isinstance(value, str | int | float | bool | None)
    }
