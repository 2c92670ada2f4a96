"""Rules and verdicts: each rule can pass and fail, and a missing figure is a refusal."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.schema import Figure
from pipeline.acceptance.segments import SegmentCounts
from pipeline.config.gate import GateConfig
from pipeline.judgement.decision import Judgement, already_champion, judge, without_prompts
from pipeline.judgement.headline import power_line
from pipeline.judgement.policy import Case, apply_rules, not_examined
from pipeline.judgement.relative_speed import RoundRatio
from pipeline.judgement.rule_result import FAIL, INCONCLUSIVE, PASS, RuleResult
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE, REFUSE, TargetSource
from pipeline.latency.load.serving import LatencyAtLoad
from tests.fakes import counted

POLICY = GateConfig(min_prompts_per_domain=10, max_draft_megabytes=10)
PROMPTS = 12


def _counts(rates: dict[str, float], calls: float = 50.0, seed: int = 1) -> list[PromptCounts]:
    """Twelve prompts per domain, with one offset per prompt that all drafts share and a small one of each draft."""
    ups = np.random.default_rng(0).uniform(-10, 10, PROMPTS)
    own = np.random.default_rng(seed).uniform(-0.2, 0.2, PROMPTS)
    return [
        counted(f"{domain}-{n}", float(100 * rate + ups[n] + own[n]), domain=domain, calls=calls)
        for domain, rate in rates.items()
        for n in range(PROMPTS)
    ]


def _case(**changes: Any) -> Case:
    """A candidate that passes everything."""
    good = Case(
        candidate=_counts({"chat": 0.7, "code": 0.8}, calls=40),
        baseline=_counts({"chat": 0.6, "code": 0.7}, seed=2),
        baseline_name="champion",
        prompt_lookup=_counts({"chat": 0.2, "code": 0.3}, calls=80),
        draft_bytes=5e6,
        crosscheck_agrees=True,
    )
    tables = {name: CountTable.of(counts) for name, counts in vars(good).items() if isinstance(counts, list)}
    changed = {name: CountTable.of(value) if isinstance(value, list) else value for name, value in changes.items()}
    return replace(good, **tables | changed)


def _rules(case: Case, policy: GateConfig = POLICY) -> dict[str, RuleResult]:
    return {rule.name: rule for rule in apply_rules(case, policy, 5, 0.95)}


def _verdict(case: Case, policy: GateConfig = POLICY) -> str:
    return judge(apply_rules(case, policy, 5, 0.95)).verdict


@pytest.mark.parametrize(("name", "verdict"), [("candidate", FAIL), ("champion", INCONCLUSIVE)])
def test_a_draft_that_cannot_be_examined_is_the_only_reason(name: str, verdict: str) -> None:
    """Without its figures every other rule would give a reason of its own, and none the right one."""
    found = judge([not_examined({name: "NaN"})])
    assert [f"examined ({verdict}): the {name} cannot be examined: NaN"] == found.reasons
    assert REFUSE == found.verdict


def test_a_better_draft_passes_every_rule() -> None:
    """All seven rules pass, in the order people read them, and there are no reasons."""
    rules = apply_rules(_case(), POLICY, 5, 0.95)
    found = judge(rules)

    assert [
        "min_prompts_per_domain",
        "min_gain",
        "domain_margin:chat",
        "domain_margin:code",
        "beats_prompt_lookup",
        "max_draft_megabytes",
        "crosscheck",
    ] == [rule.name for rule in rules]
    assert {PASS} == {rule.verdict for rule in rules}
    assert Judgement(PROMOTE, [], rules) == found
    json.dumps(asdict(found), allow_nan=False)


def test_a_rule_says_what_it_demands() -> None:
    """The text has the figure with its interval, and how much may be lost or must be gained."""
    rules = _rules(_case(baseline_name="base draft"))
    half = _rules(_case(), POLICY.model_copy(update={"min_gain": 0.02, "domain_margin": 0.005}))

    assert rules["min_gain"].text.startswith("gain in acceptance rate over the base draft: +10.")
    assert rules["min_gain"].text.endswith("], lower bound must be above 0.00 points")
    assert rules["domain_margin:chat"].text.endswith("], lower bound must be above -1.00 point")
    assert rules["beats_prompt_lookup"].text.endswith("], lower bound must be above 0.00 tokens")
    assert half["min_gain"].text.endswith("], lower bound must be above 2.00 points")
    assert half["domain_margin:chat"].text.endswith("], lower bound must be above -0.50 points")


def test_rules_count_conversations() -> None:
    """Twelve prompts of two turns each are six units, and ten are needed; of the texts only those of such prompts say so."""
    turns = {"candidate": None, "baseline": None, "prompt_lookup": None}
    halved = {
        side: [
            replace(item, conversation=f"c{place // 2}") if item.domain == "chat" else item
            for place, item in enumerate(getattr(_case(), side))
        ]
        for side in turns
    }
    rules = _rules(_case(**halved))
    failed = {name: rule.verdict for name, rule in rules.items() if rule.verdict != PASS}
    power = rules["min_gain"].power

    assert {"min_prompts_per_domain": INCONCLUSIVE, "domain_margin:chat": INCONCLUSIVE} == failed
    assert (
        "12 prompts of 6 conversations that neither draft was trained on in 'chat', the smallest domain; "
        "10 conversations are needed"
    ) == rules["min_prompts_per_domain"].text
    assert (
        "'chat' has only 12 prompts of 6 conversations that neither draft was trained on; 10 conversations are needed"
    ) == rules["domain_margin:chat"].text
    assert power is not None
    assert (24, 18) == (power.prompts, power.conversations)
    assert "min_gain: over 24 prompts of 18 conversations a true gain of " in power_line("min_gain", power)
    assert power_line("domain_margin:code", rules["domain_margin:code"].power).endswith(" for 95% 12")
    assert "conversations" not in power_line("domain_margin:code", rules["domain_margin:code"].power)


@pytest.mark.parametrize(
    ("changes", "rule", "verdict"),
    [
        ({"candidate": _counts({"chat": 0.595, "code": 0.695}, calls=40)}, "min_gain", FAIL),
        ({"candidate": _counts({"chat": 0.6, "code": 0.7}, calls=40)}, "min_gain", INCONCLUSIVE),
        ({"candidate": _counts({"chat": 0.5, "code": 0.9}, calls=40)}, "domain_margin:chat", FAIL),
        ({"prompt_lookup": _counts({"chat": 0.2, "code": 0.3}, calls=30)}, "beats_prompt_lookup", FAIL),
        ({"prompt_lookup": None}, "beats_prompt_lookup", INCONCLUSIVE),
        ({"draft_bytes": 10_000_001.0}, "max_draft_megabytes", FAIL),
        ({"draft_bytes": None}, "max_draft_megabytes", INCONCLUSIVE),
        ({"draft_bytes": math.nan}, "max_draft_megabytes", INCONCLUSIVE),
        ({"crosscheck_agrees": False}, "crosscheck", FAIL),
        ({"crosscheck_agrees": None}, "crosscheck", INCONCLUSIVE),
    ],
)
def test_each_rule_refuses_alone(changes: dict[str, Any], rule: str, verdict: str) -> None:
    """One figure that is worse, not proved or missing is enough, and the reason names its rule."""
    case = _case(**changes)
    failed = {name: one.verdict for name, one in _rules(case).items() if one.verdict != PASS}
    found = judge(apply_rules(case, POLICY, 5, 0.95))

    assert {rule: verdict} == failed
    assert REFUSE == found.verdict
    assert [True] == [reason.startswith(f"{rule} ({verdict}): ") for reason in found.reasons]


def test_what_is_not_proved_either_way_is_inconclusive() -> None:
    """A rule fails only by the upper bound: two drafts alike are inconclusive, whichever has the better estimate."""
    one, other = (_counts({"chat": 0.6, "code": 0.7}, calls=40, seed=seed) for seed in (1, 2))
    found = [_rules(_case(candidate=a, baseline=b))["min_gain"] for a, b in ((one, other), (other, one))]

    assert [INCONCLUSIVE, INCONCLUSIVE] == [rule.verdict for rule in found]
    assert [-1, 1] == sorted(math.copysign(1, rule.figure.value) for rule in found if rule.figure)


def _served(speedup: float | None, p95: float, mean: float | None = 1.0, width: float = 0.1) -> LatencyAtLoad:
    """With a p99 of 1.5 times the p95."""

    def around(value: float) -> Interval:
        return Interval(value, value - width, value + width, 12)

    return LatencyAtLoad(mean, speedup and around(speedup), {0.95: around(p95), 0.99: around(1.5 * p95)})


BEYOND = LatencyAtLoad(None, None, {})  # capacity
AT_LOAD = {"min_speedup": 1.2, "max_latency_seconds": {"p99": 4.5, "p95": 3.1}, "max_memory_megabytes": 100}


@pytest.mark.parametrize(
    ("changes", "verdict", "rule"),
    [
        ({"served": _served(1.5, 2.0)}, PASS, None),
        ({"served": _served(1.25, 2.0)}, INCONCLUSIVE, "min_speedup"),
        ({"served": _served(1.05, 2.0)}, FAIL, "min_speedup"),
        ({"served": _served(1.5, 2.95)}, INCONCLUSIVE, "max_latency_seconds:p99"),
        ({"served": _served(1.5, 3.2)}, FAIL, "max_latency_seconds:p99"),
        ({"served": _served(1.5, 3.15)}, INCONCLUSIVE, "max_latency_seconds:p95"),
        ({"served": _served(1.5, 3.3)}, FAIL, "max_latency_seconds:p95"),
        ({"served": _served(None, 2.0)}, PASS, None),  # plain decoding is beyond its limit
        ({"served": _served(1.5, 2.0, width=math.inf)}, INCONCLUSIVE, "min_speedup"),
        ({"served": BEYOND}, FAIL, "min_speedup"),
        (
            {"served": replace(_served(1.5, 2.0), quantiles={0.95: Interval(1.0, 0.9, 1.1, 12)})},
            INCONCLUSIVE,
            "max_latency_seconds:p99",
        ),
        ({"served": None}, INCONCLUSIVE, "min_speedup"),
        ({"serving_bytes": 1e8}, PASS, None),
        ({"serving_bytes": 1.1e8}, FAIL, "max_memory_megabytes"),
        ({"serving_bytes": 1.001e8}, FAIL, "max_memory_megabytes"),
        ({"serving_bytes": math.nan}, INCONCLUSIVE, "max_memory_megabytes"),
        ({"serving_bytes": None}, INCONCLUSIVE, "max_memory_megabytes"),
    ],
)
def test_rules_at_a_stated_load(changes: dict[str, Any], verdict: str, rule: str | None) -> None:
    """The speedup's lower bound, the upper bound of two quantiles of the latency, and the memory of weights and KV cache."""
    policy = replace_policy(**AT_LOAD)
    case = _case(**{"served": _served(1.5, 2.0), "serving_bytes": 1e8} | changes)
    failed = {name: found.verdict for name, found in _rules(case, policy).items() if found.verdict != PASS}

    assert (verdict == PASS) == (not failed)
    if rule:
        assert verdict == failed[rule]


