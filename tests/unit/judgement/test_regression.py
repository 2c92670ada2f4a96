"""The regression check against a committed baseline."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.baseline import ExaminedCounts, baseline_json, read_baseline
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts, counts_from_json
from pipeline.acceptance.segments import SegmentCounts
from pipeline.errors import Refused, UsageError
from pipeline.judgement import regression
from pipeline.judgement.power import power_of
from pipeline.judgement.regression import Comparison, differing
from pipeline.store.files import content_key, write_json
from tests.fakes import counted
from tests.unit.commands.tables import test_check

CONDITIONS = replace(test_check.CONDITIONS, evaluate={"convention": "user", "confidence": 0.95, "max_gamma": 5})


def _examined(counts: Sequence[PromptCounts], trained_on: Sequence[str] = ()) -> ExaminedCounts:
    return ExaminedCounts(
        counts=counts, conditions=CONDITIONS, hardware="cpu", digest="draft", trained_on=frozenset(trained_on)
    )


def compare(draft: ExaminedCounts, baseline: ExaminedCounts, margin: float, segment_margin: float = 0.02) -> Comparison:
    """With the command's margin for segments."""
    return regression.compare(draft, baseline, margin, segment_margin)


def _counts(loss: float = 0.0, spread: float = 0.0) -> list[PromptCounts]:
    """Twenty prompts at 60 to 80%, each `loss` points worse, give or take `spread`."""
    level = np.linspace(60, 80, 20)
    wobble = spread * np.tile([1, -1], 10)
    return [counted(f"p{n}", float(level[n] - loss + wobble[n])) for n in range(20)]


def test_the_same_draft_passes() -> None:
    """The difference from itself is exactly 0, so every margin passes."""
    found = compare(_examined(_counts()), _examined(_counts()), 0.0001)

    assert (True, 0.0, 0.0, 0) == (found.passed, found.difference.low, found.difference.high, found.left_out)
    assert found.draft == found.baseline == pytest.approx(0.7)


def test_a_domain_of_one_prompt_does_not_refuse_an_identical_draft() -> None:
    """The same counts with one prompt in a domain of its own, and a single prompt altogether."""
    counts = [replace(item, domain="alone" if item.id == "p3" else item.domain) for item in _counts()]

    assert compare(_examined(counts), _examined(counts), 0.0001).passed
    assert compare(_examined(counts[:1]), _examined(counts[:1]), 0.0001).passed


@pytest.mark.parametrize(("loss", "passed"), [(0.0, True), (0.9, True), (1.1, False), (-5.0, True), (20.0, False)])
def test_the_margin_decides(loss: float, passed: bool) -> None:
    """A draft that is worse by the same amount on every prompt passes below the margin of a point and fails above it."""
    found = compare(_examined(_counts(loss)), _examined(_counts()), 0.01)

    assert passed == found.passed
    assert -loss / 100 == pytest.approx(found.difference.value)


def test_a_loss_of_exactly_the_margin_is_refused() -> None:
    """The lower bound must exceed -margin."""
    draft = _examined([counted(f"p{n}", 50.0, tokens=64) for n in range(6)])
    base = _examined([counted(f"p{n}", 52.0, tokens=64) for n in range(6)])

    assert -0.03125 == compare(draft, base, 0.03125).difference.low
    assert not compare(draft, base, 0.03125).passed
    assert compare(draft, base, 0.0313).passed


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.005, 0.02, "passed"),
        (-0.005, -0.001, "passed"),  # worse, by less than the margin
        (-0.02, -0.001, "regression"),
        (-0.03, -0.02, "regression"),
        (-0.02, 0.0, "undecided"),
        (-0.02, 0.1, "undecided"),
        (-math.inf, math.inf, "undecided"),
    ],
)
def test_only_what_is_proved_to_be_worse_is_a_regression(low: float, high: float, outcome: str) -> None:
    """What is not proved either way is refused under its own name."""
    same = compare(_examined(_counts()), _examined(_counts()), 0.01)
    assert outcome == replace(same, difference=Interval(0.0, low, high, 9)).outcome


