"""The files in deploy/ say what the commands accept, and agree with one another."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pulsed.cli.root import root
from pulsed.listen_address import ListenAddress
from pulsed.rpc.generated import externalscaler_pb2 as pb
from pulsed.rpc.server.exposure import check_exposure
from pulsed.rpc.server.scaler import Trigger
from pulsed.web.access import Tokens
from pulsed.web.serve import Serving
from pulsed.wording import parse_duration
from tests.support.programs import ROOT, python

DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
OURS = {name: it for name, it in COMPOSE["services"].items() if it["image"] == "shop-jobs:1.0.0"}
DOCUMENTS = [
    document for path in KUBERNETES for document in yaml.safe_load_all(path.read_text("utf-8"))
]
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in DOCUMENTS
    if each["kind"] in ("Deployment", "Job")
}
AFTER_A_DRAIN = 15.0
"""Seconds for what follows a drain that timed out: its jobs stop, are handed back, the rest is
written; five seconds each."""


def parsed(arguments: list[str]) -> click.Context:
    """Parse a command line as ``pulsed`` does, without running it."""
    command: click.Command = root
    context = click.Context(root, info_name="pulsed")
    rest = list(arguments)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, arguments
        command = found
    return command.make_context(command.name, rest, parent=context)


def unit(path: Path) -> dict[str, str]:
    """The settings of a unit, without its sections."""
    lines = [line for line in path.read_text("utf-8").splitlines() if re.match(r"\w+=", line)]
    return dict(line.split("=", 1) for line in lines)


def image_command() -> list[str]:
    found = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found
    command: list[str] = ast.literal_eval(found[1])
    return command


def every_command() -> Iterator[Any]:
    yield pytest.param(image_command(), id="Dockerfile")
    for name, service in OURS.items():
        yield pytest.param(service["command"], id=f"compose-{name}")
    for name, pod in PODS.items():
        for container in pod["containers"]:
            yield pytest.param(container["args"], id=name)
    for path in UNITS:
        yield pytest.param(shlex.split(unit(path)["ExecStart"])[1:], id=path.name)
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for line in re.findall(
            r"^# .*?\bpulsed (token .*)$", path.read_text("utf-8"), re.MULTILINE
        ):
            yield pytest.param(shlex.split(line), id=f"{path.name}-comment")


@pytest.mark.parametrize("command", [*every_command()])
def test_every_command_line_is_one_that_pulsed_accepts(command):
    context = parsed(command)
    assert all(isinstance(argument, str) for argument in command)
    assert not context.args
    for option in ("metrics", "health"):
        if context.params.get(option):
            assert ListenAddress.parse(context.params[option]).port
    if context.params.get("app"):
        assert context.params["app"] in ("shop:app", "shop.jobs:app")


@pytest.mark.parametrize(
    "command",
    [each for each in every_command() if "server" in each.values[0] or "ui" in each.values[0]],
)
def test_what_listens_to_others_is_protected(command):
    given = parsed(command).params
    if command[0] == "ui":
        how = Serving(listen=given["listen"], behind_proxy=given["behind_proxy"])
        assert isinstance(how.access, Tokens)
        return
    tls = given["tls_cert"] is not None
    asks = given["auth"] if given["insecure"] else given["auth"] is not False
    assert asks
    check_exposure(given["listen"], tls=tls, credentials=True, insecure=given["insecure"])


class TestKubernetes:
    @pytest.mark.parametrize("name", ["pulsed-worker", "pulsed-server"])
    def test_probes_ask_for_what_is_served(self, name):
        (container,) = PODS[name]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        served = ListenAddress.parse(parsed(container["args"]).params["metrics"])
        assert served == ListenAddress("0.0.0.0", ports["metrics"])
        asked = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness")}
        for probe in asked.values():
            assert probe == {"path": "/healthz", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}

    @pytest.mark.parametrize("name", ["pulsed-worker", "pulsed-server"])
    def test_the_grace_period_is_longer_than_the_drain(self, name):
        (container,) = PODS[name]["containers"]
        before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        waits = float(before[1]) if before else 0.0
        drain = parsed(container["args"]).params["drain_timeout"]
        assert PODS[name]["terminationGracePeriodSeconds"] >= waits + drain + AFTER_A_DRAIN

    @pytest.mark.parametrize("name", PODS)
    def test_containers_run_without_rights(self, name):
        pod = PODS[name]
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert "memory" in container["resources"]["limits"]

    def test_mounted_files_are_those_that_the_server_reads(self):
        (container,) = PODS["pulsed-server"]["containers"]
        given = parsed(container["args"]).params
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        for option in ("tls_cert", "tls_key", "client_ca"):
            assert str(given[option].parent) in mounts

    def test_selectors_and_references_find_their_objects(self):
        names = {(each["kind"], each.get("metadata", {}).get("name")) for each in DOCUMENTS}
        (scaled,) = [each for each in DOCUMENTS if each["kind"] == "ScaledObject"]
        assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in names
        (trigger,) = scaled["spec"]["triggers"]
        assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in names
        service, port = trigger["metadata"]["scalerAddress"].split(":")
        assert ("Service", service.split(".")[0]) in names
        (container,) = PODS["pulsed-server"]["containers"]
        assert port in {str(each["containerPort"]) for each in container["ports"]}
        (listed,) = [each for each in DOCUMENTS if each["kind"] == "Kustomization"]
        others = {path.name for path in KUBERNETES} - {"kustomization.yaml"}
        assert set(listed["resources"]) == others

    def test_the_scaler_understands_its_trigger(self):
        (scaled,) = [each for each in DOCUMENTS if each["kind"] == "ScaledObject"]
        metadata = scaled["spec"]["triggers"][0]["metadata"]
        trigger = Trigger.of(pb.ScaledObjectRef(scalerMetadata=metadata))
        (container,) = PODS["pulsed-worker"]["containers"]
        assert trigger.target == parsed(container["args"]).params["concurrency"]


class TestCompose:
    @pytest.mark.parametrize("name", ["worker", "server"])
    def test_a_stop_waits_for_the_drain(self, name):
        drain = parsed(OURS[name]["command"]).params["drain_timeout"]
        grace = parse_duration(OURS[name]["stop_grace_period"])
        assert grace is not None
        assert grace >= drain + (AFTER_A_DRAIN if name == "worker" else 5.0)

    def test_images_are_pinned_and_files_are_there(self):
        for service in COMPOSE["services"].values():
            assert re.fullmatch(r"[\w-]+:\d[\w.-]*", service["image"])
        build = OURS["worker"]["build"]
        context = (DEPLOY / build["context"]).resolve()
        assert (context, (context / build["dockerfile"]).exists()) == (ROOT, True)

    def test_the_dashboard_trusts_its_proxy(self):
        given = parsed(OURS["ui"]["command"]).params["behind_proxy"]
        assert COMPOSE["services"]["proxy"]["networks"]["front"]["ipv4_address"] == given

    def test_workers_wait_for_the_migration(self):
        for name in ("worker", "server", "ui"):
            assert OURS[name]["depends_on"]["migrate"]["condition"].endswith("successfully")

    def test_the_connections_fit_the_database(self):
        command = COMPOSE["services"]["postgres"]["command"]
        (most,) = [int(part.split("=")[1]) for part in command if "max_connections=" in part]
        workers = OURS["worker"]["deploy"]["replicas"]
        wanted = workers * parsed(OURS["worker"]["command"]).params["max_connections"]
        wanted += parsed(OURS["server"]["command"]).params["max_connections"]
        assert wanted + 34 + 3 < most  # the dashboard, and PostgreSQL's reserve


class TestDockerfile:
    def test_it_ends_as_a_user_without_rights_and_without_a_shell(self):
        *_, final = DOCKERFILE.split("\nFROM ")
        assert re.search(r"^USER (\d+):\d+$", final, re.MULTILINE)
        assert re.search(r"^ENTRYPOINT \[", final, re.MULTILINE)
        assert "--from=build" in final
        assert "pip install" not in final

    def test_images_are_pinned(self):
        images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
        assert len(images) == 2
        assert all(re.fullmatch(r"[\w-]+:\d[\w.-]*", image) for image in images)

    def test_it_copies_what_is_there_and_not_ignored(self):
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8")
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
            for source in line.split():
                assert (ROOT / source).exists()
                assert f"!{source}\n" in ignored

    def test_the_extras_exist(self):
        wanted = re.search(r'"\.\[(.+)\]"', DOCKERFILE)
        assert wanted
        extras = (ROOT / "pyproject.toml").read_text("utf-8")
        for extra in wanted[1].split(","):
            assert re.search(rf"^{extra} = \[", extras, re.MULTILINE)

    def test_its_health_check_asks_what_its_command_serves(self):
        port = ListenAddress.parse(parsed(image_command()).params["metrics"]).port
        assert f"http://127.0.0.1:{port}/healthz" in DOCKERFILE


class TestUnits:
    @pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
    def test_they_notify_and_wait_for_the_drain(self, path):
        given = unit(path)
        assert given["Type"] == "notify"
        assert int(given["WatchdogSec"]) >= 10
        drain = parsed(shlex.split(given["ExecStart"])[1:]).params["drain_timeout"]
        assert int(given["TimeoutStopSec"]) >= drain + AFTER_A_DRAIN

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
    def test_systemd_understands_them(self, tmp_path):
        for path in UNITS:
            text = path.read_text("utf-8").replace("/opt/shop/venv/bin/pulsed", sys.executable)
            (tmp_path / path.name).write_text(text, "utf-8")
        files = [str(tmp_path / path.name) for path in UNITS]
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *files],
            capture_output=True,
            text=True,
            check=False,
        )
        about_ours = [line for line in done.stderr.splitlines() if "pulsed-" in line]
        assert (done.returncode, about_ours) == (0, [])


def test_the_deployed_app_loads():
    program = "import shop; print([job.topic for job in shop.app.registry])"
    said = python("-c", program, PYTHONPATH=str(DEPLOY / "app")).stdout
    assert "send_email" in said
    assert "nightly_report" in said
