"""The layer check itself: it must see a violation wherever an import can hide."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tools import layers

SOURCE = Path(__file__).parent.parent / "src"


@pytest.fixture
def tree(tmp_path):
    """Writes files of a small pulsed and returns what the check says about it."""

    def check(**modules: str) -> list[str]:
        package = tmp_path / "pulsed"
        for name, code in {"__init__": "", **modules}.items():
            path = package.joinpath(*name.split("__in__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        return layers.problems(tmp_path)

    return check


def test_pulsed_keeps_to_its_layers():
    assert layers.problems(SOURCE) == []


def test_downward_imports_are_fine(tree):
    assert tree(errors="", model="from pulsed.errors import X", app="import pulsed.model") == []


@pytest.mark.parametrize(
    "code",
    [
        "import pulsed.app",
        "import pulsed.app as other",
        "from pulsed.app import Pulse",
        "from pulsed import app",
        "from . import app",
        "from .app import Pulse",
        "def late():\n    from pulsed.app import Pulse",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pulsed.app import Pulse",
        "try:\n    import pulsed.app\nexcept ImportError:\n    pass",
    ],
)
def test_an_upward_import_is_reported(tree, code):
    [problem] = tree(app="", model=code)
    assert "model.py" in problem
    assert "model imports app, which lies above it" in problem


@pytest.mark.parametrize(
    "code", ["from ..app import X", "from .. import app", "from pulsed.app import X"]
)
def test_an_upward_import_from_inside_a_package_is_reported(tree, code):
    [problem] = tree(app="", store__in__sql=code)
    assert "store imports app" in problem


def test_a_package_may_import_its_own_modules(tree):
    modules = {
        "store__in____init__": "from .open import X",
        "store__in__open": "from . import base",
    }
    assert tree(**modules, store__in__base="") == []


@pytest.mark.parametrize("code", ["from pulsed.store import open", "from ..open import X"])
def test_an_upward_import_between_the_parts_of_a_package_is_reported(tree, code):
    [problem] = tree(store__in__open="", store__in__sql__in__jobs=code)
    assert "sql imports open, which lies above it" in problem


def test_the_front_door_is_above_everything(tree):
    [problem] = tree(cli="from pulsed import Pulse")
    assert "cli imports __init__" in problem


def test_modules_of_one_layer_may_import_one_another(tree):
    assert tree(errors="", batches="import pulsed.errors", wording="import pulsed.batches") == []


def test_a_circle_inside_a_layer_is_reported_once(tree):
    [problem] = tree(errors="import pulsed.batches", batches="import pulsed.errors")
    assert problem == "import circle: batches → errors → batches"


def test_an_unknown_module_must_be_given_a_layer(tree):
    [problem] = tree(utils="import os")
    assert "utils is in no layer; add it to the table" in problem


def test_an_unknown_package_must_be_given_a_layer(tree):
    [problem] = tree(helpers__in__text="")
    assert "helpers is in no layer" in problem


def test_a_class_name_has_one_meaning():
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        if not {"generated", "management"} & {*path.parts}  # Django wants every one a Command
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1] == []