def test_limits_are_inclusive() -> None:
    """A draft of exactly the largest size, and exactly the least prompts, pass."""
    assert PASS == _rules(_case(draft_bytes=10e6))["max_draft_megabytes"].verdict
    assert PROMOTE == _verdict(_case(), replace_policy(min_prompts_per_domain=PROMPTS))
    assert REFUSE == _verdict(_case(), replace_policy(min_prompts_per_domain=PROMPTS + 1))


def replace_policy(**changes: Any) -> GateConfig:
    return POLICY.model_copy(update=changes)


def test_rules_can_be_left_out() -> None:
    """Without a size limit or the comparison with prompt-lookup there is no such rule."""
    case = _case(prompt_lookup=None, draft_bytes=None)

    assert PROMOTE == _verdict(case, replace_policy(beats_prompt_lookup=False, max_draft_megabytes=None))


def test_a_gain_must_exceed_the_least_gain() -> None:
    """The lower bound decides, not the estimate: a gain of 10 points proves 9, not 10."""
    gain = _rules(_case())["min_gain"].figure

    assert gain is not None
    assert gain.value == pytest.approx(0.1, abs=0.005)
    assert gain.low is not None
    assert PROMOTE == _verdict(_case(), replace_policy(min_gain=gain.low - 1e-9))
    assert REFUSE == _verdict(_case(), replace_policy(min_gain=gain.low))
    assert INCONCLUSIVE == _rules(_case(), replace_policy(min_gain=gain.low))["min_gain"].verdict