def test_not_proved_is_not_passed() -> None:
    """With the same mean but a wide interval, a loss of a point is not excluded: refused."""
    found = compare(_examined(_counts(spread=10)), _examined(_counts()), 0.01)

    assert ("undecided", pytest.approx(0)) == (found.outcome, found.difference.value)
    assert not compare(_examined(_counts()[:1]), _examined(_counts(1.0)[:1]), 0.5).passed


def test_prompts_that_a_draft_was_trained_on_do_not_count() -> None:
    """A draft that is far better on the prompts it learnt, and worse on the others, is refused."""
    learnt = [f"p{n}" for n in range(10)]
    counts = [replace(item, accepted=99.0) if item.id in learnt else item for item in _counts(loss=5)]

    assert compare(_examined(counts), _examined(_counts()), 0.01).passed
    for draft, base in ((learnt, []), ([], learnt), (learnt[:4], learnt[4:])):
        found = compare(_examined(counts, draft), _examined(_counts(), base), 0.01)
        assert (False, 10, 10) == (found.passed, found.left_out, found.difference.prompts)
        assert tuple(learnt) == found.left_out_prompts
        assert -0.05 == pytest.approx(found.difference.value)


def test_a_draft_that_learnt_every_prompt_is_refused() -> None:
    """Nothing is left to compare, which is no pass."""
    every = [item.id for item in _counts()]
    with pytest.raises(Refused, match="trained on all of the 20 examination prompts"):
        compare(_examined(_counts(-5), every), _examined(_counts()), 0.01)


def test_a_baseline_survives_its_file() -> None:
    """What is compared is read back exactly as it was written, and the rest to six digits."""
    whole = _examined([replace(item, accepted_by_output=[item.accepted]) for item in _counts()], ["p1", "p2"])
    raw = json.loads(json.dumps(baseline_json(whole), allow_nan=False))
    found = read_baseline(raw, "b.json")
    lists = {"accepted_drafts", "per_position", "accepted_by_output"}

    assert replace(whole, counts=[]) == replace(found, counts=[])
    for before, after in zip(whole.counts, found.counts, strict=True):
        assert before == replace(after, **{name: getattr(before, name) for name in lists})
        for name in lists:
            np.testing.assert_allclose(getattr(after, name), getattr(before, name), rtol=5e-6)
    assert 0 == compare(whole, found, 0.01).difference.value


def test_a_baseline_of_500_prompts_is_below_a_megabyte(tmp_path: Path) -> None:
    """With figures of full length at 16 draft lengths, completions of 128 tokens and every bin they reach."""
    chance = np.random.default_rng(0)

    def numbers(count: int = 16) -> list[float]:
        return list(map(float, chance.uniform(1, 128, count)))

    counts = [
        replace(
            counted(f"{chance.integers(2**60):016x}", *numbers(1), tokens=128),
            rounds=numbers(),
            calls=numbers(),
            rounds_variance=numbers(),
            accepted_drafts=numbers(),
            per_position=numbers(),
            accepted_by_output=numbers(4),
            accepted_by_context=numbers(4),
        )
        for _ in range(500)
    ]
    write_json(tmp_path / "baseline.json", baseline_json(_examined(counts, [item.id for item in counts])))

    assert 1_000_000 > (tmp_path / "baseline.json").stat().st_size


def test_turns_of_conversations_prove_less() -> None:
    """A loss within the margin that twenty prompts prove is not proved by ten conversations, and rows must name the same ones."""
    chats = [
        [replace(item, conversation=f"c{n // 2}") for n, item in enumerate(one)]
        for one in (_counts(), _counts(0.5, 0.8))
    ]
    theirs, ours = (_examined(one) for one in chats)
    shifts = [0.9, 0.9, -0.9, -0.9] * 5  # alike within a conversation
    turned = [replace(item, accepted=item.accepted - 0.5 + shift) for item, shift in zip(chats[0], shifts, strict=True)]
    apart = [replace(item, conversation=item.id) for item in turned]
    by_turn = compare(_examined(apart), _examined(_counts()), 0.01)
    by_chat = compare(_examined(turned), theirs, 0.01)

    assert (True, False) == (by_turn.passed, by_chat.passed)
    assert (20, 10) == (by_chat.difference.prompts, by_chat.difference.conversations)
    with pytest.raises(UsageError, match="prompt p0 has conversation 'p0', and the completions have 'c0'"):
        compare(ours, _examined(_counts()), 0.01)


