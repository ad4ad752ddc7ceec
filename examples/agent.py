"""An agent that survives crashes: each answer of the model and each tool call is a stored step.

Run it with ``.venv/bin/python examples/agent.py``. The model is a function on this machine, so that
nothing is needed; a real one is a call in ``ask_model``. The refund waits for a person, the worker
dies after every checkpoint, and still no answer is paid for twice and no money is sent twice.
"""

import asyncio
import sys
from typing import Any

from pulsed import Context, Pulse, SignalTimeout, testing

app = Pulse("sqlite:///agent.db")
MOST_TURNS = 10
NEEDS_APPROVAL = {"refund"}
calls: list[str] = []
"""What happened in the world."""
payments: dict[str, int] = {}
"""What the payment service paid, by key."""

Message = dict[str, Any]


@app.job(timeout=600)
async def agent(ctx: Context, task: str) -> str:
    """Ask the model, do what it wants, tell it the result, until it answers."""
    messages: list[Message] = [{"role": "user", "content": task}]
    for turn in range(1, MOST_TURNS + 1):
        await ctx.aprogress({"turn": turn})
        reply = await ctx.step(ask_model, messages, retry=3, timeout=60)
        messages.append(reply)
        wanted = reply.get("tool")
        if wanted is None:
            return str(reply["content"])
        result = await use_tool(ctx, turn, wanted["name"], wanted["arguments"])
        messages.append({"role": "tool", "name": wanted["name"], "content": result})
    return "gave up: too many turns"


async def use_tool(ctx: Context, turn: int, name: str, arguments: dict[str, Any]) -> Any:
    """Run a tool as a step; a dangerous one waits for a person first, for a day if need be."""
    if name in NEEDS_APPROVAL:
        try:
            approved = await ctx.wait_signal("approval", bool, timeout=86_400)
        except SignalTimeout:
            approved = False
        if not approved:
            return "refused by a person"
    # A step runs twice if its worker dies between the call and the checkpoint. So the tool gets a
    # key that is the same then, and passes it on.
    return await ctx.step(TOOLS[name], f"{ctx.job_id}/{turn}", arguments, name=name)


async def ask_model(messages: list[Message]) -> Message:
    """Answer as a model would: look at the order, refund it, then say so."""
    calls.append("model")
    await asyncio.sleep(0.01)
    results = {each["name"]: each["content"] for each in messages if each["role"] == "tool"}
    if "find_order" not in results:
        return wants("find_order", customer="ada")
    order = results["find_order"]
    if "refund" not in results:
        return wants("refund", order=order["id"], cents=order["cents"])
    return {"role": "assistant", "content": f"I refunded order {order['id']}: {results['refund']}."}


def wants(tool: str, **arguments: Any) -> Message:
    """Return a reply that calls a tool."""
    return {"role": "assistant", "tool": {"name": tool, "arguments": arguments}}


async def find_order(_key: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Read the order of a customer."""
    calls.append("find_order")
    return {"id": 17, "customer": arguments["customer"], "cents": 4900}


async def refund(key: str, arguments: dict[str, Any]) -> str:
    """Send the money back. The payment service knows the key, and pays once for it."""
    calls.append("refund")
    payments[key] = arguments["cents"]
    return f"{arguments['cents'] / 100:.2f} EUR are on their way"


TOOLS: dict[str, Any] = {"find_order": find_order, "refund": refund}


def main() -> int:
    """Run the agent with a worker that crashes, and approve the refund."""
    with testing.override(app) as sandbox:
        job = agent.enqueue("The lamp of ada arrived broken. Help her.")
        first = sandbox.drain(crash="after_every_checkpoint")
        print(f"{len(first)} runs, {job.refresh().status}: the refund waits for a person")
        assert "refund" not in calls

        job.signal("approval", True)
        runs = first + sandbox.drain(crash="after_every_checkpoint")
        print(
            f"{len(runs)} runs after the approval, because the worker crashed at every checkpoint"
        )
        print(f"answer: {job.result()}")
    print(f"in the world: {', '.join(calls)}; payments: {list(payments.values())}")
    return 0 if calls == ["model", "find_order", "model", "refund", "model"] else 1


if __name__ == "__main__":
    sys.exit(main())
