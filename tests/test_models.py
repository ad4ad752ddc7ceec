"""The checked models of the protocols, as far as this machine has Spin."""

from pathlib import Path

import pytest

from tools.models import broken_variants, missing_tools, models, search

NAMES = {"fan_out", "fire", "lease", "limits"}

needs_spin = pytest.mark.skipif(
    bool(missing_tools()), reason=f"the models need {' and '.join(missing_tools())}"
)


def test_every_protocol_has_a_model_with_broken_variants():
    assert {model.stem for model in models()} == NAMES
    for model in models():
        variants = broken_variants(model)
        assert len(variants) >= 3
        comment = model.read_text("utf-8").partition("*/")[0]
        assert [each for each in variants if each not in comment] == []


@needs_spin
@pytest.mark.parametrize("model", models(), ids=lambda model: model.stem)
def test_a_model_holds_as_it_is_built(model: Path):
    verdict = search(model)
    assert verdict.violation == ""
    assert verdict.states > 50


@needs_spin
@pytest.mark.parametrize(
    "name, variant",
    [
        ("lease", "TOKEN_IS_ATTEMPTS"),
        ("fire", "CURSOR_FIRST"),
        ("fan_out", "CHECK_IN_LOCKING_STATEMENT"),
        ("limits", "COUNT_BEFORE_LOCK"),
    ],
)
def test_a_broken_model_yields_a_counter_example(name: str, variant: str):
    [model] = [model for model in models() if model.stem == name]
    assert variant in broken_variants(model)
    assert search(model, variant).violation
