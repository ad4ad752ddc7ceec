"""What the doctor makes of the facts that a database reports about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pulsed.engine.doctor.finding import Finding, Severity

OTHERS = 0o007
"""The bits of a file's mode that give access to every other user."""


def _journal(mode: str) -> Finding:
    if mode == "wal":
        return Finding("journal", Severity.OK, "WAL")
    detail = f"journal mode {mode}: readers and writers wait for each other"
    return Finding("journal", Severity.WARN, detail, "the next worker that starts turns WAL on")


def _synchronous(level: str) -> Finding:
    if level == "FULL":
        return Finding(
            "synchronous", Severity.OK, "FULL: what was acknowledged survives a power cut"
        )
    detail = f"{level}: a power cut may undo the last commits"
    return Finding("synchronous", Severity.WARN, detail, "fine if that was the intention")


def _wal_reset_bug(present: str) -> Finding:
    if present == "no":
        return Finding("wal reset", Severity.OK, "this SQLite has no WAL-reset bug")
    return Finding(
        "wal reset",
        Severity.OK,
        "this SQLite (before 3.51.3) can damage the log when two connections checkpoint at once; "
        "pulsed never does: it checkpoints only under the write lock",
        "other programs may write to the file with PRAGMA wal_autocheckpoint = 0",
    )


def _file_system(kind: str) -> Finding:
    if kind.startswith("remote:"):
        detail = f"the file is on {kind.removeprefix('remote:')}, whose locks SQLite cannot trust"
        return Finding(
            "file system", Severity.FAIL, detail, "move it to a local disk, or to PostgreSQL"
        )
    return Finding("file system", Severity.OK, kind)


def _file_mode(mode: str) -> Finding:
    if not mode or not int(mode, 8) & OTHERS:
        return Finding("file mode", Severity.OK, mode or "files have none here")
    detail = f"{mode}: every user of this machine can read the jobs, or change them"
    return Finding("file mode", Severity.WARN, detail, "chmod 600 the file, its -wal and its -shm")


def _writable(answer: str) -> Finding:
    if answer == "yes":
        return Finding("writable", Severity.OK, "the file and its folder can be written")
    detail = "this user may not write to the file or its folder: nothing can be enqueued or run"
    return Finding("writable", Severity.FAIL, detail, "check their owner and mode")


def _standby(answer: str) -> Finding:
    if answer == "no":
        return Finding("role", Severity.OK, "primary")
    return Finding(
        "role", Severity.FAIL, "a standby: it is read only", "point the URL at the primary"
    )


def _autovacuum(setting: str) -> Finding:
    if setting == "on":
        return Finding("autovacuum", Severity.OK, "on")
    detail = "off: dead rows stay, and claims become slow"
    return Finding("autovacuum", Severity.FAIL, detail, "set autovacuum = on")


def _idle_in_transaction(session: str) -> Finding:
    if session == "none":
        return Finding("open transactions", Severity.OK, "none is idle")
    return Finding(
        "open transactions",
        Severity.WARN,
        f"idle in a transaction: {session}; while it is open no dead row can be removed",
        "end it, or set idle_in_transaction_session_timeout for that application",
    )


_JUDGES: Mapping[str, Callable[[str], Finding]] = {
    "journal": _journal,
    "synchronous": _synchronous,
    "wal_reset_bug": _wal_reset_bug,
    "file_system": _file_system,
    "writable": _writable,
    "file_mode": _file_mode,
    "standby": _standby,
    "autovacuum": _autovacuum,
    "idle_in_transaction": _idle_in_transaction,
}


def judged(facts: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each fact that can be well or not."""
    return [judge(facts[name]) for name, judge in _JUDGES.items() if name in facts]
