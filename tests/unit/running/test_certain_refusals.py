"""What makes a refusal certain before anything is generated, and how many prompts it takes."""

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.running.certain_refusals import near, needed, of_config, of_corpus, of_pair, of_prompts, stop_or_warn

CONFIGS = Path(__file__).parents[3] / "configs"
LOCAL = ("pair.target={source: ./t, dtype: bfloat16}", "pair.draft={source: ./d}", "corpus.sources=[{path: p.jsonl}]")


def _config(*overrides: str, name: str = "smoke") -> Config:
    return load_config(CONFIGS / f"{name}.yaml", overrides)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("evaluate.crosscheck_prompts=0",), "evaluate.crosscheck_prompts = 0 makes its rule crosscheck inconclusive"),
        (
            (*LOCAL, "gate.served_target={dtype: fp8}"),
            "gate.served_target.dtype is fp8 and pair.target.dtype is bfloat16; set both",
        ),
        (
            ("gate.served_target={dtype: bfloat16}",),
            "gate.served_target.dtype is bfloat16 and pair.target.dtype is float32",
        ),
    ],
)
def test_a_rule_that_the_config_cannot_meet_is_named(overrides: tuple[str, ...], reason: str) -> None:
    """With what to set."""
    (found,) = of_config(_config(*overrides))
    assert reason in found


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_no_shipped_config_is_stopped(name: str) -> None:
    """Least of all the quickstart."""
    assert [] == of_config(_config(name=name))


def test_a_served_target_whose_dtype_is_not_stated_is_no_reason() -> None:
    """Its revision alone may be checked."""
    assert [] == of_config(_config(*LOCAL, "gate.served_target={revision: r1}"))


@pytest.mark.parametrize(("revision", "certain"), [("r1", False), ("0123", False), ("r2", True)])
def test_another_revision_than_the_served_one_is_certain_once_the_pair_is_known(revision: str, certain: bool) -> None:
    """A local directory has its digest only."""
    facts: dict[str, Any] = {"target": {"revision": "r1", "digest": "0123"}}
    found = of_pair(_config(*LOCAL, f"gate.served_target={{revision: '{revision}'}}"), facts)
    assert [certain] == [bool(found)]


LOAD = "gate.load={requests_per_second: 1, max_batch: 4, context: 1000}"
PAIR: dict[str, Any] = {
    "target": {"bytes": 3_000_000, "cache_bytes_per_token": 200, "revision": None, "digest": "0123"},
    "draft": {"bytes": 2_000_000, "parameters": 500_000, "dtype": "float32", "cache_bytes_per_token": 50},
}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("gate.max_draft_megabytes=2.0",), ""),
        (
            ("gate.max_draft_megabytes=1.9",),
            "gate.max_draft_megabytes is 1.9 and the draft has 2.00 MB; raise the limit",
        ),
        ((LOAD, "gate.profile={int8: p.json}", "gate.max_draft_megabytes=1.9"), ""),
        (
            (LOAD, "gate.profile={unquantized: p.json}", "gate.max_draft_megabytes=1.9"),
            "the draft has 2.00 MB; raise the limit",
        ),
        ((LOAD, "gate.max_memory_megabytes=6.0"), ""),
        (
            (LOAD, "gate.max_memory_megabytes=5.9"),
            "KV caches of 4 requests with 1,000 tokens take 6 MB; raise the limit",
        ),
        ((LOAD, "gate.profile={int8: p.json}", "gate.max_memory_megabytes=5.9"), ""),
        ((LOAD, "gate.profile={int8: p.json}", "gate.max_memory_megabytes=3.9"), "tokens take 4 MB"),
    ],
)
def test_limits_of_size_that_the_pair_exceeds_are_named(overrides: tuple[str, ...], reason: str) -> None:
    """Once the pair is known. A quantized variant, which the gate may choose by its step times, is smaller."""
    found = of_pair(_config(*LOCAL, *overrides), PAIR)
    assert [reason] == [reason for one in found if reason in one] if reason else found == []


def test_a_draft_that_is_saved_in_fewer_bytes_may_fit() -> None:
    """Training saves it in `pair.draft.dtype`, whatever the base draft was saved in. Sizes of a served target are not known."""
    halved = PAIR | {"draft": PAIR["draft"] | {"dtype": "bfloat16"}}
    served = PAIR | {"target": PAIR["target"] | {"bytes": None}}

    assert [] == of_pair(_config(*LOCAL, "gate.max_draft_megabytes=1.0"), halved)
    assert [] == of_pair(_config(*LOCAL, LOAD, "gate.max_memory_megabytes=1"), served)


