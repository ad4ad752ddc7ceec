"""Several processes on one file: every job runs once."""

from tests.support.processes import submit_and_drain, together


def test_processes_on_one_file_run_every_job_once(database):
    """They also create it at the same moment; none gets "database is locked"."""
    answers = together(4, submit_and_drain, str(database), 20, 80)
    assert [answer for answer in answers if isinstance(answer, str)] == []
    submitted_ids = [job_id for mine, _ in answers for job_id in mine]
    ran = [job_id for _, mine in answers for job_id in mine]
    assert len(submitted_ids) == 80
    assert sorted(ran) == sorted(submitted_ids)
