"""Every service of the contract, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from pulsed.rpc.server.services.backend import Backend
from pulsed.rpc.server.services.bulk import BulkService
from pulsed.rpc.server.services.controls import ControlService
from pulsed.rpc.server.services.jobs import JobService
from pulsed.rpc.server.services.schedules import ScheduleService
from pulsed.rpc.server.services.stats import StatsService
from pulsed.rpc.server.services.streams import StreamService
from pulsed.rpc.server.services.upkeep import UpkeepService
from pulsed.rpc.server.services.work import WorkService
from pulsed.rpc.server.services.workflows import WorkflowService

SERVICES = (
    JobService,
    WorkService,
    WorkflowService,
    StreamService,
    ScheduleService,
    BulkService,
    StatsService,
    ControlService,
    UpkeepService,
)


def services(backend: Backend) -> Mapping[str, object]:
    """Return an object for each service, whose methods are named after those of the contract."""
    return {service.__name__: service(backend) for service in SERVICES}
