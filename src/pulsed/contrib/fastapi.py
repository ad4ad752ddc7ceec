"""pulsed in FastAPI: the app as a dependency, besides what ``pulsed.contrib.starlette`` has."""

from typing import Annotated

from fastapi import Depends

from pulsed.app import Pulse
from pulsed.contrib.starlette import job_events, lifespan, pulse_of, running

CurrentPulse = Annotated[Pulse, Depends(pulse_of)]
"""A parameter of this type gets the app: ``async def order(pulse: CurrentPulse)``."""

__all__ = ["CurrentPulse", "job_events", "lifespan", "pulse_of", "running"]
