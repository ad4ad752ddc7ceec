"""Several processes on one file, forked ones among them: every job runs once."""

import sqlite3
from contextlib import closing

from tests.support.processes import submit_and_drain, together
from tests.support.programs import python


def test_processes_on_one_file_run_every_job_once(database):
    """They also create it at the same moment; nobody ever hears "database is locked"."""
    answers = together(4, submit_and_drain, str(database), 20, 80)
    assert [answer for answer in answers if isinstance(answer, str)] == []
    submitted_ids = [job_id for mine, _ in answers for job_id in mine]
    ran = [job_id for _, mine in answers for job_id in mine]
    assert len(submitted_ids) == 80
    assert sorted(ran) == sorted(submitted_ids)


FORK = """
import os, sys
from pulsed.job import Status
from pulsed.store.blocking import run_blocking
from tests.support.jobs import EVERYTHING, a_job
from tests.support.processes import open_store

store = open_store(sys.argv[1])
for _ in range(3):
    run_blocking(store.submit([a_job()]))
    run_blocking(store.counts(EVERYTHING))
child = os.fork()
for _ in range(5):
    run_blocking(store.submit([a_job()]))
    run_blocking(store.counts(EVERYTHING))
if child == 0:
    run_blocking(store.aclose())
    os._exit(0)
_, status = os.waitpid(child, 0)
run_blocking(store.submit([a_job()]))
assert status == 0, status
print(run_blocking(store.counts(EVERYTHING))[Status.PENDING])
"""


def test_a_forked_child_opens_its_own_and_leaves_the_parents_alone(database):
    assert python("-c", FORK, str(database)).stdout == "14\n"
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_fork_while_another_thread_writes_does_not_hang_the_child(database):
    code = FORK.replace(
        "child = os.fork()", "store._writer._lock.acquire()\nchild = os.fork()"
    ).replace(
        "for _ in range(5):", "if child:\n    store._writer._lock.release()\nfor _ in range(5):"
    )
    assert python("-c", code, str(database)).stdout == "14\n"
