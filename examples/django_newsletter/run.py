"""Runs the example: subscribe, roll back, start a worker, and show what was sent.

Run it with ``.venv/bin/python examples/django_newsletter/run.py``. It needs Django, and
django-tasks if that is older than 6.0.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import django

HERE = Path(__file__).resolve().parent
# Nothing in it is worth keeping: what happened is told.
SCRATCH = tempfile.TemporaryDirectory(prefix="pulsed-newsletter-", ignore_cleanup_errors=True)
os.environ["NEWSLETTER_FOLDER"] = SCRATCH.name
os.environ["DJANGO_SETTINGS_MODULE"] = "newsletter.settings"
sys.path.insert(0, str(HERE))
django.setup()

from django.core.management import call_command  # noqa: E402 - after the setup
from django.db import transaction  # noqa: E402
from subscribers.jobs import issue  # noqa: E402
from subscribers.models import Mail  # noqa: E402
from subscribers.tasks import subscribe  # noqa: E402

PATIENCE = 60.0


def main() -> int:
    """Tell the story; the exit code says whether every mail was sent once."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    for address in ("ada@example.com", "bob@example.com", "cy@example.com"):
        print(f"{address} subscribed; the mail is task {subscribe(address).id}")
    with transaction.atomic():
        subscribe("mallory@example.com")
        transaction.set_rollback(True)
    print("mallory's subscription was rolled back, and the mail with it")

    issue.enqueue()
    print("the monthly issue goes out today, a little early")
    worker = start_worker()
    give_up_at = time.monotonic() + PATIENCE
    while Mail.objects.count() < 6 and time.monotonic() < give_up_at:
        time.sleep(0.05)
    worker.terminate()
    worker.wait()
    sent = [f"{mail.subject} to {mail.address}" for mail in Mail.objects.order_by("id")]
    print("sent: " + "; ".join(sorted(sent)))
    return 0 if len(sent) == len(set(sent)) == 6 else 1


def start_worker() -> subprocess.Popen[bytes]:
    """Start a worker as anybody would, in a process of its own."""
    command = [sys.executable, "manage.py", "pulsed", "worker", "--log-level", "error"]
    return subprocess.Popen(command, cwd=HERE)


if __name__ == "__main__":
    sys.exit(main())
