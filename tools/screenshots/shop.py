"""A shop in full swing: its handlers, workers, schedules, and what happened in the last days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pulsed import Context, Pulse
from pulsed.engine.upkeep.scheduler import decide
from pulsed.model.audit import Operator
from pulsed.model.backoff import Backoff
from pulsed.model.job import (
    Assignment,
    JobFilter,
    Lease,
    NewJob,
    Status,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.model.outcome import Failed, Succeeded, Waiting
from pulsed.model.rollup import ErrorRollup, Histogram, Rollup, Stats
from pulsed.model.schedule import CatchUp, ScheduleSpec
from pulsed.model.step import Checkpoint, StepKey, StepKind, StepState, Wait
from pulsed.model.workflow import Record, child_id, family
from pulsed.version import __version__
from tools.screenshots.controls import govern
from tools.screenshots.simulation import Script, Simulation, Try

NOW = datetime(2026, 11, 17, 10, 24, 30, tzinfo=UTC)
"""A Tuesday morning."""
APP = "shop"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
WEEK = 7 * DAY

# -- handlers: what the form for a new job is made from ------------------------------------------


def declare(app: Pulse) -> None:
    """Give the app the handlers of the shop."""

    @app.job(queue="mail", max_attempts=5)
    async def send_email(
        to: str,
        template: Literal["welcome", "receipt", "shipped", "newsletter"],
        order: int | None = None,
        *,
        tracking: bool = True,
    ) -> None:
        raise NotImplementedError

    @app.job(queue="payments", max_attempts=5)
    async def charge_card(order: int, cents: int, currency: str = "EUR") -> str:
        raise NotImplementedError

    @app.job
    async def place_order(ctx: Context, customer: str, items: list[str]) -> str:
        raise NotImplementedError


# -- workers ---------------------------------------------------------------------------------------


class Staff(NamedTuple):
    """A worker process of the shop."""

    id: UUID
    host: str
    pid: int
    queues: tuple[str, ...]
    topics: tuple[str, ...]
    slots: int
    up: float
    """Seconds since its start."""
    silent: float = 0.0
    """Seconds since its last heartbeat."""
    state: str = "running"
    version: str = __version__


GENERAL = (
    "book_payout", "cleanup_carts", "describe_product", "export_orders", "nightly_report",
    "place_order", "push_stock", "rebuild_search", "ship_item", "sync_inventory", "update_prices",
)  # fmt: skip
MAIL = ("send_email", "send_sms")
PAYMENTS = ("bank_statements", "charge_card", "refund")
MEDIA = ("encode_video", "render_catalog", "render_page", "resize_image")

APPLICATION, POST = ("default", "partners", "reports"), ("mail",)


def _worker(number: int) -> UUID:
    return UUID(int=0x5409_0000 + number)


WORKERS = {
    "app-1": Staff(_worker(1), "app-1", 4121, APPLICATION, GENERAL, 20, 3 * DAY),
    "app-2": Staff(_worker(2), "app-2", 3987, APPLICATION, GENERAL, 20, 3 * DAY - 300),
    "mail": Staff(_worker(3), "app-1", 4122, POST, MAIL, 50, 3 * DAY),
    "payments": Staff(_worker(4), "app-2", 3990, ("payments",), PAYMENTS, 10, 3 * DAY - 290),
    "media-1": Staff(_worker(5), "media-1", 812, ("media",), MEDIA, 4, 5 * HOUR),
    "media-2": Staff(_worker(6), "media-2", 797, ("media",), MEDIA, 4, 5 * HOUR - 40),
    "old": Staff(
        _worker(7), "app-0", 30111, POST, MAIL, 20, 6 * DAY, state="stopping", version="0.0.9"
    ),
    "lost": Staff(_worker(8), "media-3", 655, ("media",), MEDIA, 4, 2 * DAY, silent=200.0),
}


async def announce(sim: Simulation, running: dict[UUID, int]) -> None:
    """Write the presence rows: when they started, and their last heartbeat."""
    for worker in WORKERS.values():
        info = WorkerInfo(
            id=worker.id,
            host=worker.host,
            pid=worker.pid,
            queues=worker.queues,
            topics=worker.topics,
            slots=worker.slots,
            running=running.get(worker.id, 0),
            state=worker.state,
            version=worker.version,
            started_at=NOW - timedelta(seconds=worker.up),
        )
        for ago in (worker.up, worker.silent or 1.0):
            sim.now = NOW - timedelta(seconds=ago)
            await sim.store.announce(info)
    sim.now = NOW


# -- jobs ------------------------------------------------------------------------------------------


class Topic(NamedTuple):
    """A kind of job, and how much there is of it."""

    name: str
    queue: str
    workers: tuple[str, ...]
    per_minute: float
    """In the middle of the day."""
    wait: float
    run: float
    """Typical seconds."""
    max_attempts: int = 3
    backoff: float = 30.0

    @property
    def policy(self) -> TopicPolicy:
        """What its workers say of it."""
        backoff = Backoff.fixed(self.backoff, jitter=0)
        return TopicPolicy(topic=self.name, max_attempts=self.max_attempts, backoff=backoff)


TOPICS = {
    topic.name: topic
    for topic in (
        Topic("send_email", "mail", ("mail",), 310, 0.02, 0.16, 5, 240.0),
        Topic("send_sms", "mail", ("mail",), 24, 0.02, 0.3),
        Topic("charge_card", "payments", ("payments",), 62, 0.011, 0.9, 5, 90.0),
        Topic("refund", "payments", ("payments",), 3, 0.01, 1.1),
        Topic("place_order", "default", ("app-1", "app-2"), 58, 0.02, 0.4),
        Topic("ship_item", "default", ("app-2", "app-1"), 120, 0.03, 0.5),
        Topic("sync_inventory", "default", ("app-1",), 0.07, 0.05, 14),
        Topic("update_prices", "default", ("app-2",), 0.02, 0.05, 41),
        Topic("cleanup_carts", "default", ("app-1",), 0.1, 0.05, 2),
        Topic("resize_image", "media", ("media-1", "media-2"), 36, 0.4, 0.9),
        Topic("render_page", "media", ("media-1", "media-2"), 18, 4.0, 6.0),
        Topic("render_catalog", "media", ("media-1",), 0.02, 1.0, 3.0),
        Topic("encode_video", "media", ("media-2", "media-1", "lost"), 1.2, 9.0, 95.0),
        Topic("nightly_report", "reports", ("app-1",), 0.001, 0.05, 420.0),
        Topic("rebuild_search", "reports", ("app-2",), 0.01, 0.05, 130.0),
        Topic("bank_statements", "payments", ("payments",), 0.001, 0.1, 8.0),
    )
}

MAIL_ERROR = (
    "SMTPServerDisconnected: Connection unexpectedly closed: 421 4.7.0 too many connections"
)
MAIL_TRACE = f"""\
Traceback (most recent call last):
  File "/srv/shop/jobs/mail.py", line 48, in send_email
    await mailer.send(message, tracking=tracking)
  File "/srv/shop/mailer.py", line 112, in send
    return await self._pool.deliver(message)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/mailer.py", line 87, in deliver
    code, reply = await smtp.data(message.as_bytes())
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.13/smtplib.py", line 405, in getreply
    raise SMTPServerDisconnected("Connection unexpectedly closed: " + str(e))
