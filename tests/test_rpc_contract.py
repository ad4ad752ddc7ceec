"""The contract itself: complete, documented, and what the generated code was made from."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from pulsed.rpc.messages.contract import METHODS, VERBS
from pulsed.rpc.server.access import ROLES
from pulsed.rpc.server.services.all import SERVICES

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto/pulse/v1/pulse.proto"


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("proto_tool", ROOT / "tools/proto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_code_is_that_of_the_proto():
    proto = tool()
    stamp = proto.STAMP.read_text(encoding="ascii").strip()
    assert stamp == proto.digest(), "the proto changed: run `python3 dev.py proto`"


def test_every_method_has_a_function_and_a_role():
    assert set(ROLES) == set(METHODS)
    services = {service.__name__: service for service in SERVICES}
    assert set(services) == {method.service for method in METHODS.values()}
    for method in METHODS.values():
        service = services[method.service]
        assert method.streams or callable(getattr(service, method.function)), method.name


def test_every_method_says_what_it_does():
    assert set(VERBS) == set(METHODS)
    for method in METHODS.values():
        assert method.action.islower(), method.name
        assert method.action != method.name.lower()


def test_every_method_and_message_is_explained():
    lines = PROTO.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*rpc ", line):
            assert lines[number - 1].strip().startswith("//"), line


@pytest.mark.parametrize("word", ["reserved", "deprecated"])
def test_nothing_was_taken_away_from_version_one(word):
    """Fields are only ever added; when this fails, version two has begun."""
    assert word not in PROTO.read_text(encoding="utf-8")
