"""Jobs of pulsed itself: with types, workflows and schedules."""

from pulsed.contrib.django import app

from .models import Mail, Subscriber


@app.schedule("monthly issue", cron="0 9 1 * *")
@app.job
def issue() -> int:
    """Send the issue to all readers; returns to how many."""
    readers = Subscriber.objects.values_list("address", flat=True)
    return len(Mail.objects.bulk_create(Mail(address=each, subject="Issue 1") for each in readers))
