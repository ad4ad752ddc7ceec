"""Mails as tasks of Django's framework."""

from typing import Any

import django
from django.db import transaction

from .models import Mail, Subscriber

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task(queue_name="mail")
def welcome(subscriber_id: int) -> None:
    subscriber = Subscriber.objects.get(id=subscriber_id)
    Mail.objects.create(address=subscriber.address, subject="Welcome")


@transaction.atomic
def subscribe(address: str) -> Any:
    """Store a subscription and its mail: both, or neither."""
    subscriber = Subscriber.objects.create(address=address)
    return welcome.enqueue(subscriber.id)