def test_domains_are_compared_for_information() -> None:
    """Each over its own prompts; a loss in one domain does not decide, and a single domain is not listed."""
    base = [replace(item, domain="chat" if n < 10 else "code") for n, item in enumerate(_counts())]
    draft = [replace(item, accepted=item.accepted + (-5 if item.domain == "chat" else 10)) for item in base]
    found = compare(_examined(draft), _examined(base), 0.5)

    assert found.passed
    assert [("chat", 10, -0.05), ("code", 10, 0.1)] == [
        (one.domain, one.difference.prompts, pytest.approx(one.difference.value)) for one in found.domains
    ]
    assert [pytest.approx(0.05)] * 2 == [
        abs(one.draft - one.baseline) / (1 + (one.domain == "code")) for one in found.domains
    ]
    assert () == compare(_examined(_counts()), _examined(_counts()), 0.01).domains


def test_conditions_that_differ_are_named() -> None:
    """By the names of their fields, without underscores."""
    other = replace(CONDITIONS, completions_sha256="altered", target="another")

    assert ["completions sha256", "target"] == differing(CONDITIONS, other)
    assert [] == differing(CONDITIONS, replace(CONDITIONS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("completions", "other"),
        ("completions_sha256", "other"),
        ("target", "other"),
        ("target_dtype", "bfloat16"),
        ("sampling", {"temperature": 0.7}),
        ("evaluate", {"convention": "vllm", "confidence": 0.95}),
        ("dtype", "bfloat16"),
    ],
)
def test_every_condition_counts(name: str, value: Any) -> None:
    """Each alone makes two examinations incomparable."""
    assert [name.replace("_", " ")] == differing(CONDITIONS, replace(CONDITIONS, **{name: value}))


def _damaged(**changes: Any) -> dict[str, Any]:
    raw = baseline_json(_examined(_counts()))
    return {name: value for name, value in (raw | changes).items() if value is not ...}


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        _damaged(schema=2),
        _damaged(conditions=...),
        _damaged(conditions=None),
        _damaged(conditions={}),
        _damaged(conditions={**_damaged()["conditions"], "dtype": "int7"}),
        _damaged(conditions={**_damaged()["conditions"], "evaluate": {"confidence": "high"}}),
        _damaged(draft=...),
        _damaged(draft={"digest": "a", "trained_on": None}),
        _damaged(hardware=...),
        _damaged(prompts=[{"id": "a"}]),
        _damaged(prompts=["a"]),
        _damaged(prompts=...),
    ],
)
def test_what_is_not_a_baseline_is_a_usage_error(raw: object) -> None:
    """Another schema, or a part that is missing or wrong: the error names the file and how to write a new one."""
    with pytest.raises(UsageError, match=r"b\.json: .*--update-baseline"):
        read_baseline(raw, "b.json")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": "other"}, "prompt other has id 'other', and the completions have 'p0'"),
        ({"tokens": 7}, "prompt p0 has tokens 7, and the completions have 100"),
        ({"domain": "chat"}, "prompt p0 has domain 'chat', and the completions have 'code'"),
    ],
)
def test_edited_rows_cannot_be_compared(change: dict[str, Any], named: str) -> None:
    """Rows of a baseline must agree with the completions in everything that does not depend on the draft."""
    edited = [replace(item, **change) if item.id == "p0" else item for item in _counts()]
    with pytest.raises(UsageError, match=named):
        compare(_examined(_counts()), _examined(edited), 0.01)


