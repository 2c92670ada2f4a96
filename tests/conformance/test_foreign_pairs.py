"""Pairs of other families than Llama in vLLM: text and counters as predicted, with the options that export sets for their layers.

Rows of the table of engine facts are what was seen here: a test fails where a later vLLM does better, and the row may go.
"""

from typing import Any

import pytest

from pipeline.engines.facts import FACTS
from pipeline.models.attention_layers import mixture_of
from pipeline.models.shape import read_shape
from tests.conformance.cases import check_trace, exact_row, label, require_exact
from tests.conformance.engines import Engine, vllm_job
from tests.conformance.foreign_pairs import full, make_pair, sliding
from tests.conformance.subject import Subject

GAMMA, NEW = 3, 32
Rows = list[dict[str, Any]]
MIXED = {
    "Gemma 3 -> OLMo 2": (sliding("Gemma3Text", True, True, False, True), full("Olmo2", 1)),
    "Qwen 3 -> Gemma 3": (full("Qwen3", 3), sliding("Gemma3Text", True, False)),
    "OLMo 2 -> OLMo 3, windows only": (full("Olmo2", 3), sliding("Olmo3", True, True)),
}
PLAIN = {"Granite -> Qwen 3": (full("Granite", 3), full("Qwen3", 1))}


@pytest.fixture(scope="module", params=[*MIXED, *PLAIN])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Subject]:
    """Each pair in turn, trained here."""
    return request.param, make_pair(tmp_path_factory.mktemp("pair"), *(MIXED | PLAIN)[request.param])


def _options(subject: Subject) -> dict[str, Any]:
    """What the start command of an export has for the pair's layers, as an argument of vLLM's LLM."""
    mixture = mixture_of(read_shape(subject.target).attention, read_shape(subject.draft).attention)
    option = FACTS["vllm"].attention[mixture].option if mixture else ""
    return {option.removeprefix("--").replace("-", "_"): True} if option else {}


def _row(vllm: Engine, name: str, subject: Subject, options: dict[str, Any]) -> dict[str, Any]:
    job = vllm_job(subject.target, subject.draft, subject.prompts, NEW, [(0.0, 0)], gamma=GAMMA, options=options)
    result = vllm.run(job)
    (call,) = result["calls"]
    check_trace(call)
    build = f"shipped, {name}{''.join(f', {option}' for option in options)}"
    found = label(result, build, 0.0, "greedy", GAMMA) | exact_row(subject, call, GAMMA)
    print({what: found[what] for what in ("build", "predicted", "counted", "identical")}, len(found["not_the_target"]))
    return found


def test_text_and_counters_are_as_predicted(pair: tuple[str, Subject], vllm: Engine, rows: Rows) -> None:
    """As export starts the engine: every token is the target's, and every round is as the examination says, but for listed
    near-ties."""
    name, subject = pair
    options = _options(subject)
    assert bool(options) == (name in MIXED)
    row = _row(vllm, name, subject, options)
    rows.append(row)
    require_exact(row)
    assert row["counted"]["accepted"] > 0  # of rounds that nothing accepts, little is proved


def test_without_the_option_the_engine_is_wrong(pair: tuple[str, Subject], vllm: Engine) -> None:
    """The text is not the target's, or the engine does not start: what the fact says."""
    name, subject = pair
    if name in PLAIN:
        pytest.skip("it needs no option")
    if len(read_shape(subject.draft).attention.by_window) > 1:
        with pytest.raises(AssertionError, match="All drafting layers should belong to the same kv cache group"):
            _row(vllm, name, subject, {})
    else:
        assert _row(vllm, name, subject, {})["not_the_target"]