def test_too_few_prompts_are_named_with_the_number_that_is_needed() -> None:
    """Of the whole domain, with the share of the examination."""
    config = _config("gate.min_prompts_per_domain=40", "corpus.splits={train: 0.6, dev: 0.1, examination: 0.3}")
    (found,) = of_prompts(config, {"code": 60, "chat": 200})
    assert found.startswith(
        "corpus: domain 'code' has 60 different prompts, about 18 of them for examination, and the gate needs 40 "
        "(gate.min_prompts_per_domain), so it will refuse: about 164 prompts are needed with corpus.splits.examination = 0.3; "
    )
    (after,) = of_corpus(config, {"code": {"examination": 39}, "chat": {"examination": 40}})
    assert (
        "domain 'code' has 39 examination prompts and the gate needs 40, so it will refuse: about 164 prompts" in after
    )


def test_turns_are_no_further_prompts_for_the_gate() -> None:
    """It counts conversations."""
    config = _config("gate.min_prompts_per_domain=40", "corpus.splits={train: 0.6, dev: 0.1, examination: 0.3}")
    domains = {"code": {"examination": 90}, "chat": {"examination": 90}}
    (found,) = of_corpus(config, domains, {"code": 39, "chat": 40})
    assert found.startswith(
        "corpus: domain 'code' has 90 examination prompts of 39 conversations and the gate needs 40, so it will refuse: "
        "about 164 conversations of the domain are needed "
    )


def _at_least(least: int, count: int, share: float) -> float:
    """The probability that at least `least` of `count` prompts are in a split."""
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(least, count + 1))


@pytest.mark.parametrize(("least", "share"), [(40, 0.3), (40, 0.16), (8, 0.25), (100, 0.5)])
def test_the_number_suffices_and_what_is_stopped_is_hopeless(least: int, share: float) -> None:
    """Against the binomial distribution itself: 95% within a point, and at most 2% where a run is stopped."""
    config = _config(
        f"gate.min_prompts_per_domain={least}",
        f"corpus.splits={{train: {0.9 - share}, dev: 0.1, examination: {share}}}",
    )
    stopped = max(count for count in range(1, 2 * least * 7) if of_prompts(config, {"code": count}))
    assert _at_least(least, needed(least, share), share) == pytest.approx(0.95, abs=0.015)
    assert 0.002 < _at_least(least, stopped, share) < 0.02


def test_a_certain_refusal_stops_a_run_that_was_not_told_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, which names the option; with the option, warnings."""
    with pytest.raises(
        UsageError, match=r"^a \(and 1 more such reasons\); --even-if-refused runs the stages all the same$"
    ):
        stop_or_warn(["a", "b"], Progress(False), go_on=False)
    stop_or_warn(["a", "b"], Progress(False), go_on=True)
    stop_or_warn([], Progress(False), go_on=False)
    assert "warning: a\nwarning: b\n" == capsys.readouterr().err


def test_small_domains_without_a_rule_refuse_nothing() -> None:
    domains = {"code": {"examination": 400}, "chat": {"examination": 3}}
    (refusal,) = of_corpus(_config(), domains)
    assert "gate.min_domain_share" in refusal
    assert [] == of_corpus(_config("gate.min_domain_share=0.05"), domains)


def test_between_hopeless_and_enough_it_is_said() -> None:
    """A number of prompts is hopeless, may be too few, or is enough: one of the three."""
    config = _config("gate.min_prompts_per_domain=40", "corpus.splits={train: 0.6, dev: 0.1, examination: 0.3}")
    enough = needed(config.gate.min_prompts_per_domain, config.corpus.splits.examination)
    for count in range(1, 2 * enough):
        hopeless, unsure = of_prompts(config, {"code": count}), near(config, {"code": count})
        assert (bool(hopeless) + bool(unsure) == 1) == (count < enough)
        assert not (hopeless and unsure)
    (line,) = near(config, {"code": enough - 1})
    assert f"it may refuse, since near-duplicates are dropped too; about {enough:,} prompts are enough" in line
