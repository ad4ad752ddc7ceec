"""Jobs that the framework of Django knows nothing about."""

from pulsed.contrib.django import app
from tests.contrib_django.project.shop.models import Order


@app.job
def count_orders() -> int:
    """Use the database of the project."""
    return Order.objects.count()


@app.job
async def acount_orders() -> int:
    """Use it from the event loop."""
    return await Order.objects.acount()
