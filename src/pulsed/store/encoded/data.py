"""Jobs, outcomes, checkpoints and schedules with their user data in envelopes, and without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pulsed.errors import CodecError, InvalidPayload
from pulsed.handler.envelope import CodecContext, Envelopes, TextCodec
from pulsed.model.job import Assignment, Failure, JobRow, NewJob
from pulsed.model.job_batch import in_place_of
from pulsed.model.outcome import Failed, Outcome, Report, Succeeded, Waiting
from pulsed.model.schedule import ScheduleRow, ScheduleSpec
from pulsed.model.step import Checkpoint, StepKind, StepState
from pulsed.model.stream import StreamItem
from pulsed.model.workflow import JobOutcome

T = TypeVar("T", Assignment, JobRow)


class UserData:
    """Knows which fields of each value user code has written, and what they belong to."""

    def __init__(self, codec: TextCodec) -> None:
        self._envelopes = Envelopes(codec)

    # -- on the way in ----------------------------------------------------------------------------

    def payload(self, topic: str, text: str) -> str:
        """Return a payload as it is stored."""
        return self._envelopes.json(text, CodecContext("payload", topic))

    def value(self, what: str, job_id: UUID, text: str) -> str:
        """Return progress, a signal or an item of a stream as it is stored."""
        return self._envelopes.json(text, CodecContext(what, job_id=job_id))

    def new_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return jobs as they are submitted."""
        return in_place_of(
            jobs, [replace(job, payload=self.payload(job.topic, job.payload)) for job in jobs]
        )

    def reports(self, reports: Iterable[Report]) -> list[Report]:
        """Return reports as they are stored."""
        return [
            report._replace(outcome=self._outcome(report.lease.job_id, report.outcome))
            for report in reports
        ]

    def checkpoint(self, job_id: UUID, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint as it is stored."""
        value, error = checkpoint.value, checkpoint.error
        if value is not None:
            value = self._envelopes.json(value, _value_of(job_id, checkpoint))
        if error is not None:
            error = self._envelopes.text(error, _error_of(job_id))
        return replace(checkpoint, value=value, error=error)

    def _outcome(self, job_id: UUID, outcome: Outcome) -> Outcome:
        match outcome:
            case Succeeded(str(result)):
                return self._success(job_id, outcome, result)
            case Failed(error, trace):
                text, context = self._envelopes.text, _error_of(job_id)
                kept = None if trace is None else text(trace, context)
                return replace(outcome, error=text(error, context), traceback=kept)
            case Waiting(_, checkpoint):
                return replace(outcome, checkpoint=self.checkpoint(job_id, checkpoint))
        return outcome

    def _success(self, job_id: UUID, outcome: Succeeded, result: str) -> Outcome:
        """Return a success; a failure if its result cannot be stored, or the report would not end.

        A result that is too large once encoded stays too large; a codec may work again.
        """
        try:
            sealed = self._envelopes.json(result, CodecContext("result", job_id=job_id))
        except InvalidPayload as error:
            return self._outcome(job_id, Failed(str(error), final=True))
        except CodecError as error:
            return self._outcome(job_id, Failed(str(error)))
        return replace(outcome, result=sealed)

    # -- on the way out ---------------------------------------------------------------------------

    def assignments(self, claimed: Iterable[Assignment]) -> list[Assignment]:
        """Return claimed jobs with their arguments."""
        return [self._with_payload(each) for each in claimed]

    def row(self, job: JobRow) -> JobRow:
        """Return a job with everything that can be read of it."""
        job = self._with_payload(job)
        return replace(
            job,
            result=self.value_in("result", job.id, job.result),
            progress=self.value_in("progress", job.id, job.progress),
            last_error=self.error_in(job.id, job.last_error),
        )

    def outcome(self, job: JobOutcome) -> JobOutcome:
        """Return what became of a job."""
        result = self.value_in("result", job.id, job.result)
        return replace(job, result=result, error=self.error_in(job.id, job.error))

    def failure(self, failure: Failure) -> Failure:
        """Return a failed attempt with its error."""
        job_id = failure.job_id
        error = self._envelopes.text_in(failure.error, _error_of(job_id))
        return replace(failure, error=error, traceback=self.error_in(job_id, failure.traceback))

    def checkpoint_in(self, job_id: UUID, checkpoint: Checkpoint) -> Checkpoint:
        """Return a stored checkpoint with its value."""
        value = checkpoint.value
        if value is not None:
            value = self._envelopes.json_in(value, _value_of(job_id, checkpoint))
        return replace(checkpoint, value=value, error=self.error_in(job_id, checkpoint.error))

    def value_in(self, what: str, job_id: UUID, text: str | None) -> str | None:
        """Return a stored result or progress."""
        if text is None:
            return None
        return self._envelopes.json_in(text, CodecContext(what, job_id=job_id))

    def item_in(self, job_id: UUID, item: StreamItem) -> StreamItem:
        """Return a stored item of a stream with its value."""
        context = CodecContext("item", job_id=job_id)
        return replace(item, value=self._envelopes.json_in(item.value, context))

    def error_in(self, job_id: UUID, text: str | None) -> str | None:
        """Return a stored error text."""
        return None if text is None else self._envelopes.text_in(text, _error_of(job_id))

    def _with_payload(self, job: T) -> T:
        payload = self._envelopes.json_in(job.payload, CodecContext("payload", job.topic))
        return replace(job, payload=payload)

    # -- schedules --------------------------------------------------------------------------------

    def spec(self, spec: ScheduleSpec, stored: ScheduleRow | None) -> ScheduleSpec:
        """Return a spec as it is stored: with the envelope that is there if that says the same.

        A cipher makes another text of the same payload each time, and a schedule that is declared
        again must not look as if it had changed.
        """
        if stored is not None:
            before = msgspec.json.decode(stored.spec_text, type=ScheduleSpec)
            if before.topic == spec.topic and self._payload_in(before) == spec.payload:
                return replace(spec, payload=before.payload)
        return replace(spec, payload=self.payload(spec.topic, spec.payload))

    def schedule(self, row: ScheduleRow) -> ScheduleRow:
        """Return a schedule with the arguments of its jobs; one that cannot be read, as it is."""
        try:
            spec = msgspec.json.decode(row.spec_text, type=ScheduleSpec)
        except msgspec.MsgspecError:
            return row
        text = msgspec.json.encode(replace(spec, payload=self._payload_in(spec))).decode()
        return replace(row, spec_text=text)

    def _payload_in(self, spec: ScheduleSpec) -> str:
        return self._envelopes.json_in(spec.payload, CodecContext("payload", spec.topic))


def _value_of(job_id: UUID, checkpoint: Checkpoint) -> CodecContext:
    """Return the context of a checkpoint's value: the database moves a signal into one."""
    is_signal = checkpoint.kind is StepKind.SIGNAL and checkpoint.state is StepState.DONE
    return CodecContext("signal" if is_signal else "checkpoint", job_id=job_id)


def _error_of(job_id: UUID) -> CodecContext:
    return CodecContext("error", job_id=job_id)