def test_other_prompts_cannot_be_compared() -> None:
    """A missing prompt, and empty lists, are errors."""
    with pytest.raises(UsageError, match="has 20 prompts, and the completions have 19"):
        compare(_examined(_counts()[1:]), _examined(_counts()), 0.01)
    with pytest.raises(ValueError, match="figure"):
        compare(_examined([]), _examined([]), 0.01)


def test_an_edited_baseline_is_refused() -> None:
    """Rows, conditions and the list of training prompts are under one digest; figures must be possible ones too."""
    raw = json.loads(json.dumps(baseline_json(_examined(_counts()))))
    assert [item.accepted for item in _counts()] == [item.accepted for item in read_baseline(raw, "b").counts]
    for edit in (
        lambda one: one["prompts"][0].update(accepted=1.0),
        lambda one: one["draft"].update(trained_on=["p0"]),
        lambda one: one["conditions"]["evaluate"].update(confidence=0.5),
    ):
        edited = json.loads(json.dumps(raw))
        edit(edited)
        with pytest.raises(UsageError, match="altered after it was written"):
            read_baseline(edited, "b")


def test_counts_must_be_possible() -> None:
    """No more accepted than examined tokens."""
    row = baseline_json(_examined(_counts()))["prompts"][0]
    with pytest.raises(ValueError, match=r"accepted of 100\.0 examined"):
        list(counts_from_json([{**row, "accepted": 101.0}]))


def test_a_draft_cannot_choose_the_few_prompts_it_is_compared_on() -> None:
    """Prompts that it was trained on are left out, but then enough must be left."""
    with pytest.raises(Refused, match="trained on 19 of the 20 examination prompts, so 1 are left"):
        compare(_examined(_counts(50.0), [f"p{n}" for n in range(19)]), _examined(_counts()), 0.01)


def _segmented(answer: float, tool_call: float, aside: float = 0.5, prompts: int = 20) -> list[PromptCounts]:
    """Of 100 tokens 75 are of the answer, 20 of tool calls, 5 of something small; each with an acceptance rate that differs a
    little from prompt to prompt."""
    found = []
    for n in range(prompts):
        rates = {"answer": (75, answer), "aside": (5, aside), "tool_call": (20, tool_call)}
        parts = {
            name: SegmentCounts(
                tokens=tokens,
                accepted=tokens * (rate + 0.01 * (n % 3 - 1)),
                examined=float(tokens),
                rounds=[10.0] * 5,
                emitted=[20.0] * 5,
                begins=1,
                begins_accepted=0.5,
            )
            for name, (tokens, rate) in rates.items()
        }
        found.append(replace(counted(f"p{n}", sum(one.accepted for one in parts.values())), segments=parts))
    return found


def _outcomes(found: Comparison) -> dict[str, str]:
    return {one.segment: one.outcome for one in found.segments}


def test_a_loss_in_a_large_segment_is_a_regression() -> None:
    """Though the rate of all tokens rose. A segment of 5% of the tokens is for information."""
    base = _examined(_segmented(0.5, 0.8))
    found = compare(_examined(_segmented(0.7, 0.5, aside=0.1)), base, 0.01)

    assert ("regression", "passed") == (found.outcome, found.of_all_tokens)
    assert found.difference.low > 0
    assert {"answer": "passed", "aside": "passed", "tool_call": "regression"} == _outcomes(found)
    assert [("answer", 0.75, 0.02), ("aside", 0.05, None), ("tool_call", 0.2, 0.02)] == [
        (one.segment, one.share, one.margin) for one in found.segments
    ]
    assert [pytest.approx(0.2), pytest.approx(-0.4), pytest.approx(-0.3)] == [
        one.difference.value for one in found.segments
    ]
    assert (pytest.approx(0.4998, abs=1e-3), pytest.approx(0.7998, abs=1e-3)) == (
        found.segments[2].draft,
        found.segments[2].baseline,
    )