smtplib.{MAIL_ERROR}
"""
CARD_ERROR = "TimeoutError: the bank did not answer within 30 s"
CARD_TRACE = f"""\
Traceback (most recent call last):
  File "/srv/shop/jobs/payments.py", line 31, in charge_card
    receipt = await bank.charge(order, cents, currency)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/shop/bank.py", line 76, in charge
    async with asyncio.timeout(30):
               ^^^^^^^^^^^^^^^^^^^
{CARD_ERROR}
"""
SKU_ERROR = "KeyError: 'sku-4711-xl'"
SKU_TRACE = f"""\
Traceback (most recent call last):
  File "/srv/shop/jobs/inventory.py", line 19, in sync_inventory
    stock[item.sku] -= item.reserved
    ~~~~~^^^^^^^^^^
{SKU_ERROR}
"""
VIDEO_ERROR = "CalledProcessError: Command 'ffmpeg' died with <Signals.SIGKILL: 9>."
VIDEO_TRACE = f"""\
Traceback (most recent call last):
  File "/srv/shop/jobs/media.py", line 64, in encode_video
    subprocess.run(command, check=True)
    ~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.13/subprocess.py", line 579, in run
    raise CalledProcessError(retcode, process.args,
                             output=stdout, stderr=stderr)
subprocess.{VIDEO_ERROR}
"""
MAIL_FAILS = Failed(MAIL_ERROR, MAIL_TRACE)
CARD_FAILS = Failed(CARD_ERROR, CARD_TRACE)

NAMES = ("ada", "grace", "edsger", "barbara", "alan", "margaret", "tony", "radia")


class Shop:
    """Writes the story of the shop into a store."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.bulk: UUID | None = None
        """A bulk operation."""

    async def open(self) -> None:
        """Write everything."""
        await self.sim.store.migrate()
        self.day_of_work()
        self.failures()
        self.orders()
        self.catalog()
        self.unfinished()
        await self.schedules()
        self.operators()
        await self.sim.run()
        self.bulk = await govern(self.sim, WORKERS["app-1"].id)
        await self.right_now()
        await statistics(self.sim)

    # -- plain jobs -------------------------------------------------------------------------------

    def payload(self, topic: str) -> dict[str, Any]:
        """Return arguments that look like real ones."""
        pick = self.sim.random
        order = pick.randrange(48_000, 49_999)
        match topic:
            case "send_email":
                template = pick.choice(["receipt", "shipped", "welcome"])
                to = f"{pick.choice(NAMES)}@example.com"
                return {"to": to, "template": template, "order": order, "api_key": "k-5f0c"}
            case "charge_card" | "refund":
                return {"order": order, "cents": pick.randrange(900, 24_000), "currency": "EUR"}
            case "resize_image":
                return {"path": f"products/{order}.jpg", "width": 640}
            case "encode_video":
                return {"path": f"videos/{order}.mov", "preset": "web"}
            case "ship_item":
                return {"order": order, "sku": f"sku-{pick.randrange(1000, 9999)}"}
            case _:
                return {}

    async def one(self, name: str, *tries: Try, worker: str = "", **options: Any) -> Script:
        """Enqueue a job, and let it run with these outcomes."""
        topic = TOPICS[name]
        await self.sim.submit(name, self.payload(name), queue=topic.queue, **options)
        yield topic.wait
        of = WORKERS[worker or self.sim.random.choice(topic.workers)].id
        async for pause in self.sim.attempts(of, topic.queue, topic.policy, tries):
            yield pause

    async def many(self, name: str, number: int) -> Script:
        """Enqueue some jobs at once, and let all of them succeed."""
        topic, sim = TOPICS[name], self.sim
        for _ in range(number):
            await sim.submit(name, self.payload(name), queue=topic.queue)
        yield topic.wait + 0.05
        worker = WORKERS[topic.workers[0]].id
        runs = await sim.claim(worker, topic.queue, topic.policy, number)
        yield topic.run * sim.random.uniform(0.7, 1.4)
        for run in runs:
            await sim.settle(run, Succeeded('{"ok":true}'))

    def day_of_work(self) -> None:
        """Let the usual jobs come and go for a day."""
        pick = self.sim.random
        usual = ("send_email", "charge_card", "resize_image", "send_sms")
        for minutes in range(4, 24 * 60, 4):
            name = pick.choices(usual, (6, 3, 3, 1))[0]
            self.sim.start(minutes * MINUTE + pick.uniform(0, 200), self.many(name, 4))
        for ago in (1.2, 2.6, 4.1, 7.7, 12.0, 19.4, 33.0, 41.0, 55.3):
            name = pick.choice(usual)
            self.sim.start(ago, self.one(name, Try(TOPICS[name].run, Succeeded('{"ok":true}'))))

    def failures(self) -> None:
        """Let mail fail for half an hour in the night, and a few other things."""
        pick, sim = self.sim.random, self.sim
        for _ in range(26):
            ago = 3.1 * HOUR + pick.uniform(0, 1500)
            sim.start(ago, self.one("send_email", *[Try(1.2, MAIL_FAILS)] * 5))
        for ago in (310, 1290, 2480):
            sim.start(ago, self.one("charge_card", *[Try(30.0, CARD_FAILS)] * 5, tags=("eu",)))
        for ago in (35, 62, 140):
            sim.start(ago, self.one("charge_card", *[Try(30.0, CARD_FAILS)] * 5))
        for ago in (20, 95, 180):
            sim.start(ago, self.one("send_email", Try(1.2, MAIL_FAILS), tags=("vip",)))
        sim.start(
            2.2 * DAY, self.one("encode_video", *[Try(70.0, Failed(VIDEO_ERROR, VIDEO_TRACE))] * 3)
        )
        sim.start(
            1700,
            self.one(
                "charge_card",
                Try(30.0, CARD_FAILS),
                Try(30.0, CARD_FAILS),
                Try(1.1, Succeeded('{"receipt":"R-88213","cents":4900}')),
                tags=("eu", "vip"),
            ),
        )

    def unfinished(self) -> None:
        """Leave jobs that run, that are due, and that are due later."""
        for ago, worker in ((130.0, "media-2"), (48.0, "media-1"), (260.0, "lost")):
            self.sim.start(ago, self.one("encode_video", Try(900, Succeeded()), worker=worker))
        for ago in (2.0, 1.6, 1.1):
            self.sim.start(ago, self.one("send_email", Try(9, Succeeded())))
        self.sim.start(2.4, self.one("charge_card", Try(9, Succeeded())))
        self.sim.start(35, self.one("rebuild_search", Try(300, Succeeded()), worker="app-2"))
        for number in range(120):
            self.sim.start(14 * MINUTE - number * 5, self.supplier(number))
        for number in range(9):
            self.sim.start(6 - number / 3, self.one("resize_image"))
        self.sim.start(3 * HOUR, self.newsletters())

    async def supplier(self, number: int) -> Script:
        """Enqueue what no worker takes."""
        file = f"suppliers/{number % 7}/feed-{number:03}.csv"
        await self.sim.submit("import_feed", {"file": file}, queue="imports", tags=("nightly",))
        yield 0

    async def newsletters(self) -> Script:
        """Enqueue mail for later."""
        for number in range(40):
            to = f"{NAMES[number % len(NAMES)]}@example.com"
            payload = {"to": to, "template": "newsletter", "api_key": "k-5f0c"}
            await self.sim.submit(
                "send_email", payload, queue="mail", delay=8 * HOUR, tags=("newsletter",)
            )
        yield 0

    # -- workflows --------------------------------------------------------------------------------

    async def step(self, run: Assignment, seq: int, name: str, took: float, **says: Any) -> None:
        """Record a step that has just ended."""
        values: dict[str, Any] = {"kind": StepKind.STEP, "value": '{"ok":true}', "took": took}
        step = Checkpoint(name=name, nth=1, seq=seq, **values | says)
        await self.sim.store.workflows.record([Record(run.lease, step)])

    async def suspend(self, run: Assignment, seq: int, name: str, wait: Wait) -> None:
        """Let a run wait."""
        until = None if wait.delay is None else self.sim.now + timedelta(seconds=wait.delay)
        opened = Checkpoint(
            name=name, nth=1, seq=seq, kind=wait.kind, state=StepState.OPEN, until=until
        )
        await self.sim.settle(run, Waiting(wait, opened))

    async def resumed(self, name: str) -> Assignment:
        """Claim the workflow that has been woken."""
        topic = TOPICS[name]
        worker = WORKERS[topic.workers[self.sim.random.randrange(2) % len(topic.workers)]].id
        [run] = await self.sim.claim(worker, topic.queue, topic.policy)
        return run

    async def order(
        self, customer: str, items: Sequence[str], until: str, slow: float = 1.0
    ) -> Script:
        """Place an order: steps, a pause, parcels, and an approval."""
        sim, key = self.sim, StepKey("parcels", 1)
        payload = {"customer": customer, "items": list(items), "express": len(items) > 2}
        order = await sim.submit("place_order", payload, tags=("eu",))
        yield 0.4
        run = await self.resumed("place_order")
        yield 0.3 * slow
        await self.step(run, 1, "reserve_stock", 0.3 * slow, value=f'{{"reserved":{len(items)}}}')
        if until == "reserved":
            return
        yield 2.1 * slow
        await self.step(run, 2, "charge", 2.1 * slow, value='{"receipt":"R-88190"}', tries=2)
        yield 0.1
        await self.suspend(run, 3, "grace period", Wait(kind=StepKind.SLEEP, delay=40 * slow))
        yield 40 * slow + 0.1
        run = await self.resumed("place_order")
        await self.step(run, 3, "grace period", 40 * slow, kind=StepKind.SLEEP, value=None)
        yield 0.2
        name = family(key)
        children = [
            NewJob(
                id=child_id(order, name, index),
                topic="ship_item",
                payload=f'{{"item":"{item}"}}',
                parent_id=order,
                parent_step=name,
            )
            for index, item in enumerate(items)
        ]
        await sim.store.workflows.add_children(run.lease, children)
        await self.suspend(run, 4, "parcels", Wait(kind=StepKind.FAN_OUT, key=name))
        yield 0.4
        runs = await sim.claim(
            WORKERS["app-2"].id, "default", TOPICS["ship_item"].policy, len(items)
        )
        for each in runs:
            yield 4.5 * slow * sim.random.uniform(0.5, 1.5)
            await sim.settle(each, Succeeded('"parcel"'))
        yield 0.3
        run = await self.resumed("place_order")
        await self.step(run, 4, "parcels", 0, kind=StepKind.FAN_OUT, value=None)
        if until == "approval":
            yield 0.4
            wait = Wait(kind=StepKind.SIGNAL, key="approved", delay=DAY)
            await self.suspend(run, 5, "approved", wait)
            return
        yield 0.2 * slow
        await self.step(run, 5, "invoice", 0.2 * slow)
        yield 0.1
        await sim.settle(run, Succeeded('{"order":48213,"parcels":3}'))

    def orders(self) -> None:
        """Have orders in every state."""
        start = self.sim.start
        start(2.3 * HOUR, self.order("ada", ["book", "lamp", "pen"], "approval"))
        start(5.1 * HOUR, self.order("grace", ["desk"], "approval", 2.0))
        start(1.6 * HOUR, self.order("alan", ["kettle", "cup"], "end"))
        start(40 * MINUTE, self.order("radia", ["router", "switch", "cable", "rack"], "end", 1.4))
        start(21, self.order("tony", ["clock"], "sleep"))
        start(9, self.order("barbara", ["chair", "rug"], "sleep"))
        start(2.6, self.order("margaret", ["globe"], "reserved"))

    def catalog(self) -> None:
        """Render a catalogue of 200 pages, half of which are done."""
        self.sim.start(11 * MINUTE, self.render(200))

    async def render(self, pages: int) -> Script:
        """Render a catalogue: a fan-out whose children run eight at a time."""
        sim, name = self.sim, family(StepKey("pages", 1))
        payload = {"season": "winter", "pages": pages}
        job = await sim.submit("render_catalog", payload, queue="media")
        yield 0.6
        run = await self.resumed("render_catalog")
        yield 6.2
        await self.step(run, 1, "fetch products", 6.2, value='{"products":1841}')
        yield 2.4
        await self.step(run, 2, "lay out", 2.4, value=f'{{"pages":{pages}}}')
        yield 0.2
        await sim.store.workflows.add_children(
            run.lease,
            [
                NewJob(
                    id=child_id(job, name, number),
                    topic="render_page",
                    payload=f'{{"page":{number + 1}}}',
                    queue="media",
                    parent_id=job,
                    parent_step=name,
                )
                for number in range(pages)
            ],
        )
        await self.suspend(run, 3, "pages", Wait(kind=StepKind.FAN_OUT, key=name))
        for slot in range(6):
            sim.spawn(self.renderer("media-1" if slot % 2 else "media-2"))
        yield 0

    async def renderer(self, worker: str) -> Script:
        """Render one page after the other."""
        sim = self.sim
        topic = TOPICS["render_page"]
        while runs := await sim.claim(WORKERS[worker].id, topic.queue, topic.policy):
            yield sim.random.uniform(14, 38)
            page = "FontError: glyph U+20BF is not in 'Inter-Regular.ttf'"
            is_bad = sim.random.random() < 0.02
            await sim.settle(runs[0], Failed(page, final=True) if is_bad else Succeeded("1"))
            yield 0.2

    # -- schedules --------------------------------------------------------------------------------

    async def schedules(self) -> None:
        """Declare the schedules of the shop, and let workers fire them."""
        put = self.sim.store.schedules.put
        micro = 1_000_000
        specs = {
            "nightly-report": ScheduleSpec(
                topic="nightly_report", payload='{"format":"pdf"}', cron="0 2 * * *",
                zone="Europe/Berlin", queue="reports", headers={"team": "finance"},
            ),
            "inventory": ScheduleSpec(
                topic="sync_inventory", payload='{"warehouses":["BER","HAM"]}', every=900 * micro
            ),
            "prices": ScheduleSpec(topic="update_prices", payload="{}", cron="20 * * * *"),
            "abandoned-carts": ScheduleSpec(
                topic="cleanup_carts", payload='{"older_than":"2h"}', cron="*/10 * * * *"
            ),
            "bank-statements": ScheduleSpec(
                topic="bank_statements", payload="{}", cron="10 10 * * MON-FRI",
                queue="payments", catch_up=CatchUp.ALL,
            ),
            "newsletter": ScheduleSpec(
                topic="send_email", payload='{"template":"newsletter"}', cron="0 9 * * MON",
                zone="Europe/Berlin", queue="mail",
            ),
            "search-index": ScheduleSpec(
                topic="rebuild_search", payload="{}", cron="30 */2 * * *", queue="reports"
            ),
        }  # fmt: skip
        self.sim.now = NOW - timedelta(seconds=6.9 * DAY)
        for name, spec in specs.items():
            await put(APP, name, spec, declared=True)
        self.sim.start(6.9 * DAY - 30, self.scheduler())

    async def scheduler(self) -> Script:
        """Fire what is due; the statements of today were missed."""
        schedules = self.sim.store.schedules
        while True:
            due = await schedules.due(50)
            late = {"bank-statements"} if self.sim.end - self.sim.now < timedelta(days=1) else set()
            fires = [decide(row, due.now) for row in due.rows if row.name not in late]
            for job in await schedules.fire(fires) if fires else ():
                self.sim.spawn(self.fired(job))
            coming = (await schedules.due(50)).next_run_at or self.sim.end
            yield max(60.0, (coming - self.sim.now).total_seconds() + 0.4)

    async def fired(self, job: NewJob) -> Script:
        """Run a job that a schedule has made."""
        topic, pick = TOPICS[job.topic], self.sim.random
        yield topic.wait
        seconds = topic.run * pick.uniform(0.7, 1.5)
        tries = [Try(seconds, Succeeded('{"changed":312}'))]
        if job.topic == "sync_inventory" and pick.random() < 0.08:
            tries = [Try(seconds / 2, Failed(SKU_ERROR, SKU_TRACE))] * 3
        elif job.topic == "update_prices" and pick.random() < 0.15:
            tries.insert(0, Try(seconds, Failed("ConnectionError: feed.example refused", None)))
        worker = WORKERS[topic.workers[0]].id
        async for pause in self.sim.attempts(worker, topic.queue, topic.policy, tries):
            yield pause

    # -- people ----------------------------------------------------------------------------------

    def operators(self) -> None:
        """Let people act: the audit log names them."""
        self.sim.start(DAY * 1.2, self.pause_newsletter())
        self.sim.start(2.4 * HOUR, self.retry_some())
        self.sim.start(50 * MINUTE, self.cancel_some())

    async def pause_newsletter(self) -> Script:
        """Pause a schedule."""
        ada = Operator("ada (dashboard)", role="admin")
        await self.sim.store.schedules.pause(APP, "newsletter", by=ada)
        yield 90
        await self.sim.store.schedules.pause(APP, "search-index", by=ada)
        yield 400
        await self.sim.store.schedules.resume(APP, "search-index", by=ada)

    async def retry_some(self) -> Script:
        """Retry some of the dead letters of the night."""
        store = self.sim.store
        dead = await store.list_jobs(
            JobFilter(status=(Status.DEAD_LETTERED,), topic="send_email"), limit=14
        )
        grace = Operator("grace@ops-1", detail="status=DEAD_LETTERED topic=send_email since=4h")
        await store.replay([job.id for job in dead], by=grace)
        topic = TOPICS["send_email"]
        for _ in dead:
            self.sim.spawn(
                self.sim.attempts(
                    WORKERS["mail"].id, topic.queue, topic.policy, [Try(0.3, Succeeded())]
                )
            )
        yield 0

    async def cancel_some(self) -> Script:
        """Cancel a few jobs."""
        sim = self.sim
        ids = [
            await sim.submit("encode_video", {"path": f"drafts/{n}.mov"}, queue="media", delay=HOUR)
            for n in range(3)
        ]
        yield 20
        await sim.store.cancel(
            ids, by=Operator("deploy-bot", role="operate", claimed="ci@runner-7")
        )
        yield 65
        await sim.store.delete(ids[:1], by=Operator("ada (dashboard)", role="admin"))

    # -- now -------------------------------------------------------------------------------------

    async def right_now(self) -> None:
        """Heartbeats, progress, and the scan of a watchdog."""
        store = self.sim.store
        running = await store.list_jobs(JobFilter(status=(Status.RUNNING,)), limit=500)
        counted: dict[UUID, int] = {}
        notes = iter(
            (
                (0.82, "pass 2 of 2"),
                (0.46, "pass 1 of 2"),
                (0.31, "pass 1 of 2"),
                (0.64, "12,180 of 19,004 documents"),
                (0.12, "pass 1 of 2"),
            )
        )
        for job in running:
            assert job.locked_by is not None
            counted[job.locked_by] = counted.get(job.locked_by, 0) + 1
            lease = Lease(job.id, job.lease_token, job.locked_by)
            if job.topic in {"encode_video", "rebuild_search"}:
                share, note = next(notes)
                await store.set_progress(lease, f'{{"fraction":{share},"note":"{note}"}}')
            if job.locked_by != WORKERS["lost"].id:
                await store.beat([lease])
        self.sim.now = NOW - timedelta(seconds=3)
        await store.watchdog()
        await announce(self.sim, counted)


