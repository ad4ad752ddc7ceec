"""Authorization: callers, their roles, and the topics and queues they are limited to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

import grpc

from pulsed.model.control import ControlScope
from pulsed.model.job import JobFilter, JobPlace
from pulsed.model.limit import split_key
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.messages.errors import Refusal


class TokenRole(StrEnum):
    """A permission that a token grants. Admin includes the others, operate includes read."""

    READ = "read"
    OPERATE = "operate"
    PRODUCE = "produce"
    WORK = "work"
    ADMIN = "admin"


ANY = frozenset(TokenRole)
PRODUCE = frozenset({TokenRole.PRODUCE, TokenRole.ADMIN})
WORK = frozenset({TokenRole.WORK, TokenRole.ADMIN})
ADMIN = frozenset({TokenRole.ADMIN})
OPERATE = frozenset({TokenRole.OPERATE, TokenRole.ADMIN})
READ = frozenset({TokenRole.READ}) | OPERATE
PRODUCE_OR_READ = PRODUCE | READ
WORK_OR_READ = WORK | READ

ROLES: dict[str, frozenset[TokenRole]] = {
    "SubmitJobs": PRODUCE,
    "GetJob": PRODUCE_OR_READ,
    "GetJobs": PRODUCE_OR_READ,
    "ListJobs": PRODUCE_OR_READ,
    "CountJobs": PRODUCE_OR_READ,
    "CountJobsBy": PRODUCE_OR_READ,
    "ListFailures": PRODUCE_OR_READ,
    "CancelJobs": PRODUCE | WORK | OPERATE,
    "ReplayJobs": OPERATE,
    "EditJob": ADMIN,
    "DeleteJobs": ADMIN,
    "ExpediteJobs": OPERATE,
    "ListWorkers": READ,
    "AskWorkers": OPERATE,
    "GetBacklog": READ,
    "GetRunning": READ,
    "Audit": READ,
    "ListAuditLog": READ,
    "GetTime": ANY,
    "GetServer": ANY,
    "CheckDatabase": READ,
    "StreamJobs": WORK,
    "ReportResult": WORK,
    "ReportResults": WORK,
    "Heartbeat": WORK,
    "Release": WORK,
    "ListLeases": WORK,
    "Progress": WORK,
    "RegisterWorker": WORK,
    "RetireWorker": WORK,
    "Checkpoint": WORK,
    "GetHistory": WORK_OR_READ,
    "FanOut": WORK,
    "GetOutcomes": WORK,
    "Watch": WORK,
    "Signal": PRODUCE | OPERATE,
    "TakeSignal": WORK,
    "Emit": WORK,
    "ReadStream": PRODUCE_OR_READ | WORK,
    "PutSchedule": ADMIN,
    "EditSchedule": ADMIN,
    "SyncSchedules": ADMIN,
    "GetSchedule": READ,
    "ListSchedules": READ,
    "PauseSchedule": OPERATE,
    "ResumeSchedule": OPERATE,
    "DeleteSchedule": ADMIN,
    "RunScheduleNow": OPERATE,
    "ListScheduleJobs": READ,
    "ListScheduleFires": READ,
    "Watchdog": ADMIN,
    "ListDueSchedules": ADMIN,
    "FireSchedules": ADMIN,
    "SetScheduleError": ADMIN,
    "TakeTurn": ADMIN,
    "PruneJobs": ADMIN,
    "PruneSchedules": ADMIN,
    "CountPrunable": READ,
    "Cascade": ADMIN,
    "ExpireJobs": ADMIN,
    "StartBulk": OPERATE,
    "AdvanceBulk": OPERATE,
    "GetBulk": READ,
    "ListBulk": READ,
    "ListBulkSkips": READ,
    "StopBulk": OPERATE,
    "ChangeJobs": ADMIN,
    "RecordStats": WORK,
    "GetSeries": READ,
    "GetTotals": READ,
    "ListErrors": READ,
    "FoldStats": ADMIN,
    "GetControl": READ,
    "ListControls": READ,
    "PauseControl": OPERATE,
    "ResumeControl": OPERATE,
    "OverrideControl": OPERATE,
    "ClearControl": OPERATE,
    "DeclareControls": WORK,
    "GetRates": READ,
    "GetLimitUse": READ,
}
"""The roles that may call each method. No caller may use a method that is missing here."""

WHOLE_DATABASE = frozenset(
    {
        "ListWorkers", "AskWorkers", "GetBacklog", "GetRunning", "Audit", "ListAuditLog",
        "CheckDatabase", "Watchdog", "ListDueSchedules", "FireSchedules", "SetScheduleError",
        "TakeTurn", "PruneJobs", "PruneSchedules", "CountPrunable", "Cascade",
        "ExpireJobs", "FoldStats",
    }
)  # fmt: skip
"""Methods about all jobs: not for a caller that is limited to some topics or queues."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller and its permissions."""

    name: str
    roles: frozenset[TokenRole]
    topics: frozenset[str] | None = None
    """None: all of them."""
    queues: frozenset[str] | None = None
    proof: str | None = field(default=None, repr=False)
    """The digest of its token: another token of the same name is another caller."""

    @property
    def is_limited(self) -> bool:
        """Whether it is limited to some topics or queues."""
        return self.topics is not None or self.queues is not None

    def check_method(self, method: str) -> None:
        """Refuse a method that its roles or limits do not permit."""
        if not self.roles & ROLES.get(method, frozenset()):
            needed = " or ".join(sorted(ROLES.get(method, ())))
            what = _sentence(METHODS[method].action)
            raise denied(f"{what} needs the role {needed}; {self.name} has {self._has()}.")
        if self.is_limited and method in WHOLE_DATABASE:
            what = _sentence(METHODS[method].action)
            raise denied(f"{what} is about all jobs, and {self.name} is limited to some.")

    def check_job(self, topic: str, queue: str) -> None:
        """Refuse a job outside its topics and queues."""
        if not self.may_use(topic, queue):
            raise denied(f"{self.name} may not use topic {topic!r} in queue {queue!r}.")

    def check_limit(self, key: str | None) -> None:
        """Refuse the key of a limit that may be about jobs of topics outside its own.

        A limit that has no name of its own is called like its topic. A job that counts for it takes
        a slot from the topic's jobs.
        """
        if key is None or self.topics is None:
            return
        if (name := split_key(key)[0]) not in self.topics:
            raise denied(
                f"{self.name} is limited to topics, and may not use the limit {name!r}. A token "
                f"made with --topic {name} as well may."
            )

    def check_places(self, places: Mapping[UUID, JobPlace]) -> None:
        """Refuse unless it may use all of these jobs. Reveals nothing about those it may not."""
        for job_id, place in places.items():
            if not self.may_use(place.topic, place.queue):
                raise denied(f"{self.name} may not use job {job_id}.")

    def check_filter(self, where: JobFilter) -> None:
        """Refuse a filter that would list jobs outside its topics and queues."""
        if self.topics is not None and where.topic not in self.topics:
            raise denied(f"{self.name} is limited to topics; the filter must name one of them.")
        if self.queues is not None and where.queue not in self.queues:
            raise denied(f"{self.name} is limited to queues; the filter must name one of them.")

    def check_topics_and_queues(self, topics: Iterable[str], queues: Iterable[str]) -> None:
        """Refuse a worker that names topics or queues outside its own."""
        for topic in topics:
            if self.topics is not None and topic not in self.topics:
                raise denied(f"{self.name} may not use topic {topic!r}.")
        for queue in queues:
            if self.queues is not None and queue not in self.queues:
                raise denied(f"{self.name} may not use queue {queue!r}.")

    def check_control(self, scope: ControlScope, name: str) -> None:
        """Refuse a control that would govern jobs outside its topics and queues."""
        if not self.may_control(scope, name):
            raise denied(f"{self.name} may not use the control of {scope} {name!r}.")

    def may_control(self, scope: ControlScope, name: str) -> bool:
        """Whether it may use all jobs that a control governs; a limit's name may be a topic."""
        if scope is ControlScope.QUEUE:
            return self.topics is None and self.may_use("", name)
        return self.queues is None and self.may_use(name, "")

    def may_use_all(self, topics: Iterable[str], queues: Iterable[str]) -> bool:
        """Whether it may use all of a worker's topics and queues."""
        return (self.topics is None or self.topics.issuperset(topics)) and (
            self.queues is None or self.queues.issuperset(queues)
        )

    def may_use(self, topic: str, queue: str) -> bool:
        """Whether it may use a job of this topic and queue."""
        return (self.topics is None or topic in self.topics) and (
            self.queues is None or queue in self.queues
        )

    def _has(self) -> str:
        return ", ".join(sorted(self.roles)) or "none"


ANONYMOUS = Caller("anonymous", frozenset({TokenRole.ADMIN}))
"""The caller of a server without credentials, which listens on a loopback address."""


def _sentence(action: str) -> str:
    return action[:1].upper() + action[1:]


def denied(message: str) -> Refusal:
    """Return the refusal of a call that its caller has no permission for."""
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, message)


def unauthenticated(message: str) -> Refusal:
    """Return the refusal of a caller that is not authenticated."""
    return Refusal(grpc.StatusCode.UNAUTHENTICATED, message)