def test_a_domain_may_lose_less_than_the_margin() -> None:
    """The rule passes only where the interval excludes a loss of the margin."""
    case = _case(candidate=_counts({"chat": 0.595, "code": 0.9}, calls=40))

    assert PASS == _rules(case, replace_policy(domain_margin=0.02))["domain_margin:chat"].verdict
    assert FAIL == _rules(case, replace_policy(domain_margin=0.001))["domain_margin:chat"].verdict


def test_a_figure_that_is_not_a_number_refuses() -> None:
    """NaN in one prompt's counts: no figure, an inconclusive rule, and the decision is valid JSON."""
    candidate = _case().candidate
    case = _case(candidate=[replace(candidate[0], accepted=math.nan), *candidate[1:]])
    found = judge(apply_rules(case, POLICY, 5, 0.95))

    assert {"min_gain", "domain_margin:chat"} == {rule.name for rule in found.rules if rule.verdict != PASS}
    assert REFUSE == found.verdict
    json.dumps(asdict(found), allow_nan=False)


def test_profiles_over_other_prompts_refuse() -> None:
    """Two profiles that cannot be paired have no gain."""
    assert INCONCLUSIVE == _rules(_case(baseline=_case().baseline[::-1]))["min_gain"].verdict


def test_too_few_prompts_in_a_domain_are_inconclusive() -> None:
    """A domain with fewer prompts than the policy requires is inconclusive, which is a refusal."""
    short = {name: [i for i in getattr(_case(), name) if i.id != "chat-0"] for name in ("candidate", "baseline")}
    rules = _rules(_case(**short, prompt_lookup=None), replace_policy(min_prompts_per_domain=PROMPTS))

    assert INCONCLUSIVE == rules["min_prompts_per_domain"].verdict == rules["domain_margin:chat"].verdict
    assert PASS == rules["domain_margin:code"].verdict
    assert (Figure(11.0, None, None, 0), 12.0) == (
        rules["min_prompts_per_domain"].figure,
        rules["min_prompts_per_domain"].threshold,
    )


