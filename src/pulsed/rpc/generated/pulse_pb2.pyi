import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATUS_UNSPECIFIED: _ClassVar[JobStatus]
    JOB_STATUS_PENDING: _ClassVar[JobStatus]
    JOB_STATUS_RUNNING: _ClassVar[JobStatus]
    JOB_STATUS_RETRYING: _ClassVar[JobStatus]
    JOB_STATUS_WAITING: _ClassVar[JobStatus]
    JOB_STATUS_SUCCEEDED: _ClassVar[JobStatus]
    JOB_STATUS_DEAD_LETTERED: _ClassVar[JobStatus]
    JOB_STATUS_CANCELLED: _ClassVar[JobStatus]

class StepKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_KIND_UNSPECIFIED: _ClassVar[StepKind]
    STEP_KIND_STEP: _ClassVar[StepKind]
    STEP_KIND_SLEEP: _ClassVar[StepKind]
    STEP_KIND_SIGNAL: _ClassVar[StepKind]
    STEP_KIND_FAN_OUT: _ClassVar[StepKind]
    STEP_KIND_JOB: _ClassVar[StepKind]
    STEP_KIND_VERSION: _ClassVar[StepKind]

class StepState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_STATE_UNSPECIFIED: _ClassVar[StepState]
    STEP_STATE_OPEN: _ClassVar[StepState]
    STEP_STATE_DONE: _ClassVar[StepState]
    STEP_STATE_FAILED: _ClassVar[StepState]
    STEP_STATE_TIMED_OUT: _ClassVar[StepState]

class CatchUp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATCH_UP_UNSPECIFIED: _ClassVar[CatchUp]
    CATCH_UP_ONE: _ClassVar[CatchUp]
    CATCH_UP_SKIP: _ClassVar[CatchUp]
    CATCH_UP_ALL: _ClassVar[CatchUp]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_UNSPECIFIED: _ClassVar[Overlap]
    OVERLAP_ALLOW: _ClassVar[Overlap]
    OVERLAP_SKIP: _ClassVar[Overlap]

class ScheduleState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_STATE_UNSPECIFIED: _ClassVar[ScheduleState]
    SCHEDULE_STATE_ACTIVE: _ClassVar[ScheduleState]
    SCHEDULE_STATE_PAUSED: _ClassVar[ScheduleState]
    SCHEDULE_STATE_DONE: _ClassVar[ScheduleState]
    SCHEDULE_STATE_ERROR: _ClassVar[ScheduleState]

class BulkKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BULK_KIND_UNSPECIFIED: _ClassVar[BulkKind]
    BULK_KIND_RETRY: _ClassVar[BulkKind]
    BULK_KIND_CANCEL: _ClassVar[BulkKind]
    BULK_KIND_DELETE: _ClassVar[BulkKind]
    BULK_KIND_RUN_NOW: _ClassVar[BulkKind]
    BULK_KIND_RESCHEDULE: _ClassVar[BulkKind]
    BULK_KIND_REPRIORITISE: _ClassVar[BulkKind]
    BULK_KIND_MOVE: _ClassVar[BulkKind]

class BulkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BULK_STATE_UNSPECIFIED: _ClassVar[BulkState]
    BULK_STATE_RUNNING: _ClassVar[BulkState]
    BULK_STATE_DONE: _ClassVar[BulkState]
    BULK_STATE_STOPPED: _ClassVar[BulkState]
    BULK_STATE_FAILED: _ClassVar[BulkState]

class ControlScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_SCOPE_UNSPECIFIED: _ClassVar[ControlScope]
    CONTROL_SCOPE_QUEUE: _ClassVar[ControlScope]
    CONTROL_SCOPE_TOPIC: _ClassVar[ControlScope]
    CONTROL_SCOPE_LIMIT: _ClassVar[ControlScope]
JOB_STATUS_UNSPECIFIED: JobStatus
JOB_STATUS_PENDING: JobStatus
JOB_STATUS_RUNNING: JobStatus
JOB_STATUS_RETRYING: JobStatus
JOB_STATUS_WAITING: JobStatus
JOB_STATUS_SUCCEEDED: JobStatus
JOB_STATUS_DEAD_LETTERED: JobStatus
JOB_STATUS_CANCELLED: JobStatus
STEP_KIND_UNSPECIFIED: StepKind
STEP_KIND_STEP: StepKind
STEP_KIND_SLEEP: StepKind
STEP_KIND_SIGNAL: StepKind
STEP_KIND_FAN_OUT: StepKind
STEP_KIND_JOB: StepKind
STEP_KIND_VERSION: StepKind
STEP_STATE_UNSPECIFIED: StepState
STEP_STATE_OPEN: StepState
STEP_STATE_DONE: StepState
STEP_STATE_FAILED: StepState
STEP_STATE_TIMED_OUT: StepState
CATCH_UP_UNSPECIFIED: CatchUp
CATCH_UP_ONE: CatchUp
CATCH_UP_SKIP: CatchUp
CATCH_UP_ALL: CatchUp
OVERLAP_UNSPECIFIED: Overlap
OVERLAP_ALLOW: Overlap
OVERLAP_SKIP: Overlap
SCHEDULE_STATE_UNSPECIFIED: ScheduleState
SCHEDULE_STATE_ACTIVE: ScheduleState
SCHEDULE_STATE_PAUSED: ScheduleState
SCHEDULE_STATE_DONE: ScheduleState
SCHEDULE_STATE_ERROR: ScheduleState
BULK_KIND_UNSPECIFIED: BulkKind
BULK_KIND_RETRY: BulkKind
BULK_KIND_CANCEL: BulkKind
BULK_KIND_DELETE: BulkKind
BULK_KIND_RUN_NOW: BulkKind
BULK_KIND_RESCHEDULE: BulkKind
BULK_KIND_REPRIORITISE: BulkKind
BULK_KIND_MOVE: BulkKind
BULK_STATE_UNSPECIFIED: BulkState
BULK_STATE_RUNNING: BulkState
BULK_STATE_DONE: BulkState
BULK_STATE_STOPPED: BulkState
BULK_STATE_FAILED: BulkState
CONTROL_SCOPE_UNSPECIFIED: ControlScope
CONTROL_SCOPE_QUEUE: ControlScope
CONTROL_SCOPE_TOPIC: ControlScope
CONTROL_SCOPE_LIMIT: ControlScope

class Backoff(_message.Message):
    __slots__ = ("base", "power", "factor", "cap", "jitter")
    BASE_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    base: float
    power: float
    factor: float
    cap: float
    jitter: float
    def __init__(self, base: _Optional[float] = ..., power: _Optional[float] = ..., factor: _Optional[float] = ..., cap: _Optional[float] = ..., jitter: _Optional[float] = ...) -> None: ...

class NewJob(_message.Message):
    __slots__ = ("id", "topic", "payload", "queue", "priority", "delay_seconds", "at", "max_attempts", "backoff", "timeout_seconds", "lease_seconds", "headers", "tags", "schedule_id", "occurrence", "parent_id", "parent_step", "outlives", "key", "key_for", "on_duplicate", "expires_seconds", "expires_at", "limit_key")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_STEP_FIELD_NUMBER: _ClassVar[int]
    OUTLIVES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_FOR_FIELD_NUMBER: _ClassVar[int]
    ON_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    payload: str
    queue: str
    priority: int
    delay_seconds: float
    at: _timestamp_pb2.Timestamp
    max_attempts: int
    backoff: Backoff
    timeout_seconds: float
    lease_seconds: float
    headers: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    schedule_id: str
    occurrence: _timestamp_pb2.Timestamp
    parent_id: str
    parent_step: str
    outlives: bool
    key: str
    key_for: str
    on_duplicate: str
    expires_seconds: float
    expires_at: _timestamp_pb2.Timestamp
    limit_key: str
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., payload: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., delay_seconds: _Optional[float] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_attempts: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., timeout_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., headers: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., schedule_id: _Optional[str] = ..., occurrence: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parent_id: _Optional[str] = ..., parent_step: _Optional[str] = ..., outlives: bool = ..., key: _Optional[str] = ..., key_for: _Optional[str] = ..., on_duplicate: _Optional[str] = ..., expires_seconds: _Optional[float] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., limit_key: _Optional[str] = ...) -> None: ...

class SubmitJobsRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ...) -> None: ...

class SubmitJobsResponse(_message.Message):
    __slots__ = ("inserted", "existing", "unknown", "holders")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    inserted: int
    existing: _containers.RepeatedScalarFieldContainer[int]
    unknown: _containers.RepeatedScalarFieldContainer[int]
    holders: _containers.RepeatedCompositeFieldContainer[KeyHolder]
    def __init__(self, inserted: _Optional[int] = ..., existing: _Optional[_Iterable[int]] = ..., unknown: _Optional[_Iterable[int]] = ..., holders: _Optional[_Iterable[_Union[KeyHolder, _Mapping]]] = ...) -> None: ...

class KeyHolder(_message.Message):
    __slots__ = ("place", "job_id", "replaced")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    place: int
    job_id: str
    replaced: bool
    def __init__(self, place: _Optional[int] = ..., job_id: _Optional[str] = ..., replaced: bool = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "queue", "topic", "status", "priority", "payload", "result", "headers", "tags", "attempts", "max_attempts", "timeout_seconds", "lease_seconds", "next_run_at", "lease_token", "locked_by", "lease_until", "cancel_requested", "last_worker", "last_outcome", "last_error", "submitted_at", "started_at", "completed_at", "progress", "schedule_id", "occurrence", "parent_id", "parent_step", "wait_kind", "wait_key", "updated_at", "crashes", "key", "key_for", "key_held", "key_until", "expires_at", "limit_key")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOCKED_BY_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    LAST_WORKER_FIELD_NUMBER: _ClassVar[int]
    LAST_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_KIND_FIELD_NUMBER: _ClassVar[int]
    WAIT_KEY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    CRASHES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_FOR_FIELD_NUMBER: _ClassVar[int]
    KEY_HELD_FIELD_NUMBER: _ClassVar[int]
    KEY_UNTIL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    id: str
    queue: str
    topic: str
    status: JobStatus
    priority: int
    payload: str
    result: str
    headers: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    attempts: int
    max_attempts: int
    timeout_seconds: float
    lease_seconds: float
    next_run_at: _timestamp_pb2.Timestamp
    lease_token: int
    locked_by: str
    lease_until: _timestamp_pb2.Timestamp
    cancel_requested: bool
    last_worker: str
    last_outcome: str
    last_error: str
    submitted_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    completed_at: _timestamp_pb2.Timestamp
    progress: str
    schedule_id: str
    occurrence: _timestamp_pb2.Timestamp
    parent_id: str
    parent_step: str
    wait_kind: StepKind
    wait_key: str
    updated_at: _timestamp_pb2.Timestamp
    crashes: int
    key: str
    key_for: str
    key_held: bool
    key_until: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    limit_key: str
    def __init__(self, id: _Optional[str] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., priority: _Optional[int] = ..., payload: _Optional[str] = ..., result: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., attempts: _Optional[int] = ..., max_attempts: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., next_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lease_token: _Optional[int] = ..., locked_by: _Optional[str] = ..., lease_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancel_requested: bool = ..., last_worker: _Optional[str] = ..., last_outcome: _Optional[str] = ..., last_error: _Optional[str] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., progress: _Optional[str] = ..., schedule_id: _Optional[str] = ..., occurrence: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parent_id: _Optional[str] = ..., parent_step: _Optional[str] = ..., wait_kind: _Optional[_Union[StepKind, str]] = ..., wait_key: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., crashes: _Optional[int] = ..., key: _Optional[str] = ..., key_for: _Optional[str] = ..., key_held: bool = ..., key_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., limit_key: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobsRequest(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetJobsResponse(_message.Message):
    __slots__ = ("jobs", "left_off")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OFF_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    left_off: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., left_off: _Optional[_Iterable[str]] = ...) -> None: ...

class JobFilter(_message.Message):
    __slots__ = ("statuses", "topic", "queue", "tag", "error", "since", "until", "parent_id", "parent_step", "topic_prefix", "payload", "worker_id", "schedule_id", "id_prefix", "id_suffix", "due", "workflow", "key", "holds_key", "outcome", "limit_key")
    class PayloadField(_message.Message):
        __slots__ = ("path", "value")
        PATH_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        path: str
        value: str
        def __init__(self, path: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_STEP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ID_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    WORKFLOW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDS_KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[JobStatus]
    topic: str
    queue: str
    tag: str
    error: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    parent_id: str
    parent_step: str
    topic_prefix: str
    payload: _containers.RepeatedCompositeFieldContainer[JobFilter.PayloadField]
    worker_id: str
    schedule_id: str
    id_prefix: str
    id_suffix: str
    due: bool
    workflow: bool
    key: str
    holds_key: bool
    outcome: str
    limit_key: str
    def __init__(self, statuses: _Optional[_Iterable[_Union[JobStatus, str]]] = ..., topic: _Optional[str] = ..., queue: _Optional[str] = ..., tag: _Optional[str] = ..., error: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parent_id: _Optional[str] = ..., parent_step: _Optional[str] = ..., topic_prefix: _Optional[str] = ..., payload: _Optional[_Iterable[_Union[JobFilter.PayloadField, _Mapping]]] = ..., worker_id: _Optional[str] = ..., schedule_id: _Optional[str] = ..., id_prefix: _Optional[str] = ..., id_suffix: _Optional[str] = ..., due: bool = ..., workflow: bool = ..., key: _Optional[str] = ..., holds_key: bool = ..., outcome: _Optional[str] = ..., limit_key: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("where", "limit", "before")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    where: JobFilter
    limit: int
    before: str
    def __init__(self, where: _Optional[_Union[JobFilter, _Mapping]] = ..., limit: _Optional[int] = ..., before: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "cut", "searched_to", "conditions")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_TO_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    cut: bool
    searched_to: str
    conditions: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., cut: bool = ..., searched_to: _Optional[str] = ..., conditions: _Optional[int] = ...) -> None: ...

class CountJobsByRequest(_message.Message):
    __slots__ = ("where", "by")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    where: JobFilter
    by: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, where: _Optional[_Union[JobFilter, _Mapping]] = ..., by: _Optional[_Iterable[str]] = ...) -> None: ...

class CountJobsByResponse(_message.Message):
    __slots__ = ("groups", "cut", "short", "conditions")
    class Value(_message.Message):
        __slots__ = ("text",)
        TEXT_FIELD_NUMBER: _ClassVar[int]
        text: str
        def __init__(self, text: _Optional[str] = ...) -> None: ...
    class Group(_message.Message):
        __slots__ = ("values", "jobs")
        VALUES_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        values: _containers.RepeatedCompositeFieldContainer[CountJobsByResponse.Value]
        jobs: int
        def __init__(self, values: _Optional[_Iterable[_Union[CountJobsByResponse.Value, _Mapping]]] = ..., jobs: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[CountJobsByResponse.Group]
    cut: bool
    short: bool
    conditions: int
    def __init__(self, groups: _Optional[_Iterable[_Union[CountJobsByResponse.Group, _Mapping]]] = ..., cut: bool = ..., short: bool = ..., conditions: _Optional[int] = ...) -> None: ...

class CountJobsRequest(_message.Message):
    __slots__ = ("where",)
    WHERE_FIELD_NUMBER: _ClassVar[int]
    where: JobFilter
    def __init__(self, where: _Optional[_Union[JobFilter, _Mapping]] = ...) -> None: ...

class CountJobsResponse(_message.Message):
    __slots__ = ("counts", "due", "conditions")
    class Count(_message.Message):
        __slots__ = ("status", "jobs", "at_least")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        AT_LEAST_FIELD_NUMBER: _ClassVar[int]
        status: JobStatus
        jobs: int
        at_least: bool
        def __init__(self, status: _Optional[_Union[JobStatus, str]] = ..., jobs: _Optional[int] = ..., at_least: bool = ...) -> None: ...
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[CountJobsResponse.Count]
    due: int
    conditions: int
    def __init__(self, counts: _Optional[_Iterable[_Union[CountJobsResponse.Count, _Mapping]]] = ..., due: _Optional[int] = ..., conditions: _Optional[int] = ...) -> None: ...

class ListFailuresRequest(_message.Message):
    __slots__ = ("job_id", "after", "limit", "before")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: int
    limit: int
    before: int
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("job_id", "lease_token", "attempt", "worker_id", "started_at", "ended_at", "error", "traceback")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: int
    attempt: int
    worker_id: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    error: str
    traceback: str
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[int] = ..., attempt: _Optional[int] = ..., worker_id: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class ListFailuresResponse(_message.Message):
    __slots__ = ("failures", "cut")
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    cut: bool
    def __init__(self, failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("name", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    detail: str
    def __init__(self, name: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class JobIds(_message.Message):
    __slots__ = ("job_ids", "fresh", "operator")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    fresh: bool
    operator: Operator
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., fresh: bool = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class EditJobRequest(_message.Message):
    __slots__ = ("job_id", "payload", "fresh", "operator")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    payload: str
    fresh: bool
    operator: Operator
    def __init__(self, job_id: _Optional[str] = ..., payload: _Optional[str] = ..., fresh: bool = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class JobActs(_message.Message):
    __slots__ = ("acts",)
    class Act(_message.Message):
        __slots__ = ("job_id", "done", "status")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        DONE_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        done: bool
        status: JobStatus
        def __init__(self, job_id: _Optional[str] = ..., done: bool = ..., status: _Optional[_Union[JobStatus, str]] = ...) -> None: ...
    ACTS_FIELD_NUMBER: _ClassVar[int]
    acts: _containers.RepeatedCompositeFieldContainer[JobActs.Act]
    def __init__(self, acts: _Optional[_Iterable[_Union[JobActs.Act, _Mapping]]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("id", "host", "pid", "queues", "topics", "slots", "running", "stuck", "state", "version", "started_at", "last_beat", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_BEAT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    pid: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    topics: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    running: int
    stuck: int
    state: str
    version: str
    started_at: _timestamp_pb2.Timestamp
    last_beat: _timestamp_pb2.Timestamp
    request: str
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., topics: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., running: _Optional[int] = ..., stuck: _Optional[int] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_beat: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., request: _Optional[str] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AskWorkersRequest(_message.Message):
    __slots__ = ("worker_ids", "request", "operator")
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    request: str
    operator: Operator
    def __init__(self, worker_ids: _Optional[_Iterable[str]] = ..., request: _Optional[str] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class GetBacklogRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBacklogResponse(_message.Message):
    __slots__ = ("lanes",)
    class Lane(_message.Message):
        __slots__ = ("queue", "topic", "due", "oldest", "at_least")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        DUE_FIELD_NUMBER: _ClassVar[int]
        OLDEST_FIELD_NUMBER: _ClassVar[int]
        AT_LEAST_FIELD_NUMBER: _ClassVar[int]
        queue: str
        topic: str
        due: int
        oldest: _timestamp_pb2.Timestamp
        at_least: bool
        def __init__(self, queue: _Optional[str] = ..., topic: _Optional[str] = ..., due: _Optional[int] = ..., oldest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., at_least: bool = ...) -> None: ...
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[GetBacklogResponse.Lane]
    def __init__(self, lanes: _Optional[_Iterable[_Union[GetBacklogResponse.Lane, _Mapping]]] = ...) -> None: ...

class GetRunningRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRunningResponse(_message.Message):
    __slots__ = ("lanes",)
    class Lane(_message.Message):
        __slots__ = ("queue", "topic", "running", "at_least")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        AT_LEAST_FIELD_NUMBER: _ClassVar[int]
        queue: str
        topic: str
        running: int
        at_least: bool
        def __init__(self, queue: _Optional[str] = ..., topic: _Optional[str] = ..., running: _Optional[int] = ..., at_least: bool = ...) -> None: ...
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[GetRunningResponse.Lane]
    def __init__(self, lanes: _Optional[_Iterable[_Union[GetRunningResponse.Lane, _Mapping]]] = ...) -> None: ...

class ListAuditLogRequest(_message.Message):
    __slots__ = ("limit", "since", "until", "actor", "before")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    limit: int
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    actor: str
    before: AuditKey
    def __init__(self, limit: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., actor: _Optional[str] = ..., before: _Optional[_Union[AuditKey, _Mapping]] = ...) -> None: ...

class AuditKey(_message.Message):
    __slots__ = ("at", "id")
    AT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    id: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...

class ListAuditLogResponse(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("at", "actor", "role", "claimed", "act", "affected", "detail", "id")
        AT_FIELD_NUMBER: _ClassVar[int]
        ACTOR_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        CLAIMED_FIELD_NUMBER: _ClassVar[int]
        ACT_FIELD_NUMBER: _ClassVar[int]
        AFFECTED_FIELD_NUMBER: _ClassVar[int]
        DETAIL_FIELD_NUMBER: _ClassVar[int]
        ID_FIELD_NUMBER: _ClassVar[int]
        at: _timestamp_pb2.Timestamp
        actor: str
        role: str
        claimed: str
        act: str
        affected: int
        detail: str
        id: str
        def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., actor: _Optional[str] = ..., role: _Optional[str] = ..., claimed: _Optional[str] = ..., act: _Optional[str] = ..., affected: _Optional[int] = ..., detail: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ListAuditLogResponse.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ListAuditLogResponse.Entry, _Mapping]]] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("slack_seconds",)
    SLACK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    slack_seconds: float
    def __init__(self, slack_seconds: _Optional[float] = ...) -> None: ...

class AuditResponse(_message.Message):
    __slots__ = ("running", "leaseless", "overspent", "overdue", "last_tick", "in_grace", "reasonless", "overslept", "untold")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LEASELESS_FIELD_NUMBER: _ClassVar[int]
    OVERSPENT_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    LAST_TICK_FIELD_NUMBER: _ClassVar[int]
    IN_GRACE_FIELD_NUMBER: _ClassVar[int]
    REASONLESS_FIELD_NUMBER: _ClassVar[int]
    OVERSLEPT_FIELD_NUMBER: _ClassVar[int]
    UNTOLD_FIELD_NUMBER: _ClassVar[int]
    running: int
    leaseless: int
    overspent: int
    overdue: int
    last_tick: _timestamp_pb2.Timestamp
    in_grace: bool
    reasonless: int
    overslept: int
    untold: int
    def __init__(self, running: _Optional[int] = ..., leaseless: _Optional[int] = ..., overspent: _Optional[int] = ..., overdue: _Optional[int] = ..., last_tick: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., in_grace: bool = ..., reasonless: _Optional[int] = ..., overslept: _Optional[int] = ..., untold: _Optional[int] = ...) -> None: ...

class GetTimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTimeResponse(_message.Message):
    __slots__ = ("now",)
    NOW_FIELD_NUMBER: _ClassVar[int]
    now: _timestamp_pb2.Timestamp
    def __init__(self, now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetServerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerResponse(_message.Message):
    __slots__ = ("version", "does_upkeep", "largest_batch", "largest_message", "draining", "refused_calls")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DOES_UPKEEP_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    LARGEST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CALLS_FIELD_NUMBER: _ClassVar[int]
    version: str
    does_upkeep: bool
    largest_batch: int
    largest_message: int
    draining: bool
    refused_calls: int
    def __init__(self, version: _Optional[str] = ..., does_upkeep: bool = ..., largest_batch: _Optional[int] = ..., largest_message: _Optional[int] = ..., draining: bool = ..., refused_calls: _Optional[int] = ...) -> None: ...

class CheckDatabaseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckDatabaseResponse(_message.Message):
    __slots__ = ("facts",)
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FACTS_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.ScalarMap[str, str]
    def __init__(self, facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "max_attempts", "backoff", "timeout_seconds", "lease_seconds", "limit_name", "limit_per", "limit_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_attempts: int
    backoff: Backoff
    timeout_seconds: float
    lease_seconds: float
    limit_name: str
    limit_per: str
    limit_default: str
    def __init__(self, name: _Optional[str] = ..., max_attempts: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., timeout_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., limit_name: _Optional[str] = ..., limit_per: _Optional[str] = ..., limit_default: _Optional[str] = ...) -> None: ...

class StreamJobsRequest(_message.Message):
    __slots__ = ("hello", "grant", "withdraw")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    grant: Grant
    withdraw: Withdraw
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "queues", "topics", "wants_offers", "reads_columns")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    WANTS_OFFERS_FIELD_NUMBER: _ClassVar[int]
    READS_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    wants_offers: bool
    reads_columns: bool
    def __init__(self, worker_id: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., wants_offers: bool = ..., reads_columns: bool = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("id", "credits", "queues", "wait_seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: int
    credits: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    wait_seconds: float
    def __init__(self, id: _Optional[int] = ..., credits: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamJobsResponse(_message.Message):
    __slots__ = ("batch", "offer", "go_away")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    offer: Offer
    go_away: GoAway
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("grant_id", "assignments", "lost_answers", "columns")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    LOST_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    grant_id: int
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    lost_answers: int
    columns: _containers.RepeatedCompositeFieldContainer[AssignmentColumns]
    def __init__(self, grant_id: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., lost_answers: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[AssignmentColumns, _Mapping]]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("job_id", "topic", "queue", "priority", "payload", "attempt", "max_attempts", "lease_token", "lease_seconds", "timeout_seconds", "headers", "next_run_at", "submitted_at", "schedule_id", "occurrence", "parent_id")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    topic: str
    queue: str
    priority: int
    payload: str
    attempt: int
    max_attempts: int
    lease_token: int
    lease_seconds: float
    timeout_seconds: float
    headers: _containers.ScalarMap[str, str]
    next_run_at: _timestamp_pb2.Timestamp
    submitted_at: _timestamp_pb2.Timestamp
    schedule_id: str
    occurrence: _timestamp_pb2.Timestamp
    parent_id: str
    def __init__(self, job_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., payload: _Optional[str] = ..., attempt: _Optional[int] = ..., max_attempts: _Optional[int] = ..., lease_token: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., timeout_seconds: _Optional[float] = ..., headers: _Optional[_Mapping[str, str]] = ..., next_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., schedule_id: _Optional[str] = ..., occurrence: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parent_id: _Optional[str] = ...) -> None: ...

class AssignmentColumns(_message.Message):
    __slots__ = ("shared", "job_ids", "lease_tokens", "payloads", "next_run_at", "submitted_at")
    SHARED_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    shared: Assignment
    job_ids: bytes
    lease_tokens: _containers.RepeatedScalarFieldContainer[int]
    payloads: _containers.RepeatedScalarFieldContainer[str]
    next_run_at: _containers.RepeatedScalarFieldContainer[int]
    submitted_at: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shared: _Optional[_Union[Assignment, _Mapping]] = ..., job_ids: _Optional[bytes] = ..., lease_tokens: _Optional[_Iterable[int]] = ..., payloads: _Optional[_Iterable[str]] = ..., next_run_at: _Optional[_Iterable[int]] = ..., submitted_at: _Optional[_Iterable[int]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("job_id", "lease_token", "worker_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: int
    worker_id: str
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class Succeeded(_message.Message):
    __slots__ = ("result", "forget_checkpoints")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FORGET_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    result: str
    forget_checkpoints: bool
    def __init__(self, result: _Optional[str] = ..., forget_checkpoints: bool = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "traceback", "delay_seconds", "final")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    error: str
    traceback: str
    delay_seconds: float
    final: bool
    def __init__(self, error: _Optional[str] = ..., traceback: _Optional[str] = ..., delay_seconds: _Optional[float] = ..., final: bool = ...) -> None: ...

class Snoozed(_message.Message):
    __slots__ = ("delay_seconds",)
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    delay_seconds: float
    def __init__(self, delay_seconds: _Optional[float] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("wait", "checkpoint")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    wait: Wait
    checkpoint: Checkpoint
    def __init__(self, wait: _Optional[_Union[Wait, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("lease", "succeeded", "failed", "snoozed", "cancelled", "released", "waiting", "is_child")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IS_CHILD_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    succeeded: Succeeded
    failed: Failed
    snoozed: Snoozed
    cancelled: Cancelled
    released: Released
    waiting: Waiting
    is_child: bool
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., succeeded: _Optional[_Union[Succeeded, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., snoozed: _Optional[_Union[Snoozed, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., is_child: bool = ...) -> None: ...

class ReportResultResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportResultsRequest(_message.Message):
    __slots__ = ("reports", "succeeded", "skip_locked")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    SKIP_LOCKED_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    succeeded: SucceededColumns
    skip_locked: bool
    def __init__(self, reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., succeeded: _Optional[_Union[SucceededColumns, _Mapping]] = ..., skip_locked: bool = ...) -> None: ...

class SucceededColumns(_message.Message):
    __slots__ = ("worker_id", "job_ids", "lease_tokens", "results", "are_children")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ARE_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    job_ids: bytes
    lease_tokens: _containers.RepeatedScalarFieldContainer[int]
    results: _containers.RepeatedScalarFieldContainer[str]
    are_children: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, worker_id: _Optional[str] = ..., job_ids: _Optional[bytes] = ..., lease_tokens: _Optional[_Iterable[int]] = ..., results: _Optional[_Iterable[str]] = ..., are_children: _Optional[_Iterable[bool]] = ...) -> None: ...

class ReportResultsResponse(_message.Message):
    __slots__ = ("accepted", "locked", "cancelled")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    locked: _containers.RepeatedScalarFieldContainer[int]
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, accepted: _Optional[_Iterable[bool]] = ..., locked: _Optional[_Iterable[int]] = ..., cancelled: _Optional[_Iterable[int]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("answers",)
    class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ANSWER_UNSPECIFIED: _ClassVar[HeartbeatResponse.Answer]
        ANSWER_OK: _ClassVar[HeartbeatResponse.Answer]
        ANSWER_CANCEL: _ClassVar[HeartbeatResponse.Answer]
        ANSWER_LOST: _ClassVar[HeartbeatResponse.Answer]
        ANSWER_UNKNOWN: _ClassVar[HeartbeatResponse.Answer]
    ANSWER_UNSPECIFIED: HeartbeatResponse.Answer
    ANSWER_OK: HeartbeatResponse.Answer
    ANSWER_CANCEL: HeartbeatResponse.Answer
    ANSWER_LOST: HeartbeatResponse.Answer
    ANSWER_UNKNOWN: HeartbeatResponse.Answer
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedScalarFieldContainer[HeartbeatResponse.Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[HeartbeatResponse.Answer, str]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("worker_id", "asked_to_stop")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    asked_to_stop: bool
    def __init__(self, worker_id: _Optional[str] = ..., asked_to_stop: bool = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "asked_to_stop")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ASKED_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    asked_to_stop: bool
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., asked_to_stop: bool = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("lease", "progress")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    progress: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., progress: _Optional[str] = ...) -> None: ...

class ProgressResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: str
    def __init__(self, request: _Optional[str] = ...) -> None: ...

class RetireWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RetireWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("name", "nth", "seq", "kind", "state", "input_hash", "value", "error", "tries", "took_seconds", "until", "started_at", "ended_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NTH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INPUT_HASH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    TOOK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    nth: int
    seq: int
    kind: StepKind
    state: StepState
    input_hash: str
    value: str
    error: str
    tries: int
    took_seconds: float
    until: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., nth: _Optional[int] = ..., seq: _Optional[int] = ..., kind: _Optional[_Union[StepKind, str]] = ..., state: _Optional[_Union[StepState, str]] = ..., input_hash: _Optional[str] = ..., value: _Optional[str] = ..., error: _Optional[str] = ..., tries: _Optional[int] = ..., took_seconds: _Optional[float] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("kind", "key", "delay_seconds", "until", "enough", "too_many")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ENOUGH_FIELD_NUMBER: _ClassVar[int]
    TOO_MANY_FIELD_NUMBER: _ClassVar[int]
    kind: StepKind
    key: str
    delay_seconds: float
    until: _timestamp_pb2.Timestamp
    enough: int
    too_many: int
    def __init__(self, kind: _Optional[_Union[StepKind, str]] = ..., key: _Optional[str] = ..., delay_seconds: _Optional[float] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., enough: _Optional[int] = ..., too_many: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("records",)
    class Record(_message.Message):
        __slots__ = ("lease", "checkpoint")
        LEASE_FIELD_NUMBER: _ClassVar[int]
        CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
        lease: Lease
        checkpoint: Checkpoint
        def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[CheckpointRequest.Record]
    def __init__(self, records: _Optional[_Iterable[_Union[CheckpointRequest.Record, _Mapping]]] = ...) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, accepted: _Optional[_Iterable[bool]] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("job_id", "skip", "limit")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    skip: int
    limit: int
    def __init__(self, job_id: _Optional[str] = ..., skip: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("checkpoints", "cut", "generation", "now")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    cut: bool
    generation: int
    now: _timestamp_pb2.Timestamp
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., cut: bool = ..., generation: _Optional[int] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FanOutRequest(_message.Message):
    __slots__ = ("lease", "jobs")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ...) -> None: ...

class FanOutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOutcomesRequest(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class JobOutcome(_message.Message):
    __slots__ = ("job_id", "topic", "status", "result", "error", "outcome")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    topic: str
    status: JobStatus
    result: str
    error: str
    outcome: str
    def __init__(self, job_id: _Optional[str] = ..., topic: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., result: _Optional[str] = ..., error: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class GetOutcomesResponse(_message.Message):
    __slots__ = ("outcomes", "left_off")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OFF_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[JobOutcome]
    left_off: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[JobOutcome, _Mapping]]] = ..., left_off: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("lease", "job_id")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    job_id: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., job_id: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: JobOutcome
    def __init__(self, outcome: _Optional[_Union[JobOutcome, _Mapping]] = ...) -> None: ...

class SignalRequest(_message.Message):
    __slots__ = ("id", "job_id", "name", "payload")
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    job_id: str
    name: str
    payload: str
    def __init__(self, id: _Optional[str] = ..., job_id: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[str] = ...) -> None: ...

class SignalResponse(_message.Message):
    __slots__ = ("stored", "status")
    STORED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    status: JobStatus
    def __init__(self, stored: bool = ..., status: _Optional[_Union[JobStatus, str]] = ...) -> None: ...

class TakeSignalRequest(_message.Message):
    __slots__ = ("lease", "name", "checkpoint")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    name: str
    checkpoint: Checkpoint
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., name: _Optional[str] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class TakeSignalResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class Emission(_message.Message):
    __slots__ = ("lease", "run", "first", "values")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    run: int
    first: int
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., run: _Optional[int] = ..., first: _Optional[int] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class EmitRequest(_message.Message):
    __slots__ = ("emissions",)
    EMISSIONS_FIELD_NUMBER: _ClassVar[int]
    emissions: _containers.RepeatedCompositeFieldContainer[Emission]
    def __init__(self, emissions: _Optional[_Iterable[_Union[Emission, _Mapping]]] = ...) -> None: ...

class EmitResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, accepted: _Optional[_Iterable[bool]] = ...) -> None: ...

class StreamItem(_message.Message):
    __slots__ = ("position", "run", "value", "emitted_at")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    position: int
    run: int
    value: str
    emitted_at: _timestamp_pb2.Timestamp
    def __init__(self, position: _Optional[int] = ..., run: _Optional[int] = ..., value: _Optional[str] = ..., emitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadStreamRequest(_message.Message):
    __slots__ = ("job_id", "after", "limit", "newest")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: int
    limit: int
    newest: bool
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., newest: bool = ...) -> None: ...

class ReadStreamResponse(_message.Message):
    __slots__ = ("items", "status")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[StreamItem]
    status: JobStatus
    def __init__(self, items: _Optional[_Iterable[_Union[StreamItem, _Mapping]]] = ..., status: _Optional[_Union[JobStatus, str]] = ...) -> None: ...

class ScheduleSpec(_message.Message):
    __slots__ = ("topic", "payload", "cron", "zone", "every_micros", "at", "catch_up", "limit", "overlap", "jitter_seconds", "start", "end", "queue", "priority", "max_attempts", "backoff", "timeout_seconds", "lease_seconds", "headers", "tags", "key", "key_for", "on_duplicate", "expires_seconds")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    EVERY_MICROS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    JITTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_FOR_FIELD_NUMBER: _ClassVar[int]
    ON_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    payload: str
    cron: str
    zone: str
    every_micros: int
    at: _timestamp_pb2.Timestamp
    catch_up: CatchUp
    limit: int
    overlap: Overlap
    jitter_seconds: float
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    queue: str
    priority: int
    max_attempts: int
    backoff: Backoff
    timeout_seconds: float
    lease_seconds: float
    headers: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    key: str
    key_for: str
    on_duplicate: str
    expires_seconds: float
    def __init__(self, topic: _Optional[str] = ..., payload: _Optional[str] = ..., cron: _Optional[str] = ..., zone: _Optional[str] = ..., every_micros: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, str]] = ..., limit: _Optional[int] = ..., overlap: _Optional[_Union[Overlap, str]] = ..., jitter_seconds: _Optional[float] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queue: _Optional[str] = ..., priority: _Optional[int] = ..., max_attempts: _Optional[int] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., timeout_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., headers: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ..., key_for: _Optional[str] = ..., on_duplicate: _Optional[str] = ..., expires_seconds: _Optional[float] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("id", "app", "name", "spec", "spec_json", "state", "error", "anchor", "next_run_at", "last_occurrence", "last_fired_at", "missed", "revision", "created_at", "updated_at", "declared")
    ID_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIRED_AT_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    id: str
    app: str
    name: str
    spec: ScheduleSpec
    spec_json: str
    state: ScheduleState
    error: str
    anchor: _timestamp_pb2.Timestamp
    next_run_at: _timestamp_pb2.Timestamp
    last_occurrence: _timestamp_pb2.Timestamp
    last_fired_at: _timestamp_pb2.Timestamp
    missed: int
    revision: int
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    declared: bool
    def __init__(self, id: _Optional[str] = ..., app: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., spec_json: _Optional[str] = ..., state: _Optional[_Union[ScheduleState, str]] = ..., error: _Optional[str] = ..., anchor: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_occurrence: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_fired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., missed: _Optional[int] = ..., revision: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., declared: bool = ...) -> None: ...

class ScheduleName(_message.Message):
    __slots__ = ("app", "name", "operator")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    operator: Operator
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("app", "name", "id")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    id: str
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class ScheduleVersion(_message.Message):
    __slots__ = ("id", "revision")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: int
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class PutScheduleRequest(_message.Message):
    __slots__ = ("app", "name", "spec", "declared", "seen", "operator")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    spec: ScheduleSpec
    declared: bool
    seen: ScheduleVersion
    operator: Operator
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[ScheduleSpec, _Mapping]] = ..., declared: bool = ..., seen: _Optional[_Union[ScheduleVersion, _Mapping]] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class PutScheduleResponse(_message.Message):
    __slots__ = ("schedule", "effect")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    effect: str
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., effect: _Optional[str] = ...) -> None: ...

class SyncSchedulesRequest(_message.Message):
    __slots__ = ("app", "schedules", "pause_removed", "partial", "operator")
    class Declared(_message.Message):
        __slots__ = ("name", "spec")
        NAME_FIELD_NUMBER: _ClassVar[int]
        SPEC_FIELD_NUMBER: _ClassVar[int]
        name: str
        spec: ScheduleSpec
        def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[ScheduleSpec, _Mapping]] = ...) -> None: ...
    APP_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_REMOVED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    app: str
    schedules: _containers.RepeatedCompositeFieldContainer[SyncSchedulesRequest.Declared]
    pause_removed: bool
    partial: bool
    operator: Operator
    def __init__(self, app: _Optional[str] = ..., schedules: _Optional[_Iterable[_Union[SyncSchedulesRequest.Declared, _Mapping]]] = ..., pause_removed: bool = ..., partial: bool = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class SyncSchedulesResponse(_message.Message):
    __slots__ = ("created", "changed", "unchanged", "removed")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    created: _containers.RepeatedScalarFieldContainer[str]
    changed: _containers.RepeatedScalarFieldContainer[str]
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, created: _Optional[_Iterable[str]] = ..., changed: _Optional[_Iterable[str]] = ..., unchanged: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("app", "limit", "after_app", "after_name", "state", "due_before")
    APP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_APP_FIELD_NUMBER: _ClassVar[int]
    AFTER_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DUE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    app: str
    limit: int
    after_app: str
    after_name: str
    state: ScheduleState
    due_before: _timestamp_pb2.Timestamp
    def __init__(self, app: _Optional[str] = ..., limit: _Optional[int] = ..., after_app: _Optional[str] = ..., after_name: _Optional[str] = ..., state: _Optional[_Union[ScheduleState, str]] = ..., due_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "cut")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    cut: bool
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunScheduleNowRequest(_message.Message):
    __slots__ = ("app", "name", "job_id", "operator")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    job_id: str
    operator: Operator
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ..., job_id: _Optional[str] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class RunScheduleNowResponse(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListScheduleJobsRequest(_message.Message):
    __slots__ = ("schedule_id", "limit", "before", "before_id")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    schedule_id: str
    limit: int
    before: _timestamp_pb2.Timestamp
    before_id: str
    def __init__(self, schedule_id: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., before_id: _Optional[str] = ...) -> None: ...

class ListScheduleJobsResponse(_message.Message):
    __slots__ = ("jobs", "cut")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    cut: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class ListScheduleFiresResponse(_message.Message):
    __slots__ = ("fires", "cut")
    class Fire(_message.Message):
        __slots__ = ("job_id", "occurrence", "fired_at", "status")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        OCCURRENCE_FIELD_NUMBER: _ClassVar[int]
        FIRED_AT_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        occurrence: _timestamp_pb2.Timestamp
        fired_at: _timestamp_pb2.Timestamp
        status: JobStatus
        def __init__(self, job_id: _Optional[str] = ..., occurrence: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., status: _Optional[_Union[JobStatus, str]] = ...) -> None: ...
    FIRES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    fires: _containers.RepeatedCompositeFieldContainer[ListScheduleFiresResponse.Fire]
    cut: bool
    def __init__(self, fires: _Optional[_Iterable[_Union[ListScheduleFiresResponse.Fire, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class BulkAct(_message.Message):
    __slots__ = ("kind", "fresh", "at", "delay_seconds", "priority", "queue")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    kind: BulkKind
    fresh: bool
    at: _timestamp_pb2.Timestamp
    delay_seconds: float
    priority: int
    queue: str
    def __init__(self, kind: _Optional[_Union[BulkKind, str]] = ..., fresh: bool = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., delay_seconds: _Optional[float] = ..., priority: _Optional[int] = ..., queue: _Optional[str] = ...) -> None: ...

class StartBulkRequest(_message.Message):
    __slots__ = ("id", "act", "where", "operator", "conditions")
    ID_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    act: BulkAct
    where: JobFilter
    operator: Operator
    conditions: int
    def __init__(self, id: _Optional[str] = ..., act: _Optional[_Union[BulkAct, _Mapping]] = ..., where: _Optional[_Union[JobFilter, _Mapping]] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ..., conditions: _Optional[int] = ...) -> None: ...

class Bulk(_message.Message):
    __slots__ = ("id", "kind", "arguments", "filter", "actor", "role", "claimed", "state", "cursor", "done", "skipped", "total", "at_least", "started_at", "updated_at", "ended_at", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: BulkKind
    arguments: str
    filter: str
    actor: str
    role: str
    claimed: str
    state: BulkState
    cursor: str
    done: int
    skipped: int
    total: int
    at_least: bool
    started_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    error: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[BulkKind, str]] = ..., arguments: _Optional[str] = ..., filter: _Optional[str] = ..., actor: _Optional[str] = ..., role: _Optional[str] = ..., claimed: _Optional[str] = ..., state: _Optional[_Union[BulkState, str]] = ..., cursor: _Optional[str] = ..., done: _Optional[int] = ..., skipped: _Optional[int] = ..., total: _Optional[int] = ..., at_least: bool = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class MaybeBulk(_message.Message):
    __slots__ = ("bulk",)
    BULK_FIELD_NUMBER: _ClassVar[int]
    bulk: Bulk
    def __init__(self, bulk: _Optional[_Union[Bulk, _Mapping]] = ...) -> None: ...

class BulkId(_message.Message):
    __slots__ = ("id", "operator")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    operator: Operator
    def __init__(self, id: _Optional[str] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class AdvanceBulkRequest(_message.Message):
    __slots__ = ("performer", "id")
    PERFORMER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    performer: str
    id: str
    def __init__(self, performer: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class ListBulkRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListBulkResponse(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Bulk]
    def __init__(self, operations: _Optional[_Iterable[_Union[Bulk, _Mapping]]] = ...) -> None: ...

class ListBulkSkipsResponse(_message.Message):
    __slots__ = ("skips",)
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[ListBulkSkipsResponse.Reason]
        REASON_STATUS: _ClassVar[ListBulkSkipsResponse.Reason]
        REASON_KEY: _ClassVar[ListBulkSkipsResponse.Reason]
        REASON_FAMILY: _ClassVar[ListBulkSkipsResponse.Reason]
        REASON_LOCKED: _ClassVar[ListBulkSkipsResponse.Reason]
        REASON_CHANGED: _ClassVar[ListBulkSkipsResponse.Reason]
    REASON_UNSPECIFIED: ListBulkSkipsResponse.Reason
    REASON_STATUS: ListBulkSkipsResponse.Reason
    REASON_KEY: ListBulkSkipsResponse.Reason
    REASON_FAMILY: ListBulkSkipsResponse.Reason
    REASON_LOCKED: ListBulkSkipsResponse.Reason
    REASON_CHANGED: ListBulkSkipsResponse.Reason
    class Skip(_message.Message):
        __slots__ = ("job_id", "status", "reason", "holder")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        HOLDER_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        status: JobStatus
        reason: ListBulkSkipsResponse.Reason
        holder: str
        def __init__(self, job_id: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., reason: _Optional[_Union[ListBulkSkipsResponse.Reason, str]] = ..., holder: _Optional[str] = ...) -> None: ...
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    skips: _containers.RepeatedCompositeFieldContainer[ListBulkSkipsResponse.Skip]
    def __init__(self, skips: _Optional[_Iterable[_Union[ListBulkSkipsResponse.Skip, _Mapping]]] = ...) -> None: ...

class ChangeJobsRequest(_message.Message):
    __slots__ = ("job_ids", "act", "operator")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    act: BulkAct
    operator: Operator
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., act: _Optional[_Union[BulkAct, _Mapping]] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("counts", "seconds")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Rollup(_message.Message):
    __slots__ = ("at", "queue", "topic", "submitted", "started", "succeeded", "failed", "dead_lettered", "cancelled", "wait", "run", "expired")
    AT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    queue: str
    topic: str
    submitted: int
    started: int
    succeeded: int
    failed: int
    dead_lettered: int
    cancelled: int
    wait: Histogram
    run: Histogram
    expired: int
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ..., submitted: _Optional[int] = ..., started: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., cancelled: _Optional[int] = ..., wait: _Optional[_Union[Histogram, _Mapping]] = ..., run: _Optional[_Union[Histogram, _Mapping]] = ..., expired: _Optional[int] = ...) -> None: ...

class ErrorRollup(_message.Message):
    __slots__ = ("at", "queue", "topic", "error", "count", "dead_lettered", "last_at", "message")
    AT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    LAST_AT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    queue: str
    topic: str
    error: str
    count: int
    dead_lettered: int
    last_at: _timestamp_pb2.Timestamp
    message: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ..., error: _Optional[str] = ..., count: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., last_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class RecordStatsRequest(_message.Message):
    __slots__ = ("recorder", "rollups", "errors")
    RECORDER_FIELD_NUMBER: _ClassVar[int]
    ROLLUPS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    recorder: str
    rollups: _containers.RepeatedCompositeFieldContainer[Rollup]
    errors: _containers.RepeatedCompositeFieldContainer[ErrorRollup]
    def __init__(self, recorder: _Optional[str] = ..., rollups: _Optional[_Iterable[_Union[Rollup, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[ErrorRollup, _Mapping]]] = ...) -> None: ...

class RecordStatsResponse(_message.Message):
    __slots__ = ("now",)
    NOW_FIELD_NUMBER: _ClassVar[int]
    now: _timestamp_pb2.Timestamp
    def __init__(self, now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetSeriesRequest(_message.Message):
    __slots__ = ("since", "until", "step_seconds", "queue", "topic", "by_queue", "by_topic")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BY_QUEUE_FIELD_NUMBER: _ClassVar[int]
    BY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    step_seconds: int
    queue: str
    topic: str
    by_queue: bool
    by_topic: bool
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step_seconds: _Optional[int] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ..., by_queue: bool = ..., by_topic: bool = ...) -> None: ...

class GetSeriesResponse(_message.Message):
    __slots__ = ("since", "until", "step_seconds", "rollups", "cut", "span_seconds")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROLLUPS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SPAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    step_seconds: int
    rollups: _containers.RepeatedCompositeFieldContainer[Rollup]
    cut: bool
    span_seconds: int
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step_seconds: _Optional[int] = ..., rollups: _Optional[_Iterable[_Union[Rollup, _Mapping]]] = ..., cut: bool = ..., span_seconds: _Optional[int] = ...) -> None: ...

class GetTotalsRequest(_message.Message):
    __slots__ = ("since", "until", "queue", "topic")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    queue: str
    topic: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetTotalsResponse(_message.Message):
    __slots__ = ("rollups", "cut")
    ROLLUPS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    rollups: _containers.RepeatedCompositeFieldContainer[Rollup]
    cut: bool
    def __init__(self, rollups: _Optional[_Iterable[_Union[Rollup, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class ListErrorsRequest(_message.Message):
    __slots__ = ("since", "until", "limit", "queue", "topic")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    limit: int
    queue: str
    topic: str
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., limit: _Optional[int] = ..., queue: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ListErrorsResponse(_message.Message):
    __slots__ = ("errors", "cut")
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    errors: _containers.RepeatedCompositeFieldContainer[ErrorRollup]
    cut: bool
    def __init__(self, errors: _Optional[_Iterable[_Union[ErrorRollup, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class ControlName(_message.Message):
    __slots__ = ("scope", "name", "operator")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    name: str
    operator: Operator
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., name: _Optional[str] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class Rate(_message.Message):
    __slots__ = ("count", "per_seconds", "burst")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    count: int
    per_seconds: float
    burst: int
    def __init__(self, count: _Optional[int] = ..., per_seconds: _Optional[float] = ..., burst: _Optional[int] = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("running", "rate", "age_seconds", "sequential", "weights")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENTIAL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    running: int
    rate: Rate
    age_seconds: float
    sequential: bool
    weights: _containers.ScalarMap[str, int]
    def __init__(self, running: _Optional[int] = ..., rate: _Optional[_Union[Rate, _Mapping]] = ..., age_seconds: _Optional[float] = ..., sequential: bool = ..., weights: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("scope", "name", "paused", "paused_at", "paused_by", "declared", "override", "updated_at")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    name: str
    paused: bool
    paused_at: _timestamp_pb2.Timestamp
    paused_by: str
    declared: Numbers
    override: Numbers
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., name: _Optional[str] = ..., paused: bool = ..., paused_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused_by: _Optional[str] = ..., declared: _Optional[_Union[Numbers, _Mapping]] = ..., override: _Optional[_Union[Numbers, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListControlsRequest(_message.Message):
    __slots__ = ("scope", "limit", "after_scope", "after_name")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_SCOPE_FIELD_NUMBER: _ClassVar[int]
    AFTER_NAME_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    limit: int
    after_scope: ControlScope
    after_name: str
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., limit: _Optional[int] = ..., after_scope: _Optional[_Union[ControlScope, str]] = ..., after_name: _Optional[str] = ...) -> None: ...

class ListControlsResponse(_message.Message):
    __slots__ = ("controls", "cut")
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    controls: _containers.RepeatedCompositeFieldContainer[Control]
    cut: bool
    def __init__(self, controls: _Optional[_Iterable[_Union[Control, _Mapping]]] = ..., cut: bool = ...) -> None: ...

class OverrideControlRequest(_message.Message):
    __slots__ = ("scope", "name", "numbers", "fields", "operator")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    name: str
    numbers: Numbers
    fields: _containers.RepeatedScalarFieldContainer[str]
    operator: Operator
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., name: _Optional[str] = ..., numbers: _Optional[_Union[Numbers, _Mapping]] = ..., fields: _Optional[_Iterable[str]] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class DeclareControlsRequest(_message.Message):
    __slots__ = ("scope", "declared")
    class Declared(_message.Message):
        __slots__ = ("name", "numbers")
        NAME_FIELD_NUMBER: _ClassVar[int]
        NUMBERS_FIELD_NUMBER: _ClassVar[int]
        name: str
        numbers: Numbers
        def __init__(self, name: _Optional[str] = ..., numbers: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    declared: _containers.RepeatedCompositeFieldContainer[DeclareControlsRequest.Declared]
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., declared: _Optional[_Iterable[_Union[DeclareControlsRequest.Declared, _Mapping]]] = ...) -> None: ...

class DeclareControlsResponse(_message.Message):
    __slots__ = ("changed", "unchanged")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: _containers.RepeatedScalarFieldContainer[str]
    unchanged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changed: _Optional[_Iterable[str]] = ..., unchanged: _Optional[_Iterable[str]] = ...) -> None: ...

class GetLimitUseRequest(_message.Message):
    __slots__ = ("name", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    keys: int
    def __init__(self, name: _Optional[str] = ..., keys: _Optional[int] = ...) -> None: ...

class LimitUse(_message.Message):
    __slots__ = ("running", "waiting", "keys", "at_least")
    class Key(_message.Message):
        __slots__ = ("key", "running", "waiting", "holders", "tat")
        KEY_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        WAITING_FIELD_NUMBER: _ClassVar[int]
        HOLDERS_FIELD_NUMBER: _ClassVar[int]
        TAT_FIELD_NUMBER: _ClassVar[int]
        key: str
        running: int
        waiting: int
        holders: _containers.RepeatedScalarFieldContainer[str]
        tat: _timestamp_pb2.Timestamp
        def __init__(self, key: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., holders: _Optional[_Iterable[str]] = ..., tat: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    keys: _containers.RepeatedCompositeFieldContainer[LimitUse.Key]
    at_least: bool
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[LimitUse.Key, _Mapping]]] = ..., at_least: bool = ...) -> None: ...

class GetRatesRequest(_message.Message):
    __slots__ = ("scope", "keys")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    scope: ControlScope
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scope: _Optional[_Union[ControlScope, str]] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRatesResponse(_message.Message):
    __slots__ = ("rates",)
    class Rate(_message.Message):
        __slots__ = ("key", "tat")
        KEY_FIELD_NUMBER: _ClassVar[int]
        TAT_FIELD_NUMBER: _ClassVar[int]
        key: str
        tat: _timestamp_pb2.Timestamp
        def __init__(self, key: _Optional[str] = ..., tat: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    RATES_FIELD_NUMBER: _ClassVar[int]
    rates: _containers.RepeatedCompositeFieldContainer[GetRatesResponse.Rate]
    def __init__(self, rates: _Optional[_Iterable[_Union[GetRatesResponse.Rate, _Mapping]]] = ...) -> None: ...

class WatchdogRequest(_message.Message):
    __slots__ = ("tick_seconds", "grace_seconds", "limit")
    TICK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tick_seconds: float
    grace_seconds: float
    limit: int
    def __init__(self, tick_seconds: _Optional[float] = ..., grace_seconds: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class WatchdogResponse(_message.Message):
    __slots__ = ("reaped", "in_grace")
    class Reaped(_message.Message):
        __slots__ = ("job_id", "topic", "status", "worker_id", "queue", "attempt")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        WORKER_ID_FIELD_NUMBER: _ClassVar[int]
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        topic: str
        status: JobStatus
        worker_id: str
        queue: str
        attempt: int
        def __init__(self, job_id: _Optional[str] = ..., topic: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., worker_id: _Optional[str] = ..., queue: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...
    REAPED_FIELD_NUMBER: _ClassVar[int]
    IN_GRACE_FIELD_NUMBER: _ClassVar[int]
    reaped: _containers.RepeatedCompositeFieldContainer[WatchdogResponse.Reaped]
    in_grace: bool
    def __init__(self, reaped: _Optional[_Iterable[_Union[WatchdogResponse.Reaped, _Mapping]]] = ..., in_grace: bool = ...) -> None: ...

class ListDueSchedulesRequest(_message.Message):
    __slots__ = ("limit", "skip")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    limit: int
    skip: int
    def __init__(self, limit: _Optional[int] = ..., skip: _Optional[int] = ...) -> None: ...

class ListDueSchedulesResponse(_message.Message):
    __slots__ = ("schedules", "next_run_at", "now")
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    NEXT_RUN_AT_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    next_run_at: _timestamp_pb2.Timestamp
    now: _timestamp_pb2.Timestamp
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ..., next_run_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FireSchedulesRequest(_message.Message):
    __slots__ = ("fires",)
    class Fire(_message.Message):
        __slots__ = ("schedule", "occurrences", "missed", "next", "jobs", "overlap")
        SCHEDULE_FIELD_NUMBER: _ClassVar[int]
        OCCURRENCES_FIELD_NUMBER: _ClassVar[int]
        MISSED_FIELD_NUMBER: _ClassVar[int]
        NEXT_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        OVERLAP_FIELD_NUMBER: _ClassVar[int]
        schedule: Schedule
        occurrences: _containers.RepeatedCompositeFieldContainer[_timestamp_pb2.Timestamp]
        missed: int
        next: _timestamp_pb2.Timestamp
        jobs: _containers.RepeatedCompositeFieldContainer[NewJob]
        overlap: Overlap
        def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., occurrences: _Optional[_Iterable[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]]] = ..., missed: _Optional[int] = ..., next: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[NewJob, _Mapping]]] = ..., overlap: _Optional[_Union[Overlap, str]] = ...) -> None: ...
    FIRES_FIELD_NUMBER: _ClassVar[int]
    fires: _containers.RepeatedCompositeFieldContainer[FireSchedulesRequest.Fire]
    def __init__(self, fires: _Optional[_Iterable[_Union[FireSchedulesRequest.Fire, _Mapping]]] = ...) -> None: ...

class FireSchedulesResponse(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SetScheduleErrorRequest(_message.Message):
    __slots__ = ("schedule", "reason")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    reason: str
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SetScheduleErrorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeTurnRequest(_message.Message):
    __slots__ = ("length_seconds",)
    LENGTH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    length_seconds: float
    def __init__(self, length_seconds: _Optional[float] = ...) -> None: ...

class TakeTurnResponse(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    def __init__(self, taken: bool = ...) -> None: ...

class PruneJobsRequest(_message.Message):
    __slots__ = ("ages", "limit", "operator")
    class Age(_message.Message):
        __slots__ = ("status", "seconds", "since")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        SINCE_FIELD_NUMBER: _ClassVar[int]
        status: JobStatus
        seconds: float
        since: _timestamp_pb2.Timestamp
        def __init__(self, status: _Optional[_Union[JobStatus, str]] = ..., seconds: _Optional[float] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    AGES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ages: _containers.RepeatedCompositeFieldContainer[PruneJobsRequest.Age]
    limit: int
    operator: Operator
    def __init__(self, ages: _Optional[_Iterable[_Union[PruneJobsRequest.Age, _Mapping]]] = ..., limit: _Optional[int] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class PruneJobsResponse(_message.Message):
    __slots__ = ("removed",)
    class Removed(_message.Message):
        __slots__ = ("status", "jobs", "reached")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        JOBS_FIELD_NUMBER: _ClassVar[int]
        REACHED_FIELD_NUMBER: _ClassVar[int]
        status: JobStatus
        jobs: int
        reached: _timestamp_pb2.Timestamp
        def __init__(self, status: _Optional[_Union[JobStatus, str]] = ..., jobs: _Optional[int] = ..., reached: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedCompositeFieldContainer[PruneJobsResponse.Removed]
    def __init__(self, removed: _Optional[_Iterable[_Union[PruneJobsResponse.Removed, _Mapping]]] = ...) -> None: ...

class PruneSchedulesRequest(_message.Message):
    __slots__ = ("age_seconds", "limit", "operator")
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    age_seconds: float
    limit: int
    operator: Operator
    def __init__(self, age_seconds: _Optional[float] = ..., limit: _Optional[int] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class PruneSchedulesResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class ExpireJobsRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ExpireJobsResponse(_message.Message):
    __slots__ = ("expired",)
    class Expired(_message.Message):
        __slots__ = ("job_id", "topic", "queue", "expired_at")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        EXPIRED_AT_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        topic: str
        queue: str
        expired_at: _timestamp_pb2.Timestamp
        def __init__(self, job_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[str] = ..., expired_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    expired: _containers.RepeatedCompositeFieldContainer[ExpireJobsResponse.Expired]
    def __init__(self, expired: _Optional[_Iterable[_Union[ExpireJobsResponse.Expired, _Mapping]]] = ...) -> None: ...

class CascadeRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class CascadeResponse(_message.Message):
    __slots__ = ("parents",)
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    parents: int
    def __init__(self, parents: _Optional[int] = ...) -> None: ...

class FoldStatsRequest(_message.Message):
    __slots__ = ("keep_seconds", "limit")
    KEEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    keep_seconds: float
    limit: int
    def __init__(self, keep_seconds: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class FoldStatsResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    def __init__(self, rows: _Optional[int] = ...) -> None: ...
