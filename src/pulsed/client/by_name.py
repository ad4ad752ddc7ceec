"""Enqueuing a job by the name of its topic, without the code of its handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsed.client.job import Client, Job
from pulsed.client.submitting import submit
from pulsed.handler import Handler, Options, Registry, checked_options, encode_by_name, new_job
from pulsed.handler.options import checked_name


async def enqueue_by_name(
    client: Client,
    topic: str,
    payload: Mapping[str, Any] | None,
    options: Options,
    *,
    unknown: bool,
) -> Job[Any]:
    """Store a job; unless the topic may be ``unknown``, it must be one of the app's handlers."""
    checked_name("topic", topic)
    checked = checked_options(options)
    connection, job_id = checked.pop("conn", None), checked.pop("id", None)
    handler = _handler_for(client.registry(), topic, unknown=unknown)
    text = _encoded(topic, {} if payload is None else payload, handler)
    job = new_job(topic, text, handler, checked, job_id)
    (stored,), done = await submit(
        client.store(), [job], connection, client.arounds.enqueues, fresh_ids=job_id is None
    )
    return Job(client, stored, handler, is_new=done.is_new(0))


def _handler_for(registry: Registry, topic: str, *, unknown: bool) -> Handler[Any] | None:
    # An app without handlers is a pure producer, and cannot know any topic.
    return registry.find(topic) if unknown or not len(registry) else registry.get(topic)


def _encoded(topic: str, payload: Mapping[str, Any], handler: Handler[Any] | None) -> str:
    # Also with a handler: this refuses a list before the handler searches it for names.
    text = encode_by_name(topic, payload)
    return text if handler is None else handler.encode_json(payload)
