"""``dev.py django`` notices what is not as its table of differences says."""

from tests.django_suite.__main__ import judge
from tests.django_suite.differences import DIFFERENCES

AS_EXPECTED: dict[str, str | None] = {"Case.test_passes": None, **dict.fromkeys(DIFFERENCES, "so")}


def test_outcomes_that_the_table_explains_are_counted(capsys):
    assert judge("6.1", "SQLite", AS_EXPECTED)
    assert f"{len(DIFFERENCES) + 1} tests, 1 passed, {len(DIFFERENCES)} differ" in (
        capsys.readouterr().out
    )


def test_a_failure_that_is_not_in_the_table_is_shown(capsys):
    assert not judge("6.1", "SQLite", {**AS_EXPECTED, "Case.test_passes": "AssertionError"})
    assert "Case.test_passes failed:\nAssertionError" in capsys.readouterr().out


def test_a_difference_that_is_no_more_must_leave_the_table(capsys):
    gone = min(DIFFERENCES)
    assert not judge("6.1", "SQLite", {**AS_EXPECTED, gone: None})
    assert f"{gone} passes now" in capsys.readouterr().out
