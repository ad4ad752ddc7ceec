"""What the doctor asks a store for: how much is due, and whether anything is wrong."""

from datetime import timedelta

from pulsed.model.backoff import Backoff
from pulsed.store.results import Backlog, Running
from pulsed.store.verbs import reads
from tests.support.jobs import a_job, a_policy, claim, row


async def test_due_jobs_are_counted_by_queue_and_topic_the_longest_waiting_first(store, clock):
    since = clock()
    await store.submit([a_job(topic="late", queue="b")])
    clock.advance(10)
    await store.submit([a_job(topic="early", priority=n % 3) for n in range(5)])
    await store.submit([a_job(topic="early", delay=60), a_job(topic="future", delay=60)])
    assert await store.backlog() == [
        Backlog("b", "late", 1, since),
        Backlog("default", "early", 5, since + timedelta(seconds=10)),
    ]


async def test_of_a_long_queue_its_head_is_read_and_the_answer_says_so(store, clock, monkeypatch):
    """Jobs that no worker claims stay at the head, where the doctor reads."""
    monkeypatch.setattr(reads, "SEARCHED", 4)
    monkeypatch.setattr(reads, "LEAST_EACH", 1)
    await store.submit([a_job(topic="orphan")])
    clock.advance(10)
    await store.submit([a_job(topic="served") for _ in range(9)])
    assert [(each.topic, each.due, each.at_least) for each in await store.backlog()] == [
        ("orphan", 1, True),
        ("served", 3, True),
    ]


async def test_each_priority_of_each_queue_has_a_share(store, monkeypatch):
    monkeypatch.setattr(reads, "SEARCHED", 4)
    monkeypatch.setattr(reads, "LEAST_EACH", 1)
    for queue in ("a", "b"):
        await store.submit([a_job(topic="t", queue=queue, priority=n % 2) for n in range(8)])
    assert [(each.queue, each.due) for each in await store.backlog()] == [("a", 2), ("b", 2)]


async def test_running_jobs_are_counted_by_queue_and_topic_the_busiest_first(store):
    assert await store.running() == []
    await store.submit([a_job(topic="few", queue="b"), *(a_job(topic="many") for _ in range(3))])
    await store.submit([a_job(topic="few"), a_job(topic="other")])
    await claim(store, topics=[a_policy("few"), a_policy("many")], limit=10)
    await claim(store, topics=[a_policy("few")], queue="b")
    expected = [Running("default", "many", 3), Running("b", "few", 1), Running("default", "few", 1)]
    assert await store.running() == expected


async def test_of_very_many_running_jobs_the_answer_says_that_there_may_be_more(store, monkeypatch):
    await store.submit([a_job() for _ in range(3)])
    await claim(store, limit=3)
    monkeypatch.setattr(reads, "SEARCHED", 2)
    assert [(each.running, each.at_least) for each in await store.running()] == [(2, True)]


async def test_a_claim_fills_each_job_from_its_own_topic(store, clock):
    """Topics that say the same and topics that do not, in one batch."""
    policies = [
        a_policy("alike", max_attempts=2, backoff=Backoff.fixed(7), lease=5.0),
        a_policy("as alike", max_attempts=2, backoff=Backoff.fixed(7), lease=5.0),
        a_policy("different", max_attempts=9, backoff=Backoff.fixed(8), lease=6.0, timeout=3.0),
    ]
    for policy in policies:
        await store.submit([a_job(topic=policy.topic)])
        await store.submit([a_job(topic=policy.topic, max_attempts=4, lease=8.0, timeout=1.0)])
    runs = await claim(store, topics=policies)
    told = [(run.topic, run.max_attempts, run.lease_seconds, run.timeout) for run in runs]
    assert told == [
        ("alike", 2, 5.0, None),
        ("alike", 4, 8.0, 1.0),
        ("as alike", 2, 5.0, None),
        ("as alike", 4, 8.0, 1.0),
        ("different", 9, 6.0, 3.0),
        ("different", 4, 8.0, 1.0),
    ]
    for run in runs:
        stored = await row(store, run.job_id)
        assert stored.max_attempts == run.max_attempts
        assert stored.lease_until == clock() + timedelta(seconds=run.lease_seconds)
