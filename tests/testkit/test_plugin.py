"""The fixtures of the pytest plugin, in a project of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from tests.support.pages import FILE, ROOT, blocks

pytest_plugins = "pytester"

SHOP = """
from pulsed import Context, Pulse

app = Pulse("sqlite:////no/such/folder/jobs.db")

@app.job
async def remind(ctx: Context, user: str) -> str:
    await ctx.sleep(86_400)
    return f"reminded {user}"

def sign_up(user: str) -> None:
    remind.enqueue(user)
"""

TESTS = """
from shop import app, remind, sign_up

def test_a_reminder(pulsed_sandbox):
    sign_up("ada")
    job = pulsed_sandbox.assert_enqueued(remind, user="ada")
    pulsed_sandbox.drain(until="1 day")
    assert job.result() == "reminded ada"

def test_nothing_is_left(pulsed_sandbox, pulsed_clock):
    assert pulsed_sandbox.enqueued() == []
    assert pulsed_sandbox.clock is pulsed_clock

async def test_a_loop(pulsed_sandbox):
    job = await remind.aenqueue("bob")
    await pulsed_sandbox.adrain(skip_time=True)
    assert await job.aresult() == "reminded bob"
"""

SETTINGS = [
    "asyncio_mode = auto",
    "asyncio_default_fixture_loop_scope = function",
    "filterwarnings = error",
]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    pytester.syspathinsert()
    return pytester


def run(project: pytest.Pytester, *ini: str) -> pytest.RunResult:
    project.makeini("\n".join(["[pytest]", *SETTINGS, *ini]))
    plugins = ("-p", "pulsed.pytest_plugin", "-p", "pytest_asyncio.plugin")
    return project.runpytest_inprocess(*plugins, "-p", "no:cacheprovider")


def test_each_test_gets_a_sandbox_of_its_own(project: pytest.Pytester, sandbox_url: str):
    run(project, "pulsed_app = shop:app", f"pulsed_url = {sandbox_url}").assert_outcomes(passed=3)


def test_a_fixture_can_be_overridden(project: pytest.Pytester):
    project.makeconftest("""
        import pytest, shop

        @pytest.fixture
        def pulsed_app():
            return shop.app
    """)
    run(project).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "ini, message",
    [
        ([], "*Name your app in the configuration of pytest*"),
        (["pulsed_app = shop:sign_up"], "*shop:sign_up is <function*not a Pulse app*"),
    ],
)
def test_a_missing_app_is_named(project: pytest.Pytester, ini: list[str], message: str):
    result = run(project, *ini)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines([message])


def test_the_tests_on_the_page_pass(project: pytest.Pytester):
    page = blocks(ROOT / "docs" / "testing.md")
    files = {found[1]: block.code for block in page if (found := FILE.match(block.code))}
    (toml,) = (block.code for block in page if block.language == "toml")
    assert files.keys() == {"shop", "test_shop", "test_sign_up"}
    project.makepyfile(**files)
    (settings,) = tomllib.loads(toml)["tool"]["pytest"].values()
    lines = [f"{name} = {value}" for name, value in settings.items()]
    run(project, *lines).assert_outcomes(passed=3)


def test_pytest_finds_the_plugin_and_loads_nothing_else():
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    name = entry_points["entry-points"]["pytest11"]["pulsed"]
    assert hasattr(import_module(name), "pulsed_sandbox")
    code = f"import sys, {name}; print(*(m for m in sys.modules if m.startswith('pulsed')))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert set(loaded.split()) == {"pulsed", name}
