"""Handlers: the user's functions, their arguments as JSON, and the options of their jobs."""

from pulsed.handler.codec import HandlerContext
from pulsed.handler.function import Handler
from pulsed.handler.options import HandlerOptions, Options, checked_options
from pulsed.handler.payload import (
    MAX_DEPTH,
    MAX_PAYLOAD,
    clean_text,
    encode_by_name,
    encode_untyped,
)
from pulsed.handler.registry import Call, Registry, job_maker, new_job

__all__ = [
    "MAX_DEPTH",
    "MAX_PAYLOAD",
    "Call",
    "Handler",
    "HandlerContext",
    "HandlerOptions",
    "Options",
    "Registry",
    "checked_options",
    "clean_text",
    "encode_by_name",
    "encode_untyped",
    "job_maker",
    "new_job",
]