# -- statistics ------------------------------------------------------------------------------------


def busyness(at: datetime) -> float:
    """Return how busy the shop is at a time, about 1 at noon and a fifth of that at night."""
    hours = at.hour + at.minute / 60
    day = 0.58 - 0.42 * math.cos((hours - 4) / 24 * 2 * math.pi)
    week = 0.72 if at.weekday() >= 5 else 1.0
    return day * week


def mail_outage(at: datetime) -> float:
    """Return the share of mail that fails at a time."""
    ago = (NOW - at).total_seconds()
    night = math.exp(-(((ago - 3.0 * HOUR) / 700) ** 2)) * 0.55
    days_ago = math.exp(-(((ago - 3.4 * DAY) / 2400) ** 2)) * 0.5
    return 0.004 + night + days_ago


def bank_trouble(at: datetime) -> float:
    """Return the share of charges that fail at a time."""
    ago = (NOW - at).total_seconds()
    return 0.01 + math.exp(-(((ago - 16 * MINUTE) / 420) ** 2)) * 0.6


FAILS = {
    "send_email": (mail_outage, "smtplib.SMTPServerDisconnected", MAIL_ERROR),
    "charge_card": (bank_trouble, "TimeoutError", CARD_ERROR),
    "sync_inventory": (lambda _: 0.06, "KeyError", SKU_ERROR),
    "encode_video": (lambda _: 0.02, "subprocess.CalledProcessError", VIDEO_ERROR),
}


