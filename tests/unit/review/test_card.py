"""The draft card: complete, or an error."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.acceptance.schema import DomainFigures, Drafting, Figure
from pipeline.errors import UnderstudyError
from pipeline.judgement.rule_result import RuleResult
from pipeline.judgement.schema import CANDIDATE, Decision
from pipeline.review.card import card, examined, version_description
from tests.decisions import NEW_VOCABULARY, make_decision
from tests.profiles import CONDITIONS


def around(value: float) -> Figure:
    return Figure(value, value - 0.01, value + 0.01, 120)


def decision(draft_sampling: Drafting = "probabilistic", **changes: Any) -> Decision:
    """A decision with round figures of the candidate."""
    found = make_decision()
    candidate = replace(
        found.drafts[CANDIDATE],
        prompts=120,
        acceptance_rate=around(0.783),
        tokens_per_target_call={5: around(3.21)},
        domains={
            "code": DomainFigures(80, around(0.8), {}),
            "a|b": DomainFigures(40, Figure(0.7, None, None, 40), {}),
        },
        conditions=replace(CONDITIONS, draft_sampling=draft_sampling),
    )
    rule = RuleResult(name="gain", verdict="pass", text="0.05 > 0")
    changes = {"drafts": {CANDIDATE: candidate}, "rules": [rule], "reasons": ["gain is proved"]} | changes
    return replace(found, **changes)


def facts() -> dict[str, Any]:
    model = {"source": "org/big", "revision": "f" * 40, "digest": "d1", "parameters": 5_200_000, "license": "m|t"}
    return {
        "name": "big-draft",
        "digest": "d2",
        "shape": "s",
        "quantization": "int4",
        "run": "run-1",
        "license": "apache-2.0",
        "target": model,
        "base": {**model, "source": "/models/small", "revision": None},
        "train_prompts": 360.0,
        "serving": {"bytes": 36_500_000, "cache_bytes_per_token": 8_200, "batch": 4, "context": 1024},
        "decision": decision(),
        "provenance": {"corpus": "c0ffee"},
    }


def test_card_says() -> None:
    """What a person who finds the draft must know."""
    made = card(facts())
    for text in (
        "# big-draft",
        "org/big, revision `" + "f" * 40,
        "/models/small, digest `d1`",
        "| licence | apache-2.0 |",
        "| quantization | int4 |",
        "| training prompts | 360 |",
        "640,000 parameters, 2.5 MB",
        "| memory to serve | 36.5 MB: weights of both models, and KV caches of 4 requests with 1,024 tokens (8.2 kB per token) |",
        "temperature 1",
        "On 120 examination prompts",
        "| acceptance rate | 0.783 | 0.773 to 0.793 |",
        "| tokens per target call, gamma 5 | 3.21 | 3.20 to 3.22 |",
        "| code | 80 | 0.800 |",
        "| a\\|b | 40 | 0.700 | unknown (too few prompts) |",
        "- gain: pass. 0.05 > 0",
        '"method": "draft_model"',
        '"num_speculative_tokens": 5, "draft_sample_method": "probabilistic"',
        "num_assistant_tokens = 5",
        "| corpus | `c0ffee` |",
    ):
        assert text in made


def test_greedy_draft_is_served_as_vllm_does_by_default() -> None:
    """The sampling method is named only where it differs from the engine's default."""
    found = {**facts(), "decision": decision("greedy")}
    assert "draft_sample_method" not in card(found)
    assert "chosen greedily" in card(found)


def test_unstated_licence_is_said() -> None:
    """No licence is invented."""
    assert "| licence | not stated by the base draft" in card({**facts(), "license": None})
    assert "license:" not in card({**facts(), "license": None})


def test_a_decision_without_figures_of_the_candidate_gives_no_card() -> None:
    """Readers would trust an incomplete card."""
    with pytest.raises(UnderstudyError, match="no figures of the candidate"):
        card({**facts(), "decision": decision(drafts={})})


def test_gamma_that_was_not_examined_is_an_error() -> None:
    """The message names what there is."""
    with pytest.raises(UnderstudyError, match="gamma 8; it has gamma 5"):
        examined(decision(gamma=8))


def test_missing_fact_is_an_error() -> None:
    """A card without its target is no card."""
    found = facts()
    del found["target"]
    with pytest.raises(UnderstudyError, match="'target' is missing"):
        card(found)


@pytest.mark.parametrize(("kind", "drawn", "sampled"), [("eagle3", "sampled", True), ("medusa", "greedily", False)])
def test_a_head_is_served_as_what_it_is(kind: Any, drawn: str, sampled: bool) -> None:
    """By its method, from the directory of its weights; no library loads it, and no export is advised."""
    made = decision()
    candidate = made.drafts[CANDIDATE]
    of_head = replace(candidate, draft=replace(candidate.draft, kind=kind))
    made = replace(made, drafts={CANDIDATE: of_head})
    text, version = card(facts() | {"decision": made}), version_description(made, "m", "r", "t")

    for shown in (text, version):
        assert f'"method": "{kind}", "model": "PATH_OF_THIS_VERSION/draft"' in shown
        assert ("draft_sample_method" in shown) == sampled
        assert "understudy champion export" not in shown
        assert "AutoModelForCausalLM" not in shown
    assert f"tags: [speculative-decoding, {kind}, understudy]" in text
    assert f"A head of kind {kind}" in text
    assert f"Draft tokens are {'chosen ' if drawn == 'greedily' else ''}{drawn}" in text
    assert "small language model" not in text


def test_rows_of_another_tokenizer_are_on_the_card() -> None:
    """With their share of the text, and the licences of both models."""
    text = card({**facts(), "decision": decision(new_vocabulary=NEW_VOCABULARY)})

    assert "| licence of the target | m\\|t |" in text
    assert "| mapped from the target's embedding | 160 | 9.0% | 0.21 | 0.74 |" in text
    assert "| &lt;\\|end\\|> in answer: no counterpart | 1 | 0.1% | none | none |" in text
    assert "computed from the target's embedding, so its licence holds for them too" in text
    assert "68% of the rows' spread, of the output layer 70%" in text
    assert "The target's vocabulary" not in card(facts())
