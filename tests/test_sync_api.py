"""The blocking methods where they are used: threads, forked processes, web servers, scripts."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from pulsed import Pulse
from pulsed.errors import CalledInEventLoop
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from tests.support.backends import Backend
from tests.support.programs import ROOT, python
from tests.support.scratch_postgres import free_port


@pytest.fixture
def app(backend: Backend) -> Iterator[Pulse]:
    app = Pulse(backend.app_url)

    @app.job
    async def greet(name: str) -> str:
        return f"Hello {name}"

    yield app
    app.close()


def names(backend: Backend) -> list[str]:
    """Return who is to be greeted, as the database has it."""
    found = backend.execute("SELECT payload FROM pulse_jobs ORDER BY id")
    return sorted(row[0]["name"] if isinstance(row[0], dict) else row[0][9:-2] for row in found)


def test_many_threads_may_enqueue_at_once(app: Pulse, backend: Backend):
    def enqueue(n: int) -> UUID:
        return app.enqueue("greet", {"name": f"{n:03}"}).id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(enqueue, range(200)))
    assert len(set(ids)) == 200
    assert names(backend) == [f"{n:03}" for n in range(200)]


def test_a_blocking_method_in_an_event_loop_names_its_twin(app: Pulse):
    async def main() -> None:
        with pytest.raises(CalledInEventLoop, match="aenqueue"):
            app.enqueue("greet", {"name": "Ada"})
        with pytest.raises(CalledInEventLoop, match="acounts"):
            app.jobs.counts()

    asyncio.run(main())


def test_one_app_serves_several_event_loops_one_after_the_other(app: Pulse):
    async def main() -> UUID:
        return (await app.aenqueue("greet", {"name": "Ada"})).id

    first, second = asyncio.run(main()), asyncio.run(main())
    third = app.enqueue("greet", {"name": "Ada"}).id
    assert app.jobs.counts()[Status.PENDING] == 3
    assert len({first, second, third}) == 3


FORKING = """
    import os, sys
    from pulsed import Pulse

    app = Pulse(sys.argv[1])
    app.enqueue("greet", {"name": "before"})
    pid = os.fork()
    if pid == 0:
        try:
            app.enqueue("greet", {"name": "child"})
            assert app.jobs.counts()
            app.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    app.enqueue("greet", {"name": "parent meanwhile"})
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    app.enqueue("greet", {"name": "parent after"})
    app.close()
"""


def test_parent_and_child_may_both_enqueue_after_a_fork(backend: Backend):
    python("-c", textwrap.dedent(FORKING), backend.app_url)
    assert names(backend) == ["before", "child", "parent after", "parent meanwhile"]


def test_ids_made_on_both_sides_of_a_fork_have_nothing_in_common():
    """Their random bits come by the block, and a block belongs to one process."""
    new_job_id()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, b"".join(new_job_id().bytes for _ in range(50)))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(reading, 50 * 16)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 50 * 16
    random_bits = {theirs[start + 8 : start + 16] for start in range(0, len(theirs), 16)}
    assert random_bits.isdisjoint(new_job_id().bytes[8:] for _ in range(50))


SITE = """
    import os
    from pulsed import Pulse

    jobs = Pulse()
    jobs.enqueue("greet", {"name": "preload"})  # opens connections in the parent

    def app(environ, start_response):
        jobs.enqueue("greet", {"name": environ["PATH_INFO"].strip("/")})
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [str(os.getpid()).encode()]
"""


class Site:
    """A preloading gunicorn with two workers."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "site_with_jobs.py").write_text(textwrap.dedent(SITE))
        self.address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
        self._process = subprocess.Popen(
            [*command, "--bind", self.address, "--log-level", "warning", "site_with_jobs:app"],
            cwd=folder,
            env={**os.environ, "PULSED_URL": url, "PYTHONPATH": str(ROOT / "src")},
        )

    def get(self, path: str) -> bytes:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/{path}", timeout=60) as answer:
                    body: bytes = answer.read()
                    return body
            except urllib.error.HTTPError:
                raise
            except OSError:
                assert time.monotonic() < deadline, "the server does not answer"
                assert self._process.poll() is None, "the server ended"
                time.sleep(0.05)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, backend.app_url)
    yield site
    site.kill()


def test_a_preloading_web_server_enqueues_from_all_of_its_workers(site: Site, backend: Backend):
    site.get("first")
    with ThreadPoolExecutor(4) as pool:
        pids = set(pool.map(site.get, (f"{n:02}" for n in range(40))))
    assert site.end() == 0
    assert names(backend) == [*(f"{n:02}" for n in range(40)), "first", "preload"]
    assert 1 <= len(pids) <= 2