def test_one_prompt_in_a_domain_has_no_interval() -> None:
    """Unknown bounds are null and never a pass."""
    case = _case(candidate=_case().candidate[:1], baseline=_case().baseline[:1], prompt_lookup=None)
    gain = _rules(case, replace_policy(min_prompts_per_domain=2))["min_gain"]

    assert gain.figure is not None
    assert (INCONCLUSIVE, None, None) == (gain.verdict, gain.figure.low, gain.figure.high)


def test_no_rules_or_no_prompts_refuse() -> None:
    """Without rules or without prompts nothing is promoted."""
    assert REFUSE == judge([]).verdict
    assert REFUSE == _verdict(_case(candidate=[], baseline=[], prompt_lookup=[]))


def test_prompts_trained_on_are_dropped_from_every_profile() -> None:
    """From candidate, baseline and prompt-lookup alike, so that they stay paired."""
    case = without_prompts(_case(), {"chat-3", "code-0", "elsewhere"})

    for counts in (case.candidate, case.baseline, case.prompt_lookup):
        assert counts is not None
        assert 2 * PROMPTS - 2 == len(counts)
        assert not {"chat-3", "code-0"} & {item.id for item in counts}
    assert PROMOTE == _verdict(case)
    assert without_prompts(_case(prompt_lookup=None), {"chat-3"}).prompt_lookup is None


def test_a_domain_trained_on_entirely_is_refused_and_not_forgotten() -> None:
    """A domain without an unseen prompt keeps its rule, without a verdict."""
    rules = _rules(without_prompts(_case(), {f"chat-{n}" for n in range(PROMPTS)}))

    fewest = rules["min_prompts_per_domain"]
    assert (INCONCLUSIVE, Figure(0.0, None, None, 0)) == (fewest.verdict, fewest.figure)
    assert INCONCLUSIVE == rules["domain_margin:chat"].verdict
    assert PASS == rules["domain_margin:code"].verdict


