"""Calls that both type checkers must refuse: every line marked ``# E:``, and no other."""

from __future__ import annotations

from pulsed import Call, Context, Job, Pulse, testing

app = Pulse("sqlite:///jobs.db")


@app.job
async def send(to: str, subject: str = "hi", *, copies: int = 1) -> str:
    return f"{to}{subject}{copies}"


@app.job(max_attempts=5)
def add(a: int, b: int) -> int:
    return a + b


@app.job
async def order(ctx: Context, order_id: int) -> bool:
    return ctx.attempt > order_id


@app.job
def nothing() -> None: ...


def arguments() -> None:
    send.enqueue()  # E: missing
    send.enqueue(1)  # E: wrong type
    send.enqueue("a", "b", 3)  # E: too many
    send.enqueue("a", copies="3")  # E: wrong type by name
    send.enqueue("a", cc="b")  # E: unknown name
    add.enqueue(1)  # E: missing
    add.bind("1", 2)  # E: wrong type
    nothing.enqueue(1)  # E: too many
    order.enqueue()  # E: missing
    order.enqueue("7")  # E: wrong type
    order.enqueue(ctx=1, order_id=2)  # E: the context is not an argument


async def arguments_async(ctx: Context) -> None:
    await send.aenqueue(1)  # E: wrong type
    await order.aenqueue("7")  # E: wrong type
    await order.aenqueue(ctx, 7)  # E: the context is not an argument


async def many() -> None:
    add.enqueue_many([(1,)])  # E: missing
    add.enqueue_many([(1, "2")])  # E: wrong type
    add.enqueue_many([(1, 2, 3)])  # E: too many
    add.enqueue_many([1, 2])  # E: no tuples
    add.enqueue_many((n, f"{n}") for n in range(3))  # E: wrong type
    send.enqueue_many([(1,)])  # E: wrong type
    send.enqueue_many([("a", 1)])  # E: wrong type of an optional one
    send.enqueue_many([("a", "b", 3)])  # E: copies is given by name
    order.enqueue_many([("7",)])  # E: wrong type
    nothing.enqueue_many([(1,)])  # E: too many
    texts: list[Job[str]] = add.enqueue_many([(1, 2)])  # E: Job[int]
    await add.aenqueue_many([(1,)])  # E: missing
    await order.aenqueue_many([("7",)])  # E: wrong type
    del texts


def schedules() -> None:
    app.schedule("sums", add, every=60)  # E: missing arguments
    app.schedule("mails", send, cron="@daily")  # E: missing argument
    app.schedule("orders", order, every=60)  # E: missing argument
    app.schedule("nothing", nothing, evry=60)  # E: unknown option


@app.schedule("orders", every=60)  # E: missing argument
@app.job
def count(orders: int) -> int:
    return orders


def options() -> None:
    add.using(delay="60")  # E: wrong type
    add.using(prioritty=5)  # E: unknown option
    add.using(backoff=3)  # E: wrong type
    app.job(max_attempts="3")  # E: wrong type
    app.job(retries=3)  # E: unknown option
    app.enqueue("add", {"a": 1}, dely=3)  # E: unknown option
    app.enqueue(add, {"a": 1})  # E: a topic is a string


def results() -> None:
    text: str = add.enqueue(1, 2).result()  # E: int
    number: int = send.enqueue("a").result()  # E: str
    job: Job[str] = add.enqueue(1, 2)  # E: Job[int]
    call: Call[str] = add.bind(1, 2)  # E: Call[int]
    del text, number, job, call


async def calls(ctx: Context) -> None:
    wrong: str = send("a")  # E: a coroutine
    wrong = await send("a")
    number: str = add(1, 2)  # E: int
    add("1", 2)  # E: wrong type
    await order(ctx, "7")  # E: wrong type
    del wrong, number


def operates() -> None:
    app.jobs.list(stattus="PENDING")  # E: unknown condition
    app.jobs.get(5)  # E: no id
    app.jobs.list(limit="5")  # E: wrong type
    app.run(concurency=5)  # E: unknown option


async def charge(order_id: int, cents: int) -> str:
    return f"{order_id}{cents}"


@app.step
async def helper(a: int) -> str:
    return f"{a}"


async def workflow(ctx: Context) -> None:
    await ctx.step(charge, "1", 2)  # E: wrong type
    await ctx.step(charge, 1)  # E: missing
    await ctx.step(charge, 1, 2, retries=3)  # E: unknown option
    await ctx.sleep("1")  # E: wrong type
    number: int = await ctx.wait_signal("approved", str)  # E: another type
    results: list[str] = (await ctx.fan_out([add.bind(1, 2)])).values  # E: another type
    await ctx.fan_out([(1, 2)])  # E: no call
    await helper("1")  # E: wrong type
    assert number, results


def tests() -> None:
    with testing.override(app) as sandbox:
        sandbox.drain(crash="at_noon")  # E: no such fault
        sandbox.drain(skip=True)  # E: unknown option
        sandbox.clock.advance([7])  # E: no length of time
        sandbox.assert_enqueued(5)  # E: no job
        word: str = sandbox.assert_enqueued(add).result()  # E: another type
    assert word
