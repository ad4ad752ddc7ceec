"""What a server refuses of a bulk operation, from clients that it cannot trust."""

import asyncio
from uuid import uuid4

import grpc
import pytest
from grpc import aio

from pulsed.rpc.generated import pulse_pb2 as pb
from tests.support.raw_streams import raw_client
from tests.support.tenants import MINE, OTHERS, World

INVALID = grpc.StatusCode.INVALID_ARGUMENT
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("bulk") / "jobs.db")
    asyncio.run(world.fill())
    yield world
    world.server.stop()


def act(kind, **arguments):
    return pb.BulkAct(kind=getattr(pb, f"BULK_KIND_{kind}"), **arguments)


PENDING = pb.JobFilter(topic=MINE, queue=MINE, statuses=[pb.JOB_STATUS_PENDING])
MOVE = act("MOVE", queue=OTHERS)


@pytest.mark.parametrize(
    "who, wanted, where, code",
    [
        ("admin", act("CANCEL"), pb.JobFilter(), INVALID),
        ("admin", act("RETRY"), PENDING, INVALID),
        ("admin", pb.BulkAct(), PENDING, INVALID),
        ("admin", act("MOVE"), PENDING, INVALID),
        ("admin", act("MOVE", queue="a,b"), PENDING, INVALID),
        ("admin", act("REPRIORITISE", priority=101), PENDING, INVALID),
        ("admin", act("CANCEL", queue="q"), PENDING, INVALID),
        ("admin", act("RESCHEDULE", delay_seconds=float("nan")), PENDING, INVALID),
        ("operate", act("DELETE"), PENDING, DENIED),
        ("operate", act("MOVE", queue="q"), PENDING, DENIED),
        ("my queue", MOVE, PENDING, DENIED),
        ("my admin", act("CANCEL"), pb.JobFilter(queue=MINE), DENIED),
    ],
    ids=str,
)
async def test_an_operation_that_cannot_be_is_not_stored(world, who, wanted, where, code):
    before = world.everything()
    request = pb.StartBulkRequest(id=str(uuid4()), act=wanted, where=where)
    async with raw_client(world.server.host, world.secrets[who]) as client:
        with pytest.raises(aio.AioRpcError) as refused:
            await client("StartBulk", request)
    assert refused.value.code() is code, refused.value.details()
    assert world.everything() == before


async def test_a_filter_that_the_server_does_not_know_is_refused(world):
    request = pb.StartBulkRequest(id=str(uuid4()), act=act("CANCEL"), where=PENDING, conditions=9)
    async with raw_client(world.server.host, world.secrets["admin"]) as client:
        with pytest.raises(aio.AioRpcError, match="does not know"):
            await client("StartBulk", request)


async def test_a_change_of_jobs_is_a_change_of_jobs(world):
    job_ids = [str(world.waiting[MINE])]
    request = pb.ChangeJobsRequest(job_ids=job_ids, act=act("DELETE"))
    async with raw_client(world.server.host, world.secrets["admin"]) as client:
        with pytest.raises(aio.AioRpcError, match="is no change of jobs"):
            await client("ChangeJobs", request)


async def test_a_limited_caller_sees_its_own_operations_and_names_what_it_performs(world):
    async with raw_client(world.server.host, world.secrets["my admin"]) as client:
        listed = (await client("ListBulk", pb.ListBulkRequest(limit=10))).operations
        assert [each.id for each in listed] == [str(world.bulk[MINE].id)]
        with pytest.raises(aio.AioRpcError, match="name the operation"):
            await client("AdvanceBulk", pb.AdvanceBulkRequest(performer=str(uuid4())))


@pytest.mark.parametrize("who", ["operate", "my admin", "admin"])
async def test_an_operator_runs_jobs_now_as_in_the_dashboard(world, who):
    request = pb.StartBulkRequest(id=str(uuid4()), act=act("RUN_NOW"), where=PENDING)
    async with raw_client(world.server.host, world.secrets[who]) as client:
        begun = await client("StartBulk", request)
        assert begun.kind == pb.BULK_KIND_RUN_NOW
        ids = pb.JobIds(job_ids=[str(world.waiting[MINE])])
        [answer] = (await client("ExpediteJobs", ids)).acts
    assert answer.done