def test_a_candidate_that_is_the_champion_is_neither() -> None:
    """No rule is applied; there is a verdict and a reason of its own."""
    found = already_champion()

    assert (ALREADY_CHAMPION, 1, []) == (found.verdict, len(found.reasons), found.rules)


def test_each_rule_at_a_load_refuses_alone() -> None:
    """A missing or unstable prediction refuses by every rule that uses it."""
    names = ["min_speedup", "max_latency_seconds:p95", "max_latency_seconds:p99"]
    missing, beyond = (_rules(_case(served=one), replace_policy(**AT_LOAD)) for one in (None, BEYOND))

    assert names == [name for name in missing if name in names]
    assert [INCONCLUSIVE] * 3 == [missing[name].verdict for name in names]
    assert [FAIL] * 3 == [beyond[name].verdict for name in names]


@pytest.mark.parametrize(
    ("stated", "threshold"),
    [({}, 1.0), ({"min_speedup": 1.2}, 1.2), ({"min_speedup": 0}, None), ({"profile": {}}, None)],
)
def test_a_draft_must_be_faster_at_a_load_with_costs(stated: dict[str, Any], threshold: float | None) -> None:
    """The lower bound of its speedup must exceed 1, unless the config says otherwise or the costs are not known."""
    given = {"load": {"requests_per_second": 2.0}, "profile": "costs.json"}
    rules = _rules(_case(served=_served(1.01, 2.0)), GateConfig(**given | stated))
    found = rules.get("min_speedup")

    assert threshold == (None if found is None else found.threshold)
    assert found is None or found.verdict != PASS  # the lower bound is below 1


def test_bounds_must_exceed_their_thresholds() -> None:
    """A bound equal to its threshold does not pass."""

    def served(low: float, high: float) -> LatencyAtLoad:
        around = Interval((low + high) / 2, low, high, 12)
        return LatencyAtLoad(1.0, around, {0.99: around})

    policy = replace_policy(min_speedup=2.0, max_latency_seconds={"p99": 2.0})
    above, below = (_rules(_case(served=one), policy) for one in (served(2.0, 3.0), served(1.0, 2.0)))
    speedup, p99 = above["min_speedup"], above["max_latency_seconds:p99"]

    assert (INCONCLUSIVE, FAIL) == (speedup.verdict, p99.verdict)
    assert (FAIL, INCONCLUSIVE) == (below["min_speedup"].verdict, below["max_latency_seconds:p99"].verdict)
    assert (Figure(2.5, 2.0, 3.0, 12), 2.0) == (p99.figure, p99.threshold)
    assert p99.text.startswith("predicted p99 latency at the stated load: 2.5 s")


EXAMINED = TargetSource("org/big", "abc", "d1", "bfloat16")


@pytest.mark.parametrize(
    ("served", "verdict"),
    [
        ({"revision": "abc", "dtype": "bfloat16"}, PASS),
        ({"revision": "d1"}, PASS),  # a local directory has no revision, so its digest counts
        ({"revision": "def"}, FAIL),
        ({"dtype": "float16"}, FAIL),
    ],
)
def test_the_examined_target_must_be_the_one_that_is_served(served: dict[str, str], verdict: str) -> None:
    """Another revision or number format gives other figures, so it refuses."""
    policy = GateConfig.model_validate({"served_target": served, "min_prompts_per_domain": 10})
    assert verdict == _rules(_case(target=EXAMINED), policy)["served_target"].verdict


@pytest.mark.parametrize(
    ("days", "verdict"), [(6.9, PASS), (7.0, PASS), (7.1, FAIL), (None, INCONCLUSIVE), (-0.05, PASS), (-1.0, FAIL)]
)
def test_old_completions_refuse(days: float | None, verdict: str) -> None:
    """Traffic changes; completions without a time, or of another day in the future, are not known to be recent. The clocks of two
    machines may differ by an hour or two."""
    policy = GateConfig(max_examination_days=7, min_prompts_per_domain=10)
    assert verdict == _rules(_case(examination_days=days), policy)["max_examination_days"].verdict


