"""``pulsed ui``: whom it serves, where, and what it refuses."""

import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from pulsed import Pulse
from pulsed.errors import ConfigError
from pulsed.web.access import Local, Role, Tokens
from pulsed.web.serve import Serving
from tests.support.commands import Command, run


@pytest.mark.parametrize(
    "serving",
    [
        Serving("0.0.0.0:8484"),
        Serving("0.0.0.0:8484", auth=True),
        Serving("192.168.0.7:8484", role=Role.ADMIN),
        Serving("0.0.0.0:8484", behind_proxy="10.0.0.1", auth=False),
        Serving("127.0.0.1:8484", behind_proxy="127.0.0.1", auth=False),
        Serving(tls_cert=Path("cert.pem")),
        Serving("8484"),
    ],
)
def test_what_would_let_other_machines_in_is_refused(serving: Serving):
    with pytest.raises(ConfigError):
        _ = (serving.address, serving.access)


def test_a_dashboard_on_this_machine_is_read_only_unless_asked():
    assert Serving().access == Local(Role.VIEWER)
    assert Serving(role=Role.ADMIN).access == Local(Role.ADMIN)


@pytest.mark.parametrize(
    "serving",
    [
        Serving("0.0.0.0:8484", Path("cert.pem"), Path("key.pem")),
        Serving("0.0.0.0:8484", behind_proxy="10.0.0.1"),
        Serving("127.0.0.1:8484", behind_proxy="127.0.0.1"),
        Serving(auth=True),
    ],
)
def test_other_machines_need_tokens(serving: Serving):
    assert isinstance(serving.access, Tokens)


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path):
    database = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Pulse(database) as app:
        app.jobs.counts()  # makes the tables
    with Command(tmp_path, "ui", "--url", database, "--listen", "127.0.0.1:0") as command:
        command.said("dashboard of ")
        url = re.search(r"http://127\.0\.0\.1:\d+/", command.log)
        assert url is not None
        with urllib.request.urlopen(url[0], timeout=30) as answer:
            assert b"<h1>Overview</h1>" in answer.read()
        command.signal(signal.SIGTERM)
        assert command.ended() == 0


def test_a_server_serves_it_beside_its_own_address(tmp_path: Path):
    database = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Command(
        tmp_path, "server", "--url", database, "--listen", "127.0.0.1:0", "--ui"
    ) as server:
        server.said(" serves ")
        url = re.search(r"dashboard: (http://127\.0\.0\.1:\d+/)", server.log)
        assert url is not None
        with urllib.request.urlopen(url[1], timeout=30) as answer:
            assert b"<h1>Overview</h1>" in answer.read()
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def test_a_port_that_is_taken_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        database = f"sqlite:///{tmp_path / 'jobs.db'}"
        result = run("ui", "--url", database, "--listen", address)
    assert result.exit_code == 2, result.output
    assert address in result.stderr
    assert "Choose another port" in result.stderr
