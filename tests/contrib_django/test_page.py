"""The project that docs/django.md shows, file by file, with its own commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

from tests.support.pages import ROOT, blocks

NAME = re.compile(r"# ([\w/]+\.py)\n")
MANAGE = (ROOT / "examples/django_newsletter/manage.py").read_text("utf-8")
MODELS = """
from django.db import models

class Order(models.Model):
    name = models.CharField(max_length=100)
"""
STORY = """
import asyncio, os
import asgi
from django.core.management import call_command
from starlette.testclient import TestClient
from pulsed.contrib.django import app
from shop.jobs import archive, count
from shop.orders import buy, buy_later
from shop.tasks import report, send_receipt
from tests.support.workers import Working, until

call_command("migrate", run_syncdb=True, verbosity=0)
result, again = buy("lamp"), send_receipt.enqueue(1)
assert result.id == again.id, "the key is held"
results = [result, report.enqueue()]
results.append(asyncio.run(buy_later("book")))
jobs = [archive.enqueue("nothing"), count.enqueue()]

async def main():
    async with app:
        worker = Working(app.worker(poll=0.02))
        for job in jobs:
            print(await job.aresult(timeout=60))
        for each in results:
            await until(lambda: asyncio.to_thread(lambda: (each.refresh(), each.is_finished)[1]))
            print(each.return_value)
        await worker.stop()

asyncio.run(main())
print(*sorted(schedule.name for schedule in app.schedules.list()))
print(TestClient(asgi.application).get("/jobs/").status_code)
"""


def adapted(code: str) -> str:
    """What the page tells readers with an older Django to write."""
    if django.VERSION >= (6, 0):
        return code
    code = code.replace("backend.PulsedBackend", "backport.BackportBackend")
    code = code.replace("from django.tasks", "from django_tasks")
    return code.replace('"pulsed.contrib.django",\n', '"django_tasks", "pulsed.contrib.django",\n')


@pytest.mark.skipif(django.VERSION[:2] == (6, 0), reason="its @task takes no options of pulsed")
def test_the_project_on_the_page_works(tmp_path: Path):
    files = {"manage.py": MANAGE.replace("newsletter.settings", "settings")}
    files |= {"shop/__init__.py": "", "shop/models.py": MODELS, "story.py": STORY}
    files |= {"urls.py": "urlpatterns = []"}
    for block in blocks(ROOT / "docs/django.md"):
        if name := NAME.match(block.code):
            files[name[1]] = adapted(block.code)
    assert {"settings.py", "shop/tasks.py", "shop/tests.py", "asgi.py"} <= files.keys()
    (tmp_path / "shop").mkdir()
    for file, code in files.items():
        (tmp_path / file).write_text(code, "utf-8")

    def python(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    assert "Ran 2 tests" in python("manage.py", "test", "shop")
    told = python("story.py").splitlines()
    assert told[-7:-2] == ["0", "1", "receipt for lamp", "attempt 1", "receipt for lamp"]
    assert told[-2:] == ["nightly report", "401"]
