"""The methods of the contract, read from its descriptor: nothing about them is written twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from pulsed.batches import Limits
from pulsed.rpc.generated import pulse_pb2
from pulsed.store.verbs.script import action_of

KEEPALIVE = 10.0
"""Seconds between two keepalive pings; the peer has half as long to answer."""

TOKEN_KEY = "authorization"  # noqa: S105 - the name of a header
REQUEST_ID_KEY = "pulsed-request-id"
"""The same for every attempt of one call, so that a server can recognize a retry."""
WELCOME = "pulsed-welcome"
"""In the initial metadata of a stream: the server has admitted the caller."""
ERROR_KEY = "pulsed-error"
"""In the trailing metadata: the name of the pulsed error that a status stands for."""

JOB_KEY = "pulsed-job"
"""Beside it: the id of the job that the error is about."""

LARGEST_MESSAGE = 32 * 1024 * 1024
LARGEST_BATCH = 50_000
"""Items in one request; SubmitJobs is one transaction, so this also bounds that."""
LARGEST_ANSWER = 8 * 1024 * 1024
"""Bytes of jobs in one answer; the client then requests the rest."""
LARGEST_ASSIGNMENT_BATCH = 1_000
PART = Limits(5_000, 2 * 1024 * 1024)
"""Items and bytes in one part of many: a second of a slow line, so no other call waits for long."""

VERBS = {
    "SubmitJobs": "submit",
    "GetJob": "get",
    "GetJobs": "get",
    "ListJobs": "list",
    "CountJobs": "counts",
    "CountJobsBy": "counts",
    "ListFailures": "failures",
    "CancelJobs": "cancel",
    "ReplayJobs": "replay",
    "EditJob": "replay",
    "DeleteJobs": "delete",
    "ExpediteJobs": "expedite",
    "ListWorkers": "workers",
    "AskWorkers": "ask_workers",
    "GetBacklog": "backlog",
    "GetRunning": "running",
    "Audit": "audit",
    "ListAuditLog": "audit_log",
    "GetTime": "now",
    "GetServer": "asking the server what it does",
    "CheckDatabase": "check",
    "StreamJobs": "claim",
    "ReportResult": "settle",
    "ReportResults": "settle",
    "Heartbeat": "beat",
    "Release": "giving jobs back",
    "ListLeases": "held",
    "Progress": "set_progress",
    "RegisterWorker": "announce",
    "RetireWorker": "retire",
    "Checkpoint": "record",
    "GetHistory": "history",
    "FanOut": "add_children",
    "GetOutcomes": "outcomes",
    "Watch": "watch",
    "Signal": "signal",
    "TakeSignal": "take_signal",
    "Emit": "emit",
    "ReadStream": "read_stream",
    "PutSchedule": "put_schedule",
    "EditSchedule": "put_schedule",
    "SyncSchedules": "declare_schedules",
    "GetSchedule": "get_schedule",
    "ListSchedules": "list_schedules",
    "PauseSchedule": "pause_schedule",
    "ResumeSchedule": "resume_schedule",
    "DeleteSchedule": "delete_schedule",
    "RunScheduleNow": "run_schedule",
    "ListScheduleJobs": "fires",
    "ListScheduleFires": "fires",
    "Watchdog": "watchdog",
    "ListDueSchedules": "due_schedules",
    "FireSchedules": "fire",
    "SetScheduleError": "set_schedule_error",
    "TakeTurn": "take_turn",
    "PruneJobs": "prune",
    "PruneSchedules": "prune_schedules",
    "CountPrunable": "prunable",
    "Cascade": "cascade",
    "ExpireJobs": "expire",
    "StartBulk": "start_bulk",
    "AdvanceBulk": "perform_bulk",
    "GetBulk": "read_bulk",
    "ListBulk": "read_bulk",
    "ListBulkSkips": "read_bulk",
    "StopBulk": "end_bulk",
    "ChangeJobs": "change_jobs",
    "RecordStats": "record_rollups",
    "GetSeries": "read_rollups",
    "GetTotals": "read_rollups",
    "ListErrors": "read_errors",
    "FoldStats": "fold_rollups",
    "GetControl": "get_control",
    "ListControls": "list_controls",
    "PauseControl": "pause_control",
    "ResumeControl": "resume_control",
    "OverrideControl": "override_control",
    "ClearControl": "clear_control",
    "DeclareControls": "declare_controls",
    "GetRates": "read_rates",
    "GetLimitUse": "limit_use",
}
"""The store's verb behind each method, or a phrase if there is none. So an error reads the same
through a server as it does with a database."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the contract."""

    service: str
    name: str
    request: Any
    response: Any
    streams: bool

    @property
    def path(self) -> str:
        """The gRPC path."""
        return f"/pulse.v1.{self.service}/{self.name}"

    @property
    def action(self) -> str:
        """What it does, in words for an error or a log line."""
        return action_of(VERBS[self.name])

    @property
    def function(self) -> str:
        """The name of the Python function behind it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


def _methods() -> dict[str, Method]:
    found = {}
    for service in pulse_pb2.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            found[method.name] = Method(
                service.name,
                method.name,
                GetMessageClass(method.input_type),
                GetMessageClass(method.output_type),
                method.client_streaming,
            )
    return found


METHODS: dict[str, Method] = _methods()
"""By name; no two services have a method of the same name."""
