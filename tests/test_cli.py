"""The command line as a whole: help, which database, which app, enqueuing, errors and codes."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

import pulsed
from pulsed.cli.root import COMMANDS, root
from pulsed.client.job import Job
from pulsed.model.outcome import Failed, Succeeded
from pulsed.store.blocking import run_blocking
from tests.support.commands import CONTROLS, a_waiting_job, run
from tests.support.jobs import POLICIES, settle

APP = """
from pulsed import Pulse
app = Pulse()

@app.job
def add(a: int, b: int = 1) -> int:
    return a + b
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Writes modules into the working directory of commands; forgets them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        return name

    yield write
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_examples_and_names_its_environment(self, command):
        text = run(command, "--help").output
        assert "examples:" in text
        assert f"pulsed {command}" in text
        variables = ("PULSED_URL", "DATABASE_URL", "PULSED_APP")
        if command != "init":  # which needs no app and no database
            assert [name for name in variables if name not in text] == []

    @pytest.mark.parametrize("act", ["list", "show", "counts", "retry", "cancel", "delete"])
    def test_every_act_on_jobs_has_an_example(self, act):
        text = run("jobs", act, "--help").output
        assert f"pulsed jobs {act}" in text
        assert "xample" in text

    @pytest.mark.parametrize("group", ["jobs", "schedules"])
    def test_the_marks_that_keep_lines_apart_are_not_shown(self, group):
        command = root.get_command(click.Context(root), group)
        assert isinstance(command, click.Group)
        for name in command.commands:
            text = run(group, name, "--help", COLUMNS="80").stdout
            assert "\\b" not in text
            assert max(map(len, text.splitlines())) <= 80

    def test_the_root_lists_commands_codes_and_completion(self):
        text = run("--help").output
        assert all(command in text for command in COMMANDS)
        assert "130 interrupted" in text
        assert "_PULSED_COMPLETE=bash_source" in text

    def test_the_command_alone_shows_its_help(self):
        result = run()
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage:")
        assert not result.stderr

    @pytest.mark.parametrize(
        "args, said",
        [
            (["job"], "pulsed has no command 'job'. Did you mean jobs?"),
            (["jobs", "lst"], "pulsed jobs has no command 'lst'. Did you mean list?"),
            (["schedules", "xyzzy"], "pulsed schedules has no command 'xyzzy'."),
        ],
        ids=str,
    )
    def test_an_unknown_command_is_guessed(self, args, said):
        result = run(*args)
        assert result.exit_code == 2
        assert said in result.stderr.replace("root", "pulsed")

    def test_there_is_one_version(self):
        assert run("--version").stdout.startswith(f"pulsed {pulsed.__version__} (Python ")
        assert pulsed.__version__ == version("pulsed")

    def test_help_loads_no_command(self):
        code = "import sys; from pulsed.cli.root import root; root.main(['--help'])"
        check = f"import atexit; atexit.register(lambda: print('rich' in sys.modules)); {code}"
        command = [sys.executable, "-c", f"import sys; {check}"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert out.splitlines()[-1] == "False"

    def test_a_look_at_the_database_loads_neither_the_app_nor_what_runs_jobs(self):
        """They are a third of all imports, and delay an interactive command."""
        looks = ("jobs", "schedules", "workers", "doctor", "audit")
        code = "; ".join(f"import pulsed.cli.commands.{name}" for name in looks)
        command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        unneeded = {"pulsed.app", "pulsed.engine.context", "pulsed.engine.workflow.flow"}
        assert unneeded.isdisjoint(out.split())

    def test_completion(self):
        script = run(_ROOT_COMPLETE="bash_source").stdout
        assert "complete" in script
        words = run(_ROOT_COMPLETE="bash_complete", COMP_WORDS="root wor", COMP_CWORD="1").stdout
        assert words.split() == ["plain,worker", "plain,workers"]


class TestWhichDatabase:
    def test_none_is_a_usage_error(self):
        result = run("jobs", "list")
        assert result.exit_code == 2
        assert "which database?" in result.stderr

    def test_database_url_is_the_last_resort(self, url, live):
        job_id = a_waiting_job(live)
        assert run("jobs", "list", "--ids", DATABASE_URL=url).stdout == f"{job_id}\n"
        result = run("jobs", "list", "--ids", DATABASE_URL="sqlite:///nowhere.db", PULSED_URL=url)
        assert result.stdout == f"{job_id}\n"
        assert run("jobs", "list", "--ids", "--url", url, PULSED_URL="x").stdout == f"{job_id}\n"

    def test_an_app_says_where_its_jobs_are(self, url, live, module):
        job_id = a_waiting_job(live)
        module("placed", f"from pulsed import Pulse\napp = Pulse({url!r})")
        assert run("jobs", "list", "--ids", "--app", "placed:app").stdout == f"{job_id}\n"
        result = run("jobs", "list", "--ids", PULSED_APP="placed", PULSED_URL="sqlite:///no.db")
        assert result.stdout == f"{job_id}\n"

    def test_an_app_without_a_url_takes_database_url(self, url, module):
        module("shop1", APP)
        result = run("enqueue", "add", "a=1", "--app", "shop1:app", DATABASE_URL=url)
        assert result.exit_code == 0, result.output

    @pytest.mark.parametrize(
        "given, hint",
        [
            (("jobs", "list", "shop:app"), "with --app: root jobs list --app MODULE:APP"),
            (("doctor", "shop:app"), "with --app: root doctor --app MODULE:APP"),
            (("ui", "--app", "shop:app"), "without an option: root ui MODULE:APP"),
            (("worker", "--app", "shop:app"), "without an option: root worker MODULE:APP"),
        ],
    )
    def test_an_app_in_the_wrong_place_is_told_the_right_one(self, given, hint):
        """The program is ``pulsed``, and ``root`` in this process."""
        result = run(*given)
        assert result.exit_code == 2
        assert f"name the app {hint}\n" in result.stderr

    def test_looking_does_not_create_a_database(self, tmp_path):
        result = run("jobs", "list", "--url", f"sqlite:///{tmp_path}/none.db")
        assert result.exit_code == 4
        assert "There is no database at" in result.stderr
        assert not list(tmp_path.iterdir())

    def test_a_database_without_tables_is_a_schema_error(self, tmp_path):
        (tmp_path / "empty.db").touch()
        result = run("jobs", "list", "--url", f"sqlite:///{tmp_path}/empty.db")
        assert result.exit_code == 5
        assert "pulsed migrate up" in result.stderr

    def test_migrate_up_says_that_a_schema_is_too_new(self, tmp_path):
        url = f"sqlite:///{tmp_path}/new.db"
        assert run("migrate", "up", "--url", url).exit_code == 0
        with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
            connection.execute("INSERT INTO pulse_migrations VALUES (99, 'future', 1, 99)")
        result = run("migrate", "up", "--url", url)
        assert result.exit_code == 5
        assert "too new: version 99" in result.stderr
        assert "up to date" not in result.stderr

    def test_something_else_is_no_database(self, tmp_path):
        (tmp_path / "letter.db").write_text("Dear Ada, " * 100)
        result = run("jobs", "list", "--url", f"sqlite:///{tmp_path}/letter.db")
        assert result.exit_code == 4
        assert "not an SQLite database" in result.stderr

    def test_a_server_that_is_not_there_is_unreachable(self):
        result = run("jobs", "list", "--url", "postgresql://user:secret@127.0.0.1:1/none")
        assert result.exit_code == 4
        assert result.stderr.startswith("pulsed: ")
        assert "Traceback" not in result.stderr
        assert "secret" not in result.stderr

    def test_a_url_that_is_none(self):
        result = run("jobs", "list", "--url", "mysql://localhost/shop")
        assert result.exit_code == 2
        assert "mysql" in result.stderr


class TestLoading:
    def test_a_module_that_is_not_there(self, module):
        result = run("worker", "nowhere:app")
        assert result.exit_code == 2
        assert "there is no module 'nowhere'" in result.stderr

    def test_a_module_that_breaks_shows_the_users_lines_only(self, module):
        module("broken1", "import json\n\ndef load():\n    json.loads('{')\n\nload()\n")
        result = run("worker", "broken1:app")
        assert result.exit_code == 1
        assert "broken1 cannot be imported" in result.stderr
        assert "json.loads('{')" in result.stderr
        assert "JSONDecodeError" in result.stderr
        assert "pulsed/cli" not in result.stderr
        assert "importlib" not in result.stderr

    def test_a_missing_dependency_of_the_module_is_not_a_missing_module(self, module):
        module("broken2", "import nowhere_to_be_found\n")
        result = run("worker", "broken2:app")
        assert result.exit_code == 1
        assert "No module named 'nowhere_to_be_found'" in result.stderr

    def test_a_syntax_error_shows_its_line(self, module):
        module("broken3", "def f(:\n")
        result = run("worker", "broken3")
        assert "def f(:" in result.stderr

    @pytest.mark.parametrize(
        "name, message",
        [
            ("shop2:nothing", "no attribute 'nothing'. Did you mean shop2:app?"),
            ("shop2:add", "not a Pulse app. Did you mean shop2:app?"),
            ("shop2.py:app", "looks like a file; name the module instead: shop2:app"),
            (":app", "names no module"),
        ],
    )
    def test_a_name_that_is_no_app(self, module, name, message):
        module("shop2", APP)
        result = run("worker", name)
        assert result.exit_code == 2
        assert message in result.stderr

    def test_the_only_app_of_a_module_is_found(self, url, module):
        module("shop3", APP + "\nsame = app\n")
        assert run("enqueue", "add", "a=1", "--app", "shop3", PULSED_URL=url).exit_code == 0

    def test_several_apps_must_be_told_apart(self, module):
        module("shop4", APP + "\nother = Pulse()\n")
        result = run("worker", "shop4")
        assert result.exit_code == 2
        assert "shop4:app or shop4:other" in result.stderr

    def test_an_app_without_handlers(self, url, module):
        module("shop5", "from pulsed import Pulse\napp = Pulse()")
        result = run("worker", "shop5:app", PULSED_URL=url)
        assert result.exit_code == 2
        assert "has no handlers" in result.stderr

    def test_no_app_at_all(self):
        result = run("worker")
        assert result.exit_code == 2
        assert "which app?" in result.stderr


class TestEnqueue:
    def test_a_string_that_is_json_too_is_explained(self, module, url):
        module("shop9", APP + "\n@app.job\ndef greet(name: str) -> None: ...\n")
        said = "expected `str`, got `int`. A value that is JSON is taken as such; for a string, "
        for command in (["enqueue"], ["schedules", "add", "daily", "--every", "1d"]):
            greet = [*command, "greet", "--app", "shop9", "--url", url]
            refused = run(*greet, "name=1")
            assert refused.exit_code == 2
            assert f"""argument 'name': {said}write 'name="1"'.""" in refused.stderr
            assert run(*greet, 'name="1"').exit_code == 0

    def test_another_misfit_has_no_advice_on_strings(self, module, url):
        module("shop10", APP)
        refused = run("enqueue", "add", "a=x", "--app", "shop10", "--url", url)
        assert (refused.exit_code, "for a string" in refused.stderr) == (2, False)

    @pytest.mark.usefixtures("live")
    def test_a_key_prints_its_holder_or_fails(self, url):
        held = ["enqueue", "t", "--key", "k", "--url", url]
        first = run(*held)
        assert first.exit_code == 0, first.output
        assert run(*held, "n=2").stdout == first.stdout
        refused = run(*held, "--on-duplicate", "raise")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "holds the key 'k'" in refused.stderr
        hourly = run(*held[:2], "--key", "h", "--key-for", "1h", "--url", url)
        shown = run("jobs", "show", hourly.stdout.strip(), "--format", "table", "--url", url).stdout
        assert "key         h, held until 20" in shown
        listed = run("jobs", "list", "--key", "k", "--json", "--url", url).stdout
        assert [json.loads(line)["id"] for line in listed.splitlines()] == [first.stdout.strip()]

    def test_by_name_without_an_app(self, url, live):
        result = run(
            *("enqueue", "anything", "n=1", "name=ada", 'text="1"', "list=[1, 2]", "nan=NaN"),
            *("--queue", "mail", "--priority", "7", "--max-attempts", "9", "--delay", "1h"),
            *("--tag", "x", "--tag", "y", "--header", "trace=a=b"),
            PULSED_URL=url,
        )
        assert result.exit_code == 0, result.output
        job_id = UUID(result.stdout.strip())
        row = run_blocking(live.get([job_id]))[job_id]
        assert json.loads(row.payload) == {
            "n": 1,
            "name": "ada",
            "text": "1",
            "list": [1, 2],
            "nan": "NaN",
        }
        assert (row.queue, row.priority, row.max_attempts) == ("mail", 7, 9)
        assert row.tags == ("x", "y")
        assert row.headers == {"trace": "a=b"}
        assert 3500 < (row.next_run_at - row.submitted_at).total_seconds() < 3700

    def test_without_an_app_it_creates_no_database(self, tmp_path):
        url = f"sqlite:///{tmp_path}/typo.db"
        result = run("enqueue", "anything", "--url", url)
        assert result.exit_code == 4
        assert f"there is no database at {tmp_path}/typo.db" in result.stderr
        assert "pulsed migrate up" in result.stderr
        assert not list(tmp_path.iterdir())

    def test_without_an_app_it_creates_no_tables(self, tmp_path):
        (tmp_path / "empty.db").touch()
        result = run("enqueue", "anything", "--url", f"sqlite:///{tmp_path}/empty.db")
        assert result.exit_code == 5
        assert "pulsed migrate up" in result.stderr
        assert run("migrate", "up", "--url", f"sqlite:///{tmp_path}/new.db").exit_code == 0
        assert run("enqueue", "t", "--url", f"sqlite:///{tmp_path}/new.db").exit_code == 0

    def test_an_app_creates_its_database_as_its_worker_would(self, tmp_path, module):
        module("shop7", APP)
        url = f"sqlite:///{tmp_path}/new.db"
        assert run("enqueue", "add", "a=1", "--app", "shop7", "--url", url).exit_code == 0
        assert (tmp_path / "new.db").exists()

    def test_a_json_object_from_an_option_or_stdin(self, url, live):
        for args, stdin in ((("--json-args", '{"a": 1}'), ""), (("-",), '{"a": 1}')):
            result = run("enqueue", "t", *args, stdin=stdin, PULSED_URL=url)
            job_id = UUID(result.stdout.strip())
            assert json.loads(run_blocking(live.get([job_id]))[job_id].payload) == {"a": 1}

    @pytest.mark.parametrize(
        "args",
        [
            ["novalue"],
            ["a=1", "a=2"],
            ["--json-args", "[1]"],
            ["--json-args", "{"],
            ["--delay", "soon"],
            ["--at", "tomorrow"],
            ["--priority", "1000"],
            ["--header", "x"],
            ["--delay", "1s", "--at", "2030-01-01T00:00:00Z"],
        ],
    )
    def test_what_is_no_argument_is_a_usage_error(self, url, live, args):
        result = run("enqueue", "t", *args, PULSED_URL=url)
        assert result.exit_code == 2
        assert result.stderr.startswith("pulsed: ")

    def test_with_an_app_topic_and_arguments_are_checked(self, url, module):
        module("shop6", APP)
        for args, message in ((["ad"], "Did you mean 'add'?"), (["add"], "needs 'a'")):
            result = run("enqueue", *args, "--app", "shop6:app", PULSED_URL=url)
            assert result.exit_code == 2
            assert message in result.stderr

    def test_waiting_prints_the_result(self, url, live, monkeypatch):
        self.end_at_once(monkeypatch, live, Succeeded('{"big":12345678901234567890}'))
        result = run("enqueue", "email", "--wait", PULSED_URL=url)
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {"big": 12345678901234567890}

    def test_waiting_for_a_job_that_fails(self, url, live, monkeypatch):
        self.end_at_once(monkeypatch, live, Failed("boom", final=True))
        result = run("enqueue", "email", "--wait", PULSED_URL=url)
        assert result.exit_code == 7
        assert "boom" in result.stderr
        assert not result.stdout

    def test_a_terminal_does_not_obey_an_error(self, url, live, monkeypatch):
        self.end_at_once(monkeypatch, live, Failed("bad \x1b]0;title\x07 \x9b31m", final=True))
        result = run("enqueue", "email", "--wait", PULSED_URL=url)
        assert "bad \N{REPLACEMENT CHARACTER}]0;title" in result.stderr
        assert not set(result.stderr) & set(CONTROLS)

    def test_a_terminal_does_not_obey_a_result(self, url, live, monkeypatch):
        self.end_at_once(monkeypatch, live, Succeeded('"\x9b31m\u202e"'))
        result = run("enqueue", "email", "--wait", PULSED_URL=url)
        assert not set(result.stdout) & set(CONTROLS)
        assert json.loads(result.stdout) == "\x9b31m\u202e"

    def test_waiting_in_vain_says_why(self, url, live):
        result = run("enqueue", "email", "--wait", "--timeout", "10ms", PULSED_URL=url)
        assert result.exit_code == 1
        assert "no worker is alive" in result.stderr

    def end_at_once(self, monkeypatch, live, outcome):
        """Stand in for a worker: end a job when a caller waits for it."""
        wait: Any = vars(Job)["result"]

        def result(job: Any, timeout: float | None = None) -> Any:
            (claimed,) = run_blocking(live.claim(UUID(int=1), "default", POLICIES, 1))
            run_blocking(settle(live, claimed, outcome))
            return wait(job, timeout)

        monkeypatch.setattr(Job, "result", result)


class TestErrors:
    def test_a_bug_is_one_line_unless_asked(self, url, live, monkeypatch):
        def explode(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("oops")

        monkeypatch.setattr("pulsed.cli.commands.jobs.checked_filter", explode)
        result = run("jobs", "list", PULSED_URL=url)
        assert result.exit_code == 1
        assert "ZeroDivisionError: oops" in result.stderr
        assert "Traceback" not in result.stderr
        assert "Traceback" in run("jobs", "list", PULSED_URL=url, PULSED_DEBUG="1").stderr

    def test_an_interrupt_is_130(self, url, live, monkeypatch):
        def interrupt(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr("pulsed.cli.commands.jobs.checked_filter", interrupt)
        assert run("jobs", "list", PULSED_URL=url).exit_code == 130

    def test_an_unknown_option_names_the_help(self):
        result = run("jobs", "list", "--colour")
        assert result.exit_code == 2
        assert result.stderr.startswith("pulsed: ")
        assert "pulsed jobs list --help" in result.stderr.replace("root", "pulsed")


def test_no_help_breaks_off_in_the_middle_of_a_sentence():
    for group in ("", "jobs", "schedules", "token", "migrate"):
        shown = run(*group.split(), "--help").stdout
        commands = shown.partition("Commands:")[2].partition("examples:")[0]
        assert commands
        assert "..." not in commands