def test_rules_about_gains_state_their_power() -> None:
    """The gain and each domain. Here all prompts have the same calls, so the gain over lookup has no standard error."""
    rules = _rules(_case())
    stated = {name for name, rule in rules.items() if rule.power is not None}
    assert {"min_gain", "domain_margin:chat", "domain_margin:code"} == stated


def _in_segments(
    rates: dict[str, float], tokens: dict[str, int], seed: int = 1, prompts: int = PROMPTS
) -> list[PromptCounts]:
    """Prompts of one domain whose completions have these tokens in each segment, accepted at these rates."""
    own = np.random.default_rng(seed).uniform(-0.2, 0.2, (prompts, len(rates)))
    found = []
    for n in range(prompts):
        accepted = {name: rate * tokens[name] + own[n, k] for k, (name, rate) in enumerate(rates.items())}
        segments = {
            name: SegmentCounts(
                tokens=tokens[name],
                accepted=accepted[name],
                examined=float(tokens[name]),
                rounds=[10.0] * 5,
                emitted=[20.0] * 5,
                begins=1,
                begins_accepted=0.5,
            )
            for name in rates
        }
        whole = counted(f"code-{n}", sum(accepted.values()), tokens=sum(tokens.values()), calls=40)
        found.append(replace(whole, segments=segments))
    return found


_TOKENS = {"answer": 60, "tool_call": 30, "structured": 5}


def _segmented(tool_call: float, tokens: dict[str, int] = _TOKENS, prompts: int = PROMPTS, **changes: Any) -> Case:
    """A candidate that is twenty points better at answers. The base draft accepts 60% of every segment."""
    ours = {"answer": 0.8, "tool_call": tool_call, "structured": 0.0}
    return _case(
        candidate=_in_segments(ours, tokens, prompts=prompts),
        baseline=_in_segments(dict.fromkeys(ours, 0.6), tokens, seed=2, prompts=prompts),
        prompt_lookup=None,
        **changes,
    )


@pytest.mark.parametrize(("tool_call", "verdict"), [(0.62, PASS), (0.5, FAIL)])
def test_a_loss_in_a_segment_refuses_though_the_whole_gains(tool_call: float, verdict: str) -> None:
    rules = _rules(_segmented(tool_call))
    assert rules["min_gain"].verdict == PASS
    assert rules["segment_margin:answer"].verdict == PASS
    assert rules["segment_margin:tool_call"].verdict == verdict
    assert "in the segment 'tool_call' over the champion" in rules["segment_margin:tool_call"].text
    assert "segment_margin:structured" not in rules  # 5 of 95 tokens
    figure = rules["segment_margin:tool_call"].figure
    assert figure is not None
    assert figure.value == pytest.approx(tool_call - 0.6, abs=0.01)


def test_a_segment_with_a_tenth_of_the_tokens_has_a_rule() -> None:
    tokens = {"answer": 60, "tool_call": 30, "structured": 10}
    assert _rules(_segmented(0.7, tokens))["segment_margin:structured"].verdict == FAIL


def test_a_segment_of_few_prompts_is_inconclusive() -> None:
    case = _segmented(0.7)
    few = [
        item if n < 9 else replace(item, segments={"answer": item.segments["answer"]})
        for n, item in enumerate(case.candidate)
    ]
    rule = _rules(replace(case, candidate=CountTable.of(few)))["segment_margin:tool_call"]
    assert (rule.verdict, rule.figure) == (INCONCLUSIVE, None)
    assert "only 9 prompts" in rule.text


def test_rules_by_segment_can_be_turned_off_and_need_two_segments() -> None:
    off = _rules(_segmented(0.1), POLICY.model_copy(update={"segment_margin": None}))
    one = _rules(_segmented(0.7, {"answer": 95, "tool_call": 0, "structured": 0}))
    assert not any(name.startswith("segment_margin") for name in off)
    single = [replace(item, segments={"answer": item.segments["answer"]}) for item in _segmented(0.7).candidate]
    assert not any(name.startswith("segment_margin") for name in _rules(_case(candidate=single, baseline=single)))
    assert "segment_margin:tool_call" not in one


