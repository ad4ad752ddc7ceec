"""The quickstart, typed to the letter into two real terminals, gives what it shows."""

import socket
from collections.abc import Mapping
from pathlib import Path

from pulsed.store.open import redacted
from tests.support.pages import PLACEHOLDER, ROOT
from tests.support.typed_pages import NOT_TYPED, Typed, Typist, steps

QUICKSTART = ROOT / "docs/quickstart.md"
SQLITE = "sqlite:///jobs.db"
SQLITE_SHOWN = "sqlite:////home/ada/shop/jobs.db"


def for_reader(folder: Path, postgres_url: str) -> dict[str, str]:
    """Return what a reader has in the place of what the page shows."""
    return {
        "/home/ada/shop": str(folder),
        PLACEHOLDER: postgres_url,
        redacted(PLACEHOLDER): redacted(postgres_url),
    }


def type_page(
    folder: Path, replace: Mapping[str, str], page: Path = QUICKSTART, until: str | None = None
) -> None:
    typist = Typist(folder, replace)
    try:
        for step in steps(page, until):
            typist.do(step)
    finally:
        typist.close()


def test_the_quickstart_works_to_the_letter(tmp_path: Path, postgres_url: str):
    type_page(tmp_path, for_reader(tmp_path, postgres_url))


def test_the_quickstart_works_to_the_letter_with_postgresql_all_along(
    tmp_path: Path, postgres_url: str
):
    on_postgres = {SQLITE_SHOWN: redacted(postgres_url), SQLITE: postgres_url}
    type_page(tmp_path, on_postgres | for_reader(tmp_path, postgres_url))
    assert not list(tmp_path.glob("*.db"))


def test_the_start_of_the_readme_works_to_the_letter(tmp_path: Path):
    type_page(tmp_path, {"/home/ada/shop": str(tmp_path)}, ROOT / "README.md", "## By the clock")


def test_nothing_in_the_quickstart_is_hidden_and_nothing_but_the_installation_is_left_out():
    assert "<!--" not in QUICKSTART.read_text("utf-8")
    typed = [step.line for step in steps(QUICKSTART) if isinstance(step, Typed)]
    assert [line for line in typed if NOT_TYPED.match(line)] == [
        'pip install ".[ui]"',
        'pip install ".[ui,postgres]"',
    ]


def test_the_recorded_session_is_the_quickstart_and_names_nothing_of_the_machine():
    session = (ROOT / "docs/first-session.txt").read_text("utf-8")
    at = 0
    for step in steps(QUICKSTART, until="## 6."):
        if isinstance(step, Typed):
            typed = step.line if step.line == "^C" else f"$ {step.line}\n"
            at = session.index(typed, at) + 1  # or make it again: python3 dev.py record
    assert str(ROOT) not in session
    assert "/tmp" not in session
    assert socket.gethostname() not in session.split()