async def statistics(sim: Simulation) -> None:
    """Write a week of statistics, by ten minutes at first and then by the minute."""
    fine = 26 * HOUR
    minutes = [*range(int(WEEK), int(fine), -600), *range(int(fine), -1, -60)]
    batch: list[tuple[list[Rollup], list[ErrorRollup]]] = []
    recorder = WORKERS["app-1"].id
    for ago in minutes:
        sim.now = NOW - timedelta(seconds=ago)
        batch.append(_minute(sim, 10 if ago > fine else 1))
        if ago > fine or len(batch) == 8 or ago == minutes[-1]:
            rollups = [row for rows, _ in batch for row in rows]
            await sim.store.rollups.record(recorder, rollups, [e for _, es in batch for e in es])
            batch.clear()
    sim.now = NOW
    while await sim.store.rollups.fold(keep=None, limit=20_000):
        pass


def _minute(sim: Simulation, length: int) -> tuple[list[Rollup], list[ErrorRollup]]:
    at = sim.now.replace(second=0, microsecond=0)
    rollups, errors = [], []
    for topic in TOPICS.values():
        mean = topic.per_minute * busyness(at) * length
        ended = _poisson(sim, mean)
        if not ended:
            continue
        share, error, message = FAILS.get(topic.name, (lambda _: 0.0, "", ""))
        bad = min(ended, _poisson(sim, ended * share(at)))
        dead = bad // 24
        slow = 1 + 14 * share(at)
        rollups.append(
            Rollup(
                at,
                topic.queue,
                topic.name,
                Stats(
                    submitted=ended - bad // 2,
                    started=ended,
                    succeeded=ended - bad,
                    failed=bad - dead,
                    dead_lettered=dead,
                    wait=_durations(sim, topic.wait * slow, ended),
                    run=_durations(sim, topic.run * slow, ended),
                ),
            )
        )
        if bad:
            errors.append(
                ErrorRollup(at, topic.queue, topic.name, error, bad, dead, sim.now, message)
            )
    return rollups, errors


def _poisson(sim: Simulation, mean: float) -> int:
    spread = sim.random.gauss(mean, math.sqrt(mean) * 1.6) if mean > 4 else 0.0
    if mean > 4:
        return max(0, round(spread))
    return int(mean) + (sim.random.random() < mean % 1)


SAMPLES = 12


def _durations(sim: Simulation, typical: float, count: int) -> Histogram:
    """Return a histogram of so many durations, scaled up from a few samples."""
    few = min(count, SAMPLES)
    sample = Histogram.of(sim.random.lognormvariate(math.log(typical), 0.6) for _ in range(few))
    factor, rest = divmod(count, few)
    counts = [each * factor for each in sample.counts]
    counts[max(range(len(counts)), key=counts.__getitem__)] += rest
    return Histogram(tuple(counts), sample.seconds * count / few)