def test_each_part_of_the_traffic_has_its_own_margin() -> None:
    rows = [replace(item, accepted_by_output=[5.0]) for item in _segmented(0.7).candidate]
    margins = {"domain_margin": 0.01, "segment_margin": 0.03, "length_margin": 0.04}
    rules = _rules(_case(candidate=rows, baseline=rows), POLICY.model_copy(update=margins))
    found = {name.split(":")[0]: rule.threshold for name, rule in rules.items() if "margin" in name}
    assert found == {name: -margin for name, margin in margins.items()}


def _by_length(late: float, seed: int = 1, reach: int = PROMPTS) -> list[PromptCounts]:
    """40 tokens each, or 20 from prompt `reach` on: 14 of the first 16 accepted, the others at the rate `late`."""
    own = np.random.default_rng(seed).uniform(-0.2, 0.2, PROMPTS)
    rows = []
    for n in range(PROMPTS):
        bins = [14 + own[n], 16 * late + own[n], 8 * late + own[n]] if n < reach else [14 + own[n], 4 * late + own[n]]
        tokens = 40 if n < reach else 20
        rows.append(replace(counted(f"code-{n}", sum(bins), tokens=tokens, calls=15), accepted_by_output=bins))
    return rows


def test_a_loss_at_late_tokens_refuses_where_the_rule_is_on() -> None:
    policy = POLICY.model_copy(update={"length_margin": 0.02})
    case = _case(candidate=_by_length(0.5), baseline=_by_length(0.6, seed=2), prompt_lookup=None)
    rules = _rules(case, policy)
    assert {name: rule.verdict for name, rule in rules.items() if name.startswith("length_margin")} == {
        "length_margin:0-16": PASS,
        "length_margin:16-32": FAIL,
        "length_margin:32-64": FAIL,
    }
    for name in ("length_margin:16-32", "length_margin:32-64"):
        figure = rules[name].figure
        assert figure is not None
        assert figure.value == pytest.approx(-0.1, abs=0.02)
    assert not any(name.startswith("length_margin") for name in _rules(case))


def test_positions_that_few_prompts_reach_are_inconclusive() -> None:
    policy = POLICY.model_copy(update={"length_margin": 0.02})
    rows = {"candidate": _by_length(0.7, reach=5), "baseline": _by_length(0.6, seed=2, reach=5)}
    rules = _rules(_case(**rows, prompt_lookup=None), policy)
    assert rules["length_margin:16-32"].figure is not None
    assert rules["length_margin:32-64"].verdict == INCONCLUSIVE
    assert "only 5 prompts" in rules["length_margin:32-64"].text


def test_a_range_of_positions_is_judged_over_the_prompts_that_reach_it() -> None:
    policy = POLICY.model_copy(update={"length_margin": 0.02})
    rows = {"candidate": _by_length(0.7, reach=11), "baseline": _by_length(0.6, seed=2, reach=11)}
    figures = {name: rule.figure for name, rule in _rules(_case(**rows, prompt_lookup=None), policy).items()}
    found = [figures[f"length_margin:{part}"] for part in ("16-32", "32-64")]
    assert [figure and figure.prompts for figure in found] == [12, 11]


@pytest.mark.parametrize(
    ("trained", "examined", "verdict"),
    [
        ({"enable_thinking=true"}, {"enable_thinking=true", "enable_thinking=false"}, PASS),
        ({"enable_thinking=true", "enable_thinking=false"}, {"enable_thinking=false"}, INCONCLUSIVE),
        ({""}, {"enable_thinking=false"}, INCONCLUSIVE),
        ({""}, {""}, None),  # nobody speaks of modes
        (set(), {"enable_thinking=false"}, None),  # a base draft, or a champion of before
    ],
)
def test_a_champion_is_not_judged_by_another_mode_than_its_own(
    trained: set[str], examined: set[str], verdict: str | None
) -> None:
    case = replace(_case(prompt_lookup=None), champion_modes=frozenset(trained), examined_modes=frozenset(examined))
    found = _rules(case).get("champion_modes")
    assert verdict == (None if found is None else found.verdict)
    if verdict == INCONCLUSIVE:
        assert found is not None
        assert ("enable_thinking=true" if "enable_thinking=true" in trained else "the template's default") in found.text
    assert "champion_modes" not in _rules(case, POLICY.model_copy(update={"champion_modes": False}))


