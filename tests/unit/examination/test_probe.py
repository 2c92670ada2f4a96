"""When a probe says that a draft pays."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.acceptance.schema import Figure
from pipeline.commands.tables import probe as probe_report
from pipeline.config.corpus import named_source
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.directory import NOTHING
from pipeline.examination import probe
from pipeline.examination.probe import _pays
from pipeline.latency.costs.ideal_speedup import ForwardTimes, from_cost_ratio
from tests.fakes import tiny_tokenizer


@pytest.mark.parametrize(
    ("low", "high", "prompts", "conversations", "pays"),
    [
        (1.01, 1.2, 40, None, True),
        (1.0, 1.2, 40, None, None),
        (0.8, 0.99, 40, None, False),
        (0.8, 1.0, 40, None, None),
        (1.01, 1.2, 39, None, None),
        (1.01, 1.2, 80, 39, None),
        (1.01, 1.2, 80, 40, True),
        (None, None, 80, None, None),
    ],
)
def test_a_verdict_needs_bounds_on_one_side_and_enough_conversations(
    low: float | None, high: float | None, prompts: int, conversations: int | None, pays: bool | None
) -> None:
    assert _pays(Figure(1.0, low, high, prompts, conversations)) is pays
    assert _pays(None) is None


@pytest.mark.parametrize(
    ("template", "chat", "row", "is_said"),
    [
        ("{{ messages[0]['content'] }}", None, {"prompt": "w1 w2"}, True),
        ("{{ messages[0]['content'] }}", False, {"prompt": "w1 w2"}, False),
        ("{{ messages[0]['content'] }}", None, {"messages": [{"role": "user", "content": "w1"}]}, False),
        (None, None, {"prompt": "w1 w2"}, False),
    ],
)
def test_a_chat_template_that_nobody_asked_for_is_said(
    tmp_path: Path, template: str | None, chat: bool | None, row: dict[str, Any], is_said: bool
) -> None:
    """With the option that leaves it out; of chats there is nothing to leave out."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    pair: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=32, trained_on=NOTHING)
    found = probe.read_prompts(named_source(tmp_path / "p.jsonl", {}), pair, chat, 9, 64)
    said = "chat template: applied to 1 plain prompts, as the tokenizer has one; --no-chat leaves it out"
    assert is_said is (said in found.notes)


def test_passes_of_two_kinds_are_said_beside_the_cost_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """A head is computed in PyTorch beside a target in compiled code, on a CPU; and the length of the comparison is named."""
    figure = Figure(2.0, 1.9, 2.1, 40)
    figures: Any = SimpleNamespace(
        acceptance_rate=figure,
        acceptance_rate_without_loops=None,
        loop_share=0.0,
        tokens_per_target_call=dict.fromkeys((1, 3), figure),
        by_output_position=None,
        tokens=9,
    )
    one: Any = SimpleNamespace(
        name="head", figures=figures, gamma=1, speedup=None, cost_ratio=0.5, arithmetic=None, verdict="head: none"
    )
    conditions: dict[str, Any] = {
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        "draft_sampling": "greedy",
        "convention": "user",
        "confidence": 0.95,
        "gamma": 3,
        "gamma_from": "evaluate.gamma of run r",
        "cost_ratio_given": False,
        "device": "cpu",
    }
    for unequal in (True, False):
        probe_report.print_probe(probe.Probe([one], {}, 9, 9, unequal_passes=unequal), conditions, [])
        out = " ".join(capsys.readouterr().out.split())
        assert unequal is ("--cost-ratio states that of an engine" in out)
        assert "Acceptance rates are over the tokens that rounds of 3 draft tokens examine" in out
        assert "tokens / target call at 3 draft tokens (evaluate.gamma of run r)" in out


def test_drafts_of_equal_shape_have_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal drafts had two speedups, as far apart as two measurements are."""
    measured: list[str] = []

    def times(pair: Any, draft: str, cost_ratio: float | None, turns: int) -> list[ForwardTimes]:
        measured.append(draft)
        return [from_cost_ratio(0.1 * len(measured), 16)] * turns

    monkeypatch.setattr(probe, "_times", times)
    drafts = {name: SimpleNamespace(models=(name,)) for name in ("one", "two", "other", "unknown")}
    pair: Any = SimpleNamespace(drafts=drafts, shapes={"one": "s", "two": "s", "other": "t"})
    found = probe._times_by_draft(pair, drafts, None, 6)
    assert ["one", "other", "unknown"] == measured
    assert found["one"] is found["two"]
    assert found["one"] != found["other"]


def _found(costs: list[float], alpha: float, half: float = 0.01) -> probe.Finding:
    """Of a draft whose pass costs so many passes of the target in each of the turns, with 40 prompts."""
    lengths = range(1, 17)
    yields = {gamma: iid_tokens_per_call(alpha, gamma) for gamma in lengths}
    figures = SimpleNamespace(
        tokens_per_target_call={gamma: Figure(one, one - half, one + half, 40) for gamma, one in yields.items()},
        mean_acceptance_length=yields,
        by_output_position=(),
    )
    tally: Any = SimpleNamespace(figures=lambda _: figures, domains=lambda *_: {})
    return probe._finding("d", tally, [from_cost_ratio(cost, 16) for cost in costs], None, EvaluateConfig())


def test_step_times_are_judged_as_those_of_a_run() -> None:
    """`upper bound 1.29 [0.05, 1.35]` was printed as if measured, beside a run that found the same times not measurable."""
    steady, busy = _found([0.2] * 6, 0.7), _found([0.2] * 5 + [3.0], 0.7)
    assert steady.pays is True
    assert steady.speedup is not None
    assert (None, None, None) == (busy.pays, busy.speedup, busy.break_even)
    assert "d: speedup not measurable: step times differ by a factor of" in busy.verdict
    assert "-" == probe_report._break_even(busy)


@pytest.mark.parametrize(
    ("costs", "shown", "verdict"),
    [
        ([0.4] * 6, "0.400", "may be faster"),
        ([1.1] * 6, "never", "is not faster"),
        ([0.97, 1.01, 1.02, 1.03, 1.04, 1.05], "above 0.970", "inconclusive"),
    ],
)
def test_a_break_even_does_not_contradict_its_verdict(costs: list[float], shown: str, verdict: str) -> None:
    """`never` stands only where no measured turn says otherwise. At acceptance 1 drafts of 1 token pay below a cost of 1."""
    found = _found(costs, 0.999)
    assert shown == probe_report._break_even(found)
    assert verdict in found.verdict


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(1e-3, 10, 50), (1e-5, 50, 50), (1.0, 3, 3)])
def test_short_passes_are_timed_more_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, fewest: int, most: int
) -> None:
    """A turn lasts a third of a second where passes are short, since few of those are noise; long ones are timed three times."""
    asked = list[int]()

    def measured(*_: Any, repeats: int, **__: Any) -> ForwardTimes:
        asked.append(repeats)
        return ForwardTimes(dict.fromkeys(range(1, 12), seconds), seconds)

    monkeypatch.setattr(probe, "measure_times", measured)
    pair: Any = SimpleNamespace(context=256, target=None, vocabulary=9)
    turns = probe._times(pair, None, None, 6)

    assert 6 == len(turns)
    assert all(fewest <= one <= most for one in asked[-5:])
