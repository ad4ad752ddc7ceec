"""A worker's own storage retry: for its own calls and those of its handlers, and for no others."""

from pulsed.engine.context import Context
from pulsed.model.backoff import RetryPolicy
from pulsed.store.retrying import dequeue_retry_of, retry_of
from pulsed.store.sql_store.store import SqlStore
from tests.support.parts import part_with
from tests.support.workers import finished, handler, submit, until, working

DEQUEUE = RetryPolicy(max_attempts=8)


async def test_a_worker_s_policies_go_with_its_tasks_and_threads(store: SqlStore, monkeypatch):
    seen: dict[str, int] = {}

    def note(who: str) -> None:
        seen[who] = retry_of(store.options).max_attempts

    def noting(verb: str) -> None:
        part = part_with(store, verb)
        original = getattr(part, verb)

        def noted(*args, **options):
            note(verb)
            return original(*args, **options)

        monkeypatch.setattr(part, verb, noted)

    for verb in ("claim", "beat", "settle"):
        noting(verb)

    async def waits(ctx: Context) -> None:
        note("async handler")
        seen["dequeue"] = dequeue_retry_of(store.options).max_attempts
        await until(lambda: "beat" in seen)

    def plain() -> None:
        note("plain handler")

    jobs = [await submit(store, topic) for topic in ("waits", "plain")]
    options = {"retry_attempts": 9, "dequeue_retry": DEQUEUE}
    async with working(store, handler(waits, lease=1), plain, **options):
        for job_id in jobs:
            await finished(store, job_id)
    note("elsewhere")
    assert seen.pop("elsewhere") == RetryPolicy().max_attempts
    assert seen.pop("dequeue") == 8
    assert seen == dict.fromkeys(("claim", "beat", "settle", "async handler", "plain handler"), 9)