def test_small_domains_may_have_no_rule_of_their_own() -> None:
    """By their share of the examined prompts, also of those that are dropped; what is left is then enough prompts in all."""
    rows = {"chat": 0.7, "code": 0.8}
    candidate, baseline = _counts(rows, calls=40), _counts({"chat": 0.6, "code": 0.7}, seed=2)
    few = [item for item in candidate if item.domain == "chat"][:2]
    case = _case(
        candidate=[item for item in candidate if item.domain == "code"] + few,
        baseline=[item for item in baseline if item.domain == "code" or item.id in {one.id for one in few}],
        prompt_lookup=None,
    )
    assert _rules(case)["domain_margin:chat"].verdict == INCONCLUSIVE
    without = _rules(case, POLICY.model_copy(update={"min_domain_share": 0.2}))
    assert "domain_margin:chat" not in without
    assert PASS == without["min_prompts_per_domain"].verdict == without["domain_margin:code"].verdict
    dropped = replace(case, domains={"chat": 50, "code": 50})
    assert "domain_margin:chat" in _rules(dropped, POLICY.model_copy(update={"min_domain_share": 0.2}))
    alone = _rules(case, POLICY.model_copy(update={"min_domain_share": 1.0}))
    assert not any(name.startswith("domain_margin") for name in alone)
    assert PASS == alone["min_prompts_per_domain"].verdict
    assert "smallest domain" not in alone["min_prompts_per_domain"].text


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, PASS), (0.8, FAIL)])
def test_a_draft_of_another_kind_is_judged_by_its_speed(ratio: float, verdict: str) -> None:
    """1.75 tokens per round against 1.65, in rounds shorter by a third, or longer by a quarter; a higher acceptance rate of
    other tokens proves nothing, and parts of a completion are not compared."""
    times = RoundRatio(ratio, ratio, ratio, "measured on this machine")
    changes = {"candidate": _counts({"chat": 0.9, "code": 0.9}, calls=60), "round_ratio": times}
    rules = _rules(_case(**changes), POLICY.model_copy(update={"length_margin": 0.05}))

    assert not any(name.startswith(("min_gain", "domain_margin")) for name in rules)
    found = [rules[name] for name in ("min_speed_gain", "domain_speed_margin:chat", "domain_speed_margin:code")]
    assert [verdict] * 3 == [rule.verdict for rule in found]
    assert "over the champion, which is another kind of draft (rounds measured on this machine): " in found[0].text
    assert found[0].figure is not None
    assert ratio * 1.75 / 1.65 - 1 == pytest.approx(found[0].figure.value, abs=0.02)
    assert "lower bound must be above -1.00%" in found[1].text
    lengths = [rule for name, rule in rules.items() if name.startswith("length_margin")]
    assert all(rule.verdict == "inconclusive" and "another kind of draft" in rule.text for rule in lengths)


def test_what_could_be_proved_of_a_speed_is_in_per_cent() -> None:
    """Where the times are exact; measured ones have an error of their own."""
    of_times = (RoundRatio(1.5, 1.5, 1.5, "predicted"), RoundRatio(1.5, 1.4, 1.6, "measured"))
    same = [counted(f"chat-{n}", 60.0, domain="chat", calls=40.0 + n) for n in range(PROMPTS)]
    exact, measured = (
        _rules(_case(candidate=same, baseline=_counts({"chat": 0.6}, seed=2), prompt_lookup=None, round_ratio=ratio))
        for ratio in of_times
    )
    rule = exact["min_speed_gain"]
    assert rule.power is not None
    assert "% passes with 80% probability" in power_line(rule.name, rule.power)
    assert measured["min_speed_gain"].power is None
    assert "error of their own" in power_line("min_speed_gain", None)


def test_a_draft_of_another_kind_is_not_promoted_where_its_speed_is_not_known() -> None:
    case = _case(round_ratio="no step times; set something")
    assert {INCONCLUSIVE} == {rule.verdict for name, rule in _rules(case).items() if "speed" in name}
    assert REFUSE == _verdict(case)
    assert "no step times; set something" in _rules(case)["min_speed_gain"].text
