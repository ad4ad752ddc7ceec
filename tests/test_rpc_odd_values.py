"""Values that no client of ours would send: found by ``tests/test_fuzz.py``."""

import math
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import values

pytestmark = pytest.mark.usefixtures("far")

SOMETIME = values.stamp(datetime(2026, 1, 1, tzinfo=UTC))
UNKNOWN_STATUS = pb.PruneJobsRequest.Age(status=99, since=SOMETIME)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method, request_",
    [
        ("PruneJobs", pb.PruneJobsRequest(ages=[UNKNOWN_STATUS], limit=1)),
        ("TakeTurn", pb.TakeTurnRequest(length_seconds=math.inf)),
        ("TakeTurn", pb.TakeTurnRequest(length_seconds=math.nan)),
        ("TakeTurn", pb.TakeTurnRequest(length_seconds=-1)),
        ("ListAuditLog", pb.ListAuditLogRequest(limit=1, until=Timestamp(seconds=2**53))),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_an_invalid_argument(client: Any, method: str, request_: Any):
    with pytest.raises(aio.AioRpcError) as refused:
        await client(method, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
