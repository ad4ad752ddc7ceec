"""What is released: its files, its metadata, and the workflows that publish it."""

import re
import tarfile
import tomllib
import zipfile
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import dev
from pulsed.version import __version__
from tests.support.programs import ROOT
from tools import build

WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text("utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_distributions_have_the_whole_package_and_nothing_else(tmp_path):
    """In one test, since to build them takes seconds."""
    wheel, source = build.build(tmp_path)
    assert build.problems_of(wheel, source, tag=f"v{__version__}") == []
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("py.typed", "web/templates/audit.html", "web/static/app.css"):
        assert f"pulsed/{wanted}" in names
    for engine in ("sqlite", "postgres"):
        assert f"pulsed/store/migrations/{engine}/0001_core.sql" in names
    (problem,) = build.problems_of(wheel, source, tag="v9.9.9")
    assert f"v9.9.9 is not v{__version__}" in problem

    broken = tmp_path / "broken.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(broken, "w", zipfile.ZIP_DEFLATED) as new:
        for name in set(names) - {"pulsed/py.typed"}:
            new.writestr(name, old.read(name))
        new.writestr("tests/test_x.py", "")
    found = ["the wheel lacks pulsed/py.typed", "the wheel has tests"]
    assert build.problems_of(broken, source) == found
    with tarfile.open(source, "w:gz") as tar:
        tar.add(ROOT / "dev.py", f"pulsed-{__version__}/dev.py")
    problems = build.problems_of(wheel, source)
    assert {"the source has dev.py", "the source lacks src/pulsed/py.typed"} <= set(problems)


class TestWorkflows:
    def steps(self) -> list[dict[str, Any]]:
        jobs = [job for flow in WORKFLOWS.values() for job in flow["jobs"].values()]
        return [step for job in jobs for step in job.get("steps", [])]

    def test_they_have_triggers_and_few_rights(self):
        for flow in WORKFLOWS.values():
            assert flow["on"]
            assert flow["permissions"] == {"contents": "read"}
            for job in flow["jobs"].values():
                assert "uses" in job or job["timeout-minutes"] < 60
                assert set(job.get("needs", "").split()) <= set(flow["jobs"])

    def test_they_run_commands_that_there_are(self):
        commands = [step["run"] for step in self.steps() if "run" in step]
        assert commands
        for command in commands:
            found = re.match(r"python3 dev\.py (\w+)|(?:docker|kubectl) ", command)
            assert found
            assert found[1] is None or found[1] in dev.COMMANDS
            for name in re.findall(r"\bdeploy/[\w/.]+", command):
                assert (ROOT / name).exists()

    def test_they_name_a_version_of_every_action(self):
        for step in self.steps():
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])

    def test_every_python_meets_every_postgresql(self):
        matrix = WORKFLOWS["tests.yml"]["jobs"]["test"]["strategy"]["matrix"]
        assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
        assert matrix["postgres"] == ["14", "15", "16", "17", "18"]
        supported = SpecifierSet(PROJECT["requires-python"])
        assert all(version in supported for version in matrix["python"])

    def test_publishing_is_tested_built_and_attested_first(self):
        jobs = WORKFLOWS["publish.yml"]["jobs"]
        assert jobs["publish"]["needs"] == "build"
        assert jobs["build"]["needs"] == "tests"
        called = ROOT / jobs["tests"]["uses"]
        assert "workflow_call" in WORKFLOWS[called.name]["on"]
        assert jobs["publish"]["permissions"] == {"id-token": "write"}
        (upload,) = jobs["publish"]["steps"][1:]
        assert upload["with"] == {"attestations": True}  # and no password

    def test_no_file_names_an_index(self):
        for path in (ROOT / ".github").rglob("*.yml"):
            assert not re.search(r"https?://|index-url|repository-url", path.read_text("utf-8"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "dropdown")
        assert part["attributes"].get("label") or part["type"] == "markdown"
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))
