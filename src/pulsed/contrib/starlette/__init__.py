"""pulsed in Starlette and FastAPI: its life beside the application's, and jobs as event streams."""

from pulsed.contrib.starlette.event_stream import job_events
from pulsed.contrib.starlette.life import lifespan, pulse_of, running

__all__ = ["job_events", "lifespan", "pulse_of", "running"]
