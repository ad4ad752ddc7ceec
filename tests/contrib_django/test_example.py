"""The example of a newsletter runs to its end."""

from pathlib import Path

from tests.support.programs import python


def test_the_newsletter_sends_every_mail_once(tmp_path: Path):
    said = python("examples/django_newsletter/run.py", seconds=120, TMPDIR=str(tmp_path)).stdout
    for part in (
        "ada@example.com subscribed; the mail is task ",
        "rolled back, and the mail with it",
        "Welcome to cy@example.com",
        "Issue 1 to bob@example.com",
    ):
        assert part in said
    assert "to mallory" not in said
    assert list(tmp_path.iterdir()) == []
