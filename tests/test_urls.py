"""From a URL to a store, and what happens when there is none."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import pulsed
from pulsed import Pulse, Status
from pulsed.errors import ConfigError, InvalidURL, MissingDriver
from pulsed.extras import command_for, install_command
from pulsed.store.open import open_store, redacted, require, sqlite_path
from tests.support.apps import declare_add
from tests.support.pages import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


class TestURLs:
    def test_an_app_does_nothing_before_its_first_use(self, path: Path) -> None:
        app = Pulse(f"sqlite:///{path}")
        declare_add(app)
        app.close()
        assert not path.exists()

    def test_the_environment_is_the_default(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PULSED_URL", f"sqlite:///{path}")
        with Pulse() as app:
            app.enqueue("anything")
        assert path.exists()

    def test_without_any_the_first_use_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PULSED_URL", raising=False)
        with pytest.raises(ConfigError, match=r"No database.*\$PULSED_URL"):
            Pulse().enqueue("anything")

    @pytest.mark.parametrize(
        "url, expected",
        [
            ("sqlite:///jobs.db", "jobs.db"),
            ("sqlite:///a%20b/jobs.db", "a b/jobs.db"),
            ("sqlite:////var/jobs.db", "/var/jobs.db"),
            ("sqlite://", None),
            ("sqlite:///:memory:", None),
        ],
    )
    def test_sqlite_paths(self, url: str, expected: str | None) -> None:
        assert sqlite_path(url) == expected

    @pytest.mark.parametrize(
        "url, problem",
        [
            ("jobs.db", "write sqlite:///jobs.db"),
            ("", "not a database URL"),
            ("sqlite://jobs.db", "write sqlite:///jobs.db"),
            ("sqlite:jobs.db", "write sqlite:///jobs.db"),
            ("sqlite:///", "does not name a file"),
            ("sqlite:///jobs.db?mode=ro", "arguments of Pulse"),
            ("mysql://localhost/jobs", "It can be sqlite:///"),
            ("mysql://localhost/jobs", "pulse://host:50051, for a pulsed server"),
            ("sqlite:/jobs.db", "has 1 slash: write sqlite:///jobs.db"),
            ("postgresql+asyncpg://localhost/jobs", "Leave out '.asyncpg'"),
        ],
    )
    def test_others_are_refused_with_the_forms_there_are(self, url: str, problem: str) -> None:
        with pytest.raises(InvalidURL, match=problem):
            open_store(url)

    def test_where_a_database_is_needed_a_server_will_not_do(self) -> None:
        with pytest.raises(ConfigError, match="names a server"):
            open_store("pulse://localhost:50051")

    def test_messages_keep_passwords_to_themselves(self) -> None:
        assert redacted("mysql://ada:secret@host/db?password=secret") == "mysql://ada@host/db"
        with pytest.raises(InvalidURL) as refused:
            open_store("mysql://ada:secret@host/db")
        assert "secret" not in str(refused.value)

    @pytest.mark.parametrize("password", ["se/cret", "se#cret", "se?cret", "se@cret", "se:cret"])
    @pytest.mark.parametrize("rest", ["/db", "", "/db?sslmode=on", "/db#x"])
    @pytest.mark.parametrize("scheme", ["postgresql", "mysql", "pulses"])
    def test_nor_is_one_shown_that_is_written_as_it_is(self, scheme, password, rest) -> None:
        shown = redacted(f"{scheme}://ada:{password}@host{rest}")
        assert "cret" not in shown
        assert shown.startswith(f"{scheme}://ada@host")

    @pytest.mark.parametrize(
        "url",
        ["mysql://host/db?password=se@cret", "mysql://a/b:secret@host"],
    )
    def test_of_what_cannot_be_told_apart_nothing_is_shown(self, url: str) -> None:
        assert "cret" not in redacted(url)

    @pytest.mark.parametrize(
        "url, shown",
        [
            ("postgresql://host/db?x=1", "postgresql://host/db"),
            ("postgresql://a.b:1,c:2/db", "postgresql://a.b:1,c:2/db"),
            ("sqlite:////var/jobs.db", "sqlite:////var/jobs.db"),
            ("pulse://me:tok/en@a:1,b:2?ca=x", "pulse://me@a:1,b:2"),
        ],
    )
    def test_all_the_rest_is(self, url: str, shown: str) -> None:
        assert redacted(url) == shown

    @pytest.mark.parametrize(
        "said",
        [
            "host=db user=app password=hunter2 dbname=jobs",
            "host=db password = 'hunter2 and a half' dbname=jobs",
            "PASSWORD=hunter2",
        ],
    )
    def test_keywords_are_no_file_and_keep_their_password(self, said: str) -> None:
        with pytest.raises(InvalidURL, match="postgresql://user:password@host") as refused:
            open_store(said)
        assert "hunter2" not in str(refused.value)
        assert "and a half" not in str(refused.value)
        assert "For a file" not in str(refused.value)

    def test_a_missing_driver_says_what_to_install(self) -> None:
        with pytest.raises(MissingDriver, match="no_such_driver") as missing:
            require("postgresql://host", "postgres", "no_such_driver")
        assert str(missing.value).endswith(install_command("postgres"))

    def test_in_a_clone_it_is_installed_from_the_clone(self) -> None:
        assert install_command("postgres") == f'pip install -e "{ROOT}[postgres]"'

    @pytest.mark.parametrize(
        "origin, command",
        [
            ({}, 'pip install "pulsed[server]"'),
            (
                {"url": "file:///home/ada/my%20clone", "dir_info": {}},
                'pip install "/home/ada/my clone[server]"',
            ),
            (
                {"url": "file:///tmp/pulsed-0.1.0-py3-none-any.whl", "archive_info": {}},
                'pip install "pulsed[server] @ file:///tmp/pulsed-0.1.0-py3-none-any.whl"',
            ),
            (
                {
                    "url": "https://example.com/pulsed.git",
                    "vcs_info": {"vcs": "git", "commit_id": "c0ffee"},
                },
                'pip install "pulsed[server] @ git+https://example.com/pulsed.git@c0ffee"',
            ),
        ],
        ids=["index", "clone", "wheel", "repository"],
    )
    def test_what_to_install_is_what_was_installed(self, origin, command: str) -> None:
        assert command_for("server", origin) == command

    def test_in_memory(self) -> None:
        with Pulse("sqlite://") as app:
            app.enqueue("anything")
            assert app.jobs.counts()[Status.PENDING] == 1


class TestImporting:
    def test_the_version_is_that_of_the_package(self) -> None:
        assert pulsed.__version__ == version("pulsed")

    def test_importing_pulsed_loads_no_drivers_and_no_command_line(self) -> None:
        heavy = ["asyncpg", "psycopg", "click", "rich", "pydantic", "grpc", "sqlite3"]
        code = f"import pulsed, sys; print([m for m in {heavy} if m in sys.modules])"
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == "[]"
