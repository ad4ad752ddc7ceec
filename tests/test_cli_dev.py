"""``pulsed dev`` as a newcomer meets it: what it shows, what it suggests, how it stops."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from pulsed import Context, Pulse
from pulsed.cli.options.dashboard import dashboard_beside
from pulsed.cli.view.suggestions import suggestions
from tests.support.commands import CLEAN
from tests.support.terminals import CONTROL_C, ENTER, Terminal

APP = """
import time
from pathlib import Path

from pulsed import Pulse

app = Pulse("sqlite:///jobs.db")

@app.job
def wait(name: str, shared: bool = False) -> str:
    while not Path("go").exists():
        time.sleep(0.01)
    return f"hello, {name}"
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLEAN:
        monkeypatch.delenv(name, raising=False)


async def test_without_its_extra_the_dashboard_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    async with dashboard_beside(Pulse("sqlite://"), "viewer"):
        assert re.search(r"no dashboard.+: pip install .+\[ui\]", capsys.readouterr().err)
    async with dashboard_beside(Pulse("sqlite://"), None):  # --no-ui
        assert not capsys.readouterr().err


def test_the_first_hour_in_two_terminals(tmp_path: Path):
    """What it suggests works when pasted, each job has a line, and Ctrl-C drains visibly."""
    (tmp_path / "shop.py").write_text(APP)
    with Terminal(tmp_path) as first, Terminal(tmp_path) as second:
        first.type("pulsed dev shop:app" + ENTER)
        first.wait(lambda: "started:" in first.text)
        assert "100; def handlers run in up to 100 threads" in first.text
        tries = re.findall(r"^  (pulsed .+)$", first.text, re.MULTILINE)
        assert tries == [
            "pulsed enqueue wait name=Ada --wait --app shop:app",
            "pulsed jobs list --app shop:app",
            "pulsed doctor --app shop:app",
        ]

        second.type(tries[0] + ENTER)
        second.wait(lambda: "waiting for " in second.text)
        first.type(CONTROL_C)
        first.wait(lambda: "draining 1 running job (wait)" in first.text)
        (tmp_path / "go").touch()
        first.wait(lambda: first.is_ready)
        assert "(wait) succeeded in " in first.text
        assert re.search(r"drained in .+: every job has ended", first.text)
        second.wait(lambda: second.is_ready)
        assert '\n"hello, Ada"\n' in second.text

        for command, shown in zip(tries[1:], ("SUCCEEDED", "database"), strict=True):
            second.type(command + ENTER)
            second.wait(lambda: second.is_ready)
            assert shown in second.text


# -- what it suggests -----------------------------------------------------------------------------


@dataclass
class Order:
    item: str


def first_of(app: Pulse, url: str | None = None) -> str:
    return next(iter(suggestions(app, "shop:app", url)))


def test_arguments_are_such_that_the_handler_takes_them():
    app = Pulse("sqlite:///jobs.db")

    @app.job
    def resize(ctx: Context, image: int, sizes: list[int], at: datetime, why: str = "") -> None: ...

    assert first_of(app) == (
        "pulsed enqueue resize image=1 'sizes=[]' at=2030-01-01T00:00:00+00:00 "
        "--wait --app shop:app"
    )


def test_a_handler_that_takes_what_cannot_be_guessed_is_passed_over():
    app = Pulse("sqlite:///jobs.db")

    @app.job
    def place(order: Order) -> None: ...

    assert first_of(app) == "pulsed jobs list --app shop:app"

    @app.job
    def tidy() -> None: ...

    assert first_of(app) == "pulsed enqueue tidy --wait --app shop:app"


def test_a_database_that_the_app_does_not_name_is_part_of_the_command(monkeypatch):
    app = Pulse("sqlite:///own.db")
    app.url = "sqlite:///my jobs.db"
    assert first_of(app, "sqlite:///my jobs.db") == (
        "pulsed jobs list --app shop:app --url 'sqlite:///my jobs.db'"
    )
    monkeypatch.setenv("PULSED_URL", "sqlite:///set.db")
    assert first_of(Pulse()) == "pulsed jobs list --app shop:app --url sqlite:///set.db"
    assert first_of(Pulse("sqlite:///own.db")) == "pulsed jobs list --app shop:app"


def test_a_password_is_not_shown(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://ada:secret@db/shop")
    app = Pulse("postgresql://ada:secret@db/shop")
    assert first_of(app) == 'pulsed jobs list --app shop:app --url "$DATABASE_URL"'
    app.url = "postgresql://ada:other@db/shop"
    assert first_of(app, app.url) == 'pulsed jobs list --app shop:app --url "$PULSED_URL"'
