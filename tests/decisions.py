"""A decision as the gate makes it, from counts of made-up prompts."""

from typing import Any

from pipeline.config.gate import GateConfig
from pipeline.judgement.benefit import benefit_of_forward_times
from pipeline.judgement.comparison import compare_drafts
from pipeline.judgement.decision import decide
from pipeline.judgement.policy import Case, apply_rules
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP
from tests.fakes import counted
from tests.profiles import TIMES

FACTS = {"kind": "model", "digest": "d2", "bytes": 2_500_000, "parameters": 640_000}
CONDITIONS = {
    "sampling": {"temperature": 1.0},
    "draft_sampling": "probabilistic",
    "convention": "user",
    "confidence": 0.95,
}
PROVENANCE = {
    "target": {"source": "org/big", "revision": None, "digest": "d1", "dtype": "float32"},
    "base_draft": {"source": "org/small", "revision": None, "digest": "d0"},
    "completions": "generate0",
    "corpus": "corpus0",
    "sampling": {"temperature": 1.0},
    "seed": 0,
    "environment": {"python": "3.11"},
}
TRAINING = [
    {"step": 0, "dev_acceptance_rate": 0.5, "dev_tokens_per_target_call": 1.9},
    {"step": 4, "loss": 0.7},
    {"step": 8, "dev_acceptance_rate": 0.6, "dev_tokens_per_target_call": 2.2},
]


def make_decision(gain: float = 10.0, domain: str = "code", prompts: int = 50, **changes: Any) -> dict[str, Any]:
    """A candidate that accepts `gain` more of the 100 tokens of each prompt than the base draft; passed if that is positive."""
    baseline = [counted(f"p{number:02}", 50.0 + number % 5, domain=domain, gammas=12) for number in range(prompts)]
    candidate = [
        counted(item.id, item.accepted + gain + number % 3, domain=domain, calls=40.0, gammas=12)
        for number, item in enumerate(baseline)
    ]
    lookup = [counted(item.id, 10.0, domain=domain, calls=95.0, gammas=12) for item in baseline]
    case = Case(
        candidate=candidate,
        baseline=baseline,
        baseline_name="base draft",
        prompt_lookup=lookup,
        draft_bytes=2_500_000,
        crosscheck_agrees=True,
    )
    compared = compare_drafts(
        {CANDIDATE: candidate, BASELINE: baseline, LOOKUP: lookup},
        {side: {**FACTS, "greedy": {}, "conditions": CONDITIONS} for side in (CANDIDATE, BASELINE, LOOKUP)},
        5,
        0.95,
    )
    conditions = {
        "candidate": "d2",
        "variant": "unquantized",
        "variants": [],
        "baseline": "base",
        "champion": {},
        "gamma": 5,
        "confidence": 0.95,
        "dropped_prompts": 0,
        **compared,
        "benefit": benefit_of_forward_times({CANDIDATE: TIMES, BASELINE: TIMES}, compared["drafts"], 5),
        "training": TRAINING,
        "provenance": PROVENANCE,
    }
    return {**decide(apply_rules(case, GateConfig(), 5, 0.95), conditions), **changes}


def make_example_set(*tokens: str, domain: str = "code", count: int = 1) -> dict[str, Any]:
    """`examples.json` with equal examples of these tokens: accepted by the candidate, corrected by the baseline."""
    sides = {CANDIDATE: "a" * len(tokens), BASELINE: "c" * len(tokens)}
    example = {
        "id": "p00",
        "domain": domain,
        "prompt": "The prompt",
        "length": len(tokens),
        "tokens": list(tokens),
        **{side: {"acceptance_rate": 0.5, "outcomes": letters} for side, letters in sides.items()},
    }
    return {"schema": 1, "gamma": 5, "examples": [example] * count}