@pytest.mark.parametrize(("margin", "passed"), [(0.02, False), (0.0301, True), (1.0, True)])
def test_the_margin_of_segments_decides(margin: float, passed: bool) -> None:
    """A loss of 3 points in tool calls; a margin of 1 judges no segment."""
    found = compare(_examined(_segmented(0.7, 0.77)), _examined(_segmented(0.6, 0.8)), 0.01, margin)

    assert passed == found.passed
    assert [None if margin == 1 else margin] * 2 == [found.segments[0].margin, found.segments[2].margin]
    power = None if margin == 1 else power_of(found.segments[2].difference, -margin, 0.95)
    assert power == found.segments[2].power


def test_the_bound_of_a_segment_must_exceed_its_margin() -> None:
    same = _examined(_segmented(0.7, 0.8))
    found = compare(same, same, 0.01, 0.0)
    assert {"answer": "undecided", "aside": "passed", "tool_call": "undecided"} == _outcomes(found)
    assert ("passed", "undecided") == (found.of_all_tokens, found.outcome)


def test_a_segment_without_an_interval_is_not_passed() -> None:
    """Judged, but in too few prompts to prove anything: it is refused, and not called a regression."""
    kept = [
        item if n < 3 else replace(item, segments={"answer": item.segments["answer"]})
        for n, item in enumerate(_segmented(0.7, 0.8))
    ]
    large = [
        replace(item, segments=item.segments | {"tool_call": replace(item.segments["tool_call"], tokens=400)})
        if "tool_call" in item.segments
        else item
        for item in kept
    ]
    draft = [replace(item, accepted=item.accepted + 5) for item in large]
    draft[0] = replace(
        draft[0],
        segments=draft[0].segments | {"tool_call": replace(draft[0].segments["tool_call"], accepted=17.5)},
    )
    found = compare(_examined(draft), _examined(large), 0.01)

    assert ("undecided", "undecided") == (found.outcome, _outcomes(found)["tool_call"])
    assert found.segments[2].power is None
    assert compare(_examined(large), _examined(large), 0.01).passed


def test_one_segment_is_not_listed() -> None:
    """Its figures are those of all tokens."""
    single = [replace(item, segments={"answer": item.segments["answer"]}) for item in _segmented(0.7, 0.8)]

    assert () == compare(_examined(single), _examined(single), 0.01).segments


def test_a_baseline_keeps_segments_exactly() -> None:
    """What the check compares of them has every digit."""
    whole = _examined(_segmented(1 / 3, 0.777777777))
    found = compare(whole, read_baseline(json.loads(json.dumps(baseline_json(whole))), "b.json"), 0.0001)

    assert [(0.0, 0.0)] * 3 == [(one.difference.low, one.difference.high) for one in found.segments]


def test_a_baseline_of_other_segments_cannot_be_compared() -> None:
    """Labels belong to the completions."""
    plain = [replace(item, segments={}) for item in _segmented(0.7, 0.8)]
    with pytest.raises(
        UsageError,
        match=r"prompt p0 has segments \{\}, and the completions have \{'answer': 75, 'aside': 5, 'tool_call': 20\}; .*"
        "write it again with --update-baseline",
    ):
        compare(_examined(_segmented(0.7, 0.8)), _examined(plain), 0.01)


def test_a_head_is_not_checked_against_a_plain_draft() -> None:
    """Its rate is over other tokens. A file that does not say its kind is from before there were others."""
    plain = _examined(_counts())
    head = replace(plain, kind="eagle3")
    read = read_baseline(json.loads(json.dumps(baseline_json(head))), "b.json")
    older = baseline_json(plain)
    del older["draft"]["kind"]
    older["sha256"] = content_key(
        [{name: older[name] for name in ("schema", "conditions", "hardware", "draft")}, older["prompts"]]
    )
    assert "plain" == read_baseline(older, "b.json").kind
    assert "eagle3" == read.kind
    regression.require_same_rates("eagle3", read)
    regression.require_same_rates("plain", plain)
    for kind, baseline in (("plain", read), ("medusa", read), ("eagle3", plain)):
        with pytest.raises(
            UsageError, match=f"the draft is of the kind {kind} and the baseline is of a draft of the kind"
        ):
            regression.require_same_rates(kind, baseline)  # type: ignore[arg-type]
