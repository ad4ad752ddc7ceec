"""Tasks of every kind."""

import time
from importlib import import_module
from typing import Any

import django
from django.db.models import F

from pulsed import Limit
from tests.contrib_django.project.shop.models import Order

FRAMEWORK = "django_tasks" if django.VERSION < (6, 0) else "django.tasks"
task: Any = import_module(FRAMEWORK).task
signals: Any = import_module(f"{FRAMEWORK}.signals")
TAKES_OPTIONS = django.VERSION[:2] != (6, 0)
"""Whether ``@task`` takes options of pulsed; otherwise only ``using`` does."""


def task_with(**options: Any) -> Any:
    """``@task`` with options of pulsed; a limit is left out where ``@task`` takes none of them."""
    if TAKES_OPTIONS:
        return task(**options)
    options.pop("limit", None)
    return lambda function: task(function).using(**options)


@task
def pack(order_id, note=""):
    """Count a run of an order."""
    Order.objects.filter(id=order_id).update(runs=F("runs") + 1)
    return {"order": order_id, "note": note}


@task
async def apack(order_id):
    """The same on the event loop."""
    await Order.objects.filter(id=order_id).aupdate(runs=F("runs") + 1)
    return order_id


@task(queue_name="mail", priority=7)
def mail(to):
    """Send nothing."""
    return to


@task(takes_context=True)
def attempts(context):
    """Fail once, then tell how often it was tried."""
    if context.attempt == 1:
        raise LookupError("not yet")
    return [context.attempt, len(context.task_result.errors)]


@task
def fail(how):
    """Raise."""
    raise ValueError(how)


@task
def leave():
    """Exit."""
    raise SystemExit("the task is done with it")


@task_with(max_attempts=5, key="bill-{order_id}", timeout=30, expires=3600, tags=["money"])
def bill(order_id, cents=0):
    """A task with options of pulsed."""
    return cents


@task_with(limit=Limit(running=1, per="customer"))
def serve(order_id, customer="nobody"):
    """A task whose jobs share a limit for each customer."""
    return customer


@task_with(limit=2)
def print_label(order_id):
    """A task of which two may run at once."""


@task
def not_json():
    """Return what JSON has no form for."""
    return object()


class OutOfPaper(Exception):
    """An error of the project's own."""


@task_with(max_attempts=1)
def fail_in_its_own_way():
    """Raise an error that is not built in."""
    raise OutOfPaper("tray 2:\nof four")


@task
async def anothing():
    """Do nothing on the event loop."""


@task
def slow(order_id):
    """Use the database twice, with a pause in which it may go away."""
    pack.func(order_id)
    time.sleep(0.3)
    pack.func(order_id)
