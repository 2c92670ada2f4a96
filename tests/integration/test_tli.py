"""A draft with another tokenizer that nobody has trained, through the command line: probed, compared and exported."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RUN, Place, Smoke
from tests.integration.test_transplant import _other_draft


@pytest.fixture(scope="module")
def other(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("other") / "draft"
    _other_draft(smoke, out)
    return out


def test_a_probe_shows_both_forms(smoke: Smoke, other: Path) -> None:
    """As a transplant, and as vLLM maps its tokens; the methods that are not predicted are said."""
    where = {name: smoke.place.artifact(name) for name in ("pair", "generate")}
    words = ("--target", where["pair"] / "target", "--draft", other, "--completions", where["generate"])
    ended = smoke.place.understudy(
        "probe", *words, "--count", "12", "--max-gamma", "2", "--cost-ratio", "0.1", "--json"
    )
    assert 0 == ended.code, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    names = [one["name"] for one in found["findings"][:2]]
    rates = [one["figures"]["acceptance_rate"]["value"] for one in found["findings"][:2]]
    notes = "\n".join(found["notes"])

    assert ["draft (transplant)", "draft (TLI)"] == names
    assert rates[0] > rates[1] > 0
    assert "of 512 tokens are written alike" in notes
    assert "the base draft of pair.draft.vocabulary = target, before any training: " in notes
    assert "SLEM) are not predicted" in notes


def test_an_export_and_a_comparison_of_a_draft_that_no_run_trained(
    smoke: Smoke, other: Path, place: Place, tmp_path: Path
) -> None:
    """vLLM is told to map tokens, and counts are expected as it drafts; the same rate as in a comparison. The files are the
    draft's own."""
    store = ("--store", smoke.place.store)
    words = ("champion", "export", other, "--run", RUN, "--out", tmp_path / "out")
    refused = place.understudy(*words, "--engine", "sglang", *store, store=False)
    assert 2 == refused.code
    assert (
        "a draft of kind tli is not exported for SGLang (pull request 22883, which would, is open); choose one of vllm"
        in (refused.complaint)
    )
    ended = place.understudy(*words, "--engine", "vllm", *store, store=False)
    assert 0 == ended.code, ended.err
    settings = json.loads((tmp_path / "out" / "speculative-config.json").read_text())
    expected = json.loads((tmp_path / "out" / "expected.json").read_text())
    compared = place.understudy("compare", RUN, other, "--json", *store, store=False)
    assert 0 == compared.code, compared.err
    rate = json.loads(compared.out)["drafts"]["candidate"]["acceptance_rate"]["value"]

    baseline = ("check", "--draft", other, "--baseline", tmp_path / "base.json")
    written = place.understudy(*baseline, RUN, "--update-baseline", *store, store=False)
    checked = place.understudy(*baseline, "--completions", smoke.place.artifact("generate"), *store, store=False)
    assert (0, 0) == (written.code, checked.code), checked.err

    assert f"run {RUN} did not train this draft: it is examined on the completions of that run" in ended.err
    assert (
        "has another tokenizer: as vLLM serves it with use_heterogeneous_vocab, greedily and untrained; "
        in compared.err
    )
    assert (True, "greedy") == (settings["use_heterogeneous_vocab"], settings["draft_sample_method"])
    assert ("vllm", "greedy", None) == tuple(expected[name] for name in ("engine", "draft_sampling", "other_drafting"))
    assert pytest.approx(rate, abs=1e-6) == expected["deployed"]["acceptance_rate"]
    assert (other / "model.safetensors").read_bytes() == (tmp_path / "out" / "draft" / "model.safetensors").read_bytes()
    assert not expected["draft"]["resized_to_target"]


def test_an_untrained_draft_of_the_targets_tokenizer_is_exported_too(
    smoke: Smoke, place: Place, tmp_path: Path
) -> None:
    """The base draft by its directory: with the figures of the run's own examination of it."""
    draft, options = smoke.place.artifact("pair") / "draft", ("--engine", "vllm", "--store", smoke.place.store)
    words = ("champion", "export", draft, "--run", RUN, "--out", tmp_path / "out", *options)
    ended = place.understudy(*words, store=False)
    assert 0 == ended.code, ended.err
    expected = json.loads((tmp_path / "out" / "expected.json").read_text())
    examined = json.loads((smoke.place.artifact("evaluate/base") / "acceptance.json").read_text())
    rate = examined["headline"]["acceptance_rate"]["value"]

    assert pytest.approx(rate, abs=1e-4) == expected["deployed"]["acceptance_rate"]
    assert "use_heterogeneous_vocab" not in (tmp_path / "out" / "speculative-config.json").read_text()


@pytest.mark.parametrize(
    ("draft", "options", "complaint"),
    [
        (RUN, (), f"--run: run {RUN} trained {RUN}, and it is examined with that; leave the option out"),
        (None, (), "--run: name the draft that is examined on the completions of this run"),
        ("./x", ("--variant", "int8"), "--variant int8: with --run a draft is exported as it is; leave the option out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    smoke: Smoke, place: Place, tmp_path: Path, draft: str | None, options: tuple[str, ...], complaint: str
) -> None:
    words = ("champion", "export", *([draft] if draft else []), "--run", RUN, "--engine", "vllm", *options)
    ended = place.understudy(*words, "--out", tmp_path / "out", "--store", smoke.place.store, store=False)
    assert (2, complaint) == (ended.code, ended.complaint)
