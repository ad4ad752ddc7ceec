"""Columns: many jobs in one message say the same as a message for each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from grpc import aio

from pulsed.handler.payload import MAX_DEPTH, MAX_PAYLOAD
from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, Lease, Status
from pulsed.model.outcome import Beat, Failed, Released, Report, Succeeded
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import columnar
from pulsed.rpc.messages.jobs import BEAT_NUMBERS, lease_message
from pulsed.rpc.messages.reports import report_message
from pulsed.rpc.server.checks import items as checks
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import ALICE, BOB, POLICIES, TOPIC, a_job, claim, ids, row
from tests.support.raw_streams import raw_client
from tests.support.servers import ServerThread

NOON = datetime(2026, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)


def assignment(number: int, **options: Any) -> Assignment:
    values: dict[str, Any] = {
        "lease": Lease(new_job_id(), 2**50 + number, ALICE),
        "topic": TOPIC,
        "queue": "default",
        "priority": -3,
        "payload": f'{{"n":{number}}}',
        "attempt": 1,
        "max_attempts": 3,
        "lease_seconds": 30.0,
        "timeout": None,
        "headers": {},
        "next_run_at": NOON + timedelta(microseconds=number),
        "submitted_at": NOON - timedelta(days=number),
    }
    return Assignment(**values | options)


def sent(claimed: list[Assignment]) -> tuple[Any, list[Assignment]]:
    """Return a batch as it arrives, and what is read from it."""
    made = columnar.batch_message(7, claimed, 2, columns=True)
    arrived = pb.StreamJobsResponse.FromString(made.SerializeToString()).batch
    assert (arrived.grant_id, arrived.lost_answers) == (7, 2)
    assert columnar.size_of(arrived) == len(claimed)
    return arrived, columnar.assignments_of(arrived, ALICE)


class TestBatches:
    def test_jobs_of_a_kind_share_a_message_and_arrive_as_they_were(self):
        claimed = [assignment(n) for n in range(50)]
        batch, read = sent(claimed)
        assert read == claimed
        assert (len(batch.columns), len(batch.assignments)) == (1, 0)

    @pytest.mark.parametrize(
        "own",
        [
            {"topic": "other"},
            {"queue": "other"},
            {"priority": 5},
            {"attempt": 2},
            {"max_attempts": 9},
            {"lease_seconds": 2.5},
            {"timeout": 0.5},
            {"headers": {"trace": "1"}},
            {"schedule_id": uuid4()},
            {"schedule_id": uuid4(), "occurrence": NOON},
        ],
        ids="+".join,
    )
    def test_whatever_a_job_has_of_its_own_it_keeps_with_its_place(self, own):
        claimed = [assignment(n, **(own if 10 <= n < 20 else {})) for n in range(50)]
        batch, read = sent(claimed)
        assert read == claimed
        assert len(batch.columns) == 3

    def test_every_part_of_an_assignment_is_a_column_or_is_compared(self):
        other: dict[str, Any] = {
            "topic": "other", "queue": "other", "priority": 5, "attempt": 2, "max_attempts": 9,
            "lease_seconds": 2.5, "timeout": 0.5, "headers": {"trace": "1"},
            "schedule_id": uuid4(), "occurrence": NOON, "parent_id": uuid4(),
        }  # fmt: skip
        assert set(other) == set(Assignment.__struct_fields__) - set(columnar.OWN)

    def test_jobs_with_little_in_common_get_a_message_each(self):
        claimed = [assignment(n, priority=n % 2) for n in range(20)]
        batch, read = sent(claimed)
        assert read == claimed
        assert (len(batch.columns), len(batch.assignments)) == (0, 20)

    def test_headers_are_not_shared(self):
        _, read = sent([assignment(n, headers={"trace": "1"}) for n in range(8)])
        read[0].headers["trace"] = "2"
        assert read[1].headers == {"trace": "1"}

    def test_a_worker_that_does_not_read_columns_gets_none(self):
        made = columnar.batch_message(1, [assignment(n) for n in range(50)], 0, columns=False)
        batch = made.batch
        assert (len(batch.columns), len(batch.assignments)) == (0, 50)


async def claimed(near, count: int) -> list[Assignment]:
    await near.submit([a_job() for _ in range(count)])
    found = await claim(near, limit=count)
    assert len(found) == count
    return found


def reported(leases: list[Lease], results: list[str | None]) -> pb.SucceededColumns:
    reports = [
        Report(lease, Succeeded(result)) for lease, result in zip(leases, results, strict=True)
    ]
    return columnar.succeeded_message(reports, ALICE)


async def report(client, message: pb.SucceededColumns, *reports: pb.Report) -> list[bool]:
    request = pb.ReportResultsRequest(reports=reports, succeeded=message)
    return list((await client("ReportResults", request)).accepted)


class TestReports:
    async def test_a_claim_through_a_server_is_a_claim(self, far, near):
        jobs = [a_job(payload=f'{{"n":{n}}}') for n in range(30)]
        await near.submit(jobs)
        got = await far.claim(ALICE, "default", POLICIES, 20)
        assert ids(got) == [job.id for job in jobs[:20]]
        assert [each.payload for each in got] == [job.payload for job in jobs[:20]]
        for each in got:
            stored = await row(near, each.job_id)
            assert (stored.lease_token, stored.locked_by) == (each.lease_token, ALICE)
            assert (stored.next_run_at, stored.submitted_at) == (
                each.next_run_at, each.submitted_at,
            )  # fmt: skip

    @pytest.mark.parametrize("reads", [True, False])
    async def test_who_says_so_is_sent_columns(self, client, near, reads):
        await near.submit([a_job() for _ in range(20)])
        stream = client.stream()
        await stream.hello(reads_columns=reads)
        await stream.grant(1, 20)
        batch = await stream.batch()
        assert (len(batch.columns), len(batch.assignments)) == ((1, 0) if reads else (0, 20))

    async def test_results_arrive_with_their_jobs(self, far, near):
        got = await claimed(near, 10)
        reports = [Report.of(each, Succeeded(f'"{n}"')) for n, each in enumerate(got)]
        reports[3] = Report.of(got[3], Succeeded(None))
        reports[4] = Report.of(got[4], Failed("no luck"))
        assert await far.settle(reports) == {each.lease for each in got}
        rows = [await row(near, each.job_id) for each in got]
        assert [each.result for each in rows] == [
            '"0"', '"1"', '"2"', None, None, '"5"', '"6"', '"7"', '"8"', '"9"',
        ]  # fmt: skip
        assert (rows[4].status, rows[4].last_error) == (Status.RETRYING, "no luck")

    async def test_successes_are_stored_from_the_columns_that_came(self, far, near, monkeypatch):
        got = await claimed(near, 3)

        async def settle(*_: Any, **__: Any) -> None:
            raise AssertionError("a report was made for each")

        monkeypatch.setattr(SqliteStore, "settle", settle)
        reports = [Report.of(each, Succeeded(str(n))) for n, each in enumerate(got)]
        assert await far.settle(reports) == {each.lease for each in got}
        assert [(await row(near, each.job_id)).result for each in got] == ["0", "1", "2"]

    async def test_a_report_in_columns_that_is_repeated_has_the_same_answer(self, client, near):
        message = reported([each.lease for each in await claimed(near, 3)], ["1", "2", "3"])
        assert await report(client, message) == [True] * 3
        assert await report(client, message) == [True] * 3

    async def test_no_success_and_no_report_are_an_empty_answer(self, client):
        assert await report(client, pb.SucceededColumns(worker_id=str(ALICE))) == []

    async def test_leases_of_several_workers_keep_their_own(self, far, near):
        (hers,) = await claimed(near, 1)
        await near.submit([a_job()])
        (his,) = await claim(near, BOB)
        both = [Report.of(each, Succeeded("1")) for each in (hers, his)]
        assert await far.settle(both) == {hers.lease, his.lease}

    async def test_each_has_its_answer_those_in_columns_last(self, client, near):
        alone, *others = (each.lease for each in await claimed(near, 4))
        stale = others[1]._replace(token=others[1].token + 1)
        message = reported([others[0], stale, others[2]], ["1", "2", "3"])
        single = report_message(Report(alone, Succeeded("0")))
        assert await report(client, message, single) == [True, True, False, True]
        assert (await row(near, stale.job_id)).status is Status.RUNNING

    async def test_a_stale_and_the_current_lease_of_a_job_each_have_their_answer(
        self, client, near
    ):
        (old,) = (each.lease for each in await claimed(near, 1))
        await near.settle([Report(old, Released())])
        (new,) = (each.lease for each in await claim(near))
        both = [old, new]
        beats = await client("Heartbeat", pb.HeartbeatRequest(leases=map(lease_message, both)))
        assert list(beats.answers) == [BEAT_NUMBERS[Beat.LOST], BEAT_NUMBERS[Beat.OK]]
        assert await report(client, reported(both, ["1", "2"])) == [False, True]

    @pytest.mark.parametrize(
        "bad",
        [
            "not json",
            "1 2",
            "NaN",
            '"\\u0000"',
            '"\\ud800"',
            "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
            '"' + "é" * (MAX_PAYLOAD // 2) + '"',
        ],
        ids=["text", "two values", "nan", "nul", "surrogate", "deep", "long"],
    )
    async def test_a_result_that_cannot_be_stored_ends_its_own_job_only(self, client, near, bad):
        leases = [each.lease for each in await claimed(near, 3)]
        assert await report(client, reported(leases, ["1", bad, "3"])) == [True] * 3
        rows = [await row(near, lease.job_id) for lease in leases]
        assert [each.status for each in rows] == [
            Status.SUCCEEDED, Status.DEAD_LETTERED, Status.SUCCEEDED,
        ]  # fmt: skip
        assert "The result" in str(rows[1].last_error)

    @pytest.mark.parametrize("results", [["[1,", "2]", "3 4"], ["1 2", " "], ["1,2", "3"]], ids=str)
    async def test_results_do_not_lend_each_other_what_they_lack(self, client, near, results):
        leases = [each.lease for each in await claimed(near, len(results))]
        await report(client, reported(leases, results))
        for lease, result in zip(leases, results, strict=True):
            expected = Status.SUCCEEDED if result == "3" else Status.DEAD_LETTERED
            assert (await row(near, lease.job_id)).status is expected

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda message: message.results.append("1"),
            lambda message: message.lease_tokens.pop(),
            lambda message: setattr(message, "job_ids", message.job_ids[:-1]),
            lambda message: setattr(message, "job_ids", b""),
            lambda message: setattr(message, "worker_id", "me"),
            lambda message: message.are_children.append(False),
            lambda message: message.are_children.append(True),
        ],
        ids=["results", "tokens", "ids", "no ids", "worker", "no children", "children"],
    )
    async def test_columns_that_do_not_fit_together_change_nothing(self, client, near, spoil):
        leases = [each.lease for each in await claimed(near, 3)]
        message = reported(leases, ["1", "2", "3"])
        spoil(message)
        with pytest.raises(aio.AioRpcError, match="cannot be read") as refused:
            await report(client, message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for lease in leases:
            assert (await row(near, lease.job_id)).status is Status.RUNNING

    async def test_columns_count_against_the_limit_of_a_request(self, database):
        with ServerThread(lambda: SqliteStore(database), largest_batch=2) as small:
            async with raw_client(small.host) as client:
                leases = [Lease(new_job_id(), 1, ALICE) for _ in range(3)]
                with pytest.raises(aio.AioRpcError, match="too many"):
                    await report(client, reported(leases, ["1"] * 3))

    def test_an_id_is_the_same_in_a_column(self):
        lease = Lease(UUID("0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"), 1, ALICE)
        (read,) = checks.reports_of(reported([lease], ["1"]))
        assert read == Report(lease, Succeeded("1"))
        found = checks.successes_of(reported([lease] * 2, ["1", None]))
        assert found == (ALICE, [lease.job_id] * 2, [1, 1], ["1", None])
        assert (hash(read.lease), str(read.lease.job_id)) == (hash(lease), str(lease.job_id))
