"""A decision as the gate makes it, from counts of made-up prompts."""

from dataclasses import replace
from typing import Any

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.decoding_speed import DecodingSpeed, DraftSpeed, Measured
from pipeline.acceptance.schema import Figure, SamplingSettings
from pipeline.commands.tables.summary import Summary
from pipeline.config.gate import GateConfig
from pipeline.judgement.comparison import draft_figures, paired_gains
from pipeline.judgement.decision import judge
from pipeline.judgement.policy import Case, apply_rules
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    LOOKUP,
    Decision,
    ModelSource,
    NewVocabulary,
    Provenance,
    RowsFigures,
    TargetSource,
    TrainingStep,
)
from tests.fakes import counted
from tests.profiles import make_profile

PROVENANCE = Provenance(
    target=TargetSource("org/big", None, "d1", "float32"),
    base_draft=ModelSource("org/small", None, "d0"),
    completions="generate0",
    completions_made_at="2026-11-20T00:00:00Z",
    corpus="corpus0",
    sampling=SamplingSettings(1.0, 0, 1.0, 0.0),
    seed=0,
    environment={"python": "3.11"},
)
# As `training.json` has it.
TRAINING: list[dict[str, Any]] = [
    {"step": 5, "trial_learning_rate": 3e-3, "dev_acceptance_rate": 0.91, "dev_tokens_per_target_call": 1.95},
    {"step": 5, "trial_learning_rate": 0.05},
    {"step": 0, "learning_rate": 6e-3},
    {
        "step": 0,
        "dev_acceptance_rate": 0.5,
        "dev_acceptance_rate_by_segment": {"answer": 0.4, "tool_call": 0.7},
        "dev_tokens_per_target_call": 1.9,
    },
    {"step": 4, "loss": 0.7, "loss_by_segment": {"answer": 0.8, "tool_call": 0.4}},
    {
        "step": 8,
        "dev_acceptance_rate": 0.6,
        "dev_acceptance_rate_by_segment": {"answer": 0.55, "tool_call": 0.75},
        "dev_tokens_per_target_call": 2.2,
    },
]

NEW_VOCABULARY = NewVocabulary(
    rows={
        "copied": RowsFigures(tokens=863, share=0.91, acceptance_before=0.42, acceptance_after=0.81),
        "mapped": RowsFigures(tokens=160, share=0.09, acceptance_before=0.21, acceptance_after=0.74),
    },
    roles={
        "<|end|>": {"answer": RowsFigures(tokens=1, share=0.001, acceptance_before=None, acceptance_after=None)},
    },
    unwritten=0.004,
    lost=["capital letters"],
    no_map="",
    map_error=0.68,
    output_map_error=0.7,
    base=Figure(0.376, 0.36, 0.39, 60),
)


def make_decision(gain: float = 10.0, domain: str = "code", prompts: int = 50, **changes: Any) -> Decision:
    """A candidate that accepts `gain` more of the 100 tokens of each prompt than the base draft; passed if that is positive."""
    baseline = [counted(f"p{number:02}", 50.0 + number % 5, domain=domain, gammas=12) for number in range(prompts)]
    candidate = [
        counted(item.id, item.accepted + gain + number % 3, domain=domain, calls=40.0, gammas=12)
        for number, item in enumerate(baseline)
    ]
    lookup = [counted(item.id, 10.0, domain=domain, calls=95.0, gammas=12) for item in baseline]
    case = Case(
        candidate=CountTable.of(candidate),
        baseline=CountTable.of(baseline),
        baseline_name="base draft",
        prompt_lookup=CountTable.of(lookup),
        draft_bytes=2_500_000,
        crosscheck_agrees=True,
    )
    drafts = {
        side: draft_figures(make_profile(counts), counts, 5, 0.95)
        for side, counts in ((CANDIDATE, candidate), (BASELINE, baseline), (LOOKUP, lookup))
    }
    judgement = judge(apply_rules(case, GateConfig(), 5, 0.95))
    decision = Decision(
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        warnings=[],
        rules=judgement.rules,
        candidate="d2",
        variant="unquantized",
        variants=[],
        baseline="base",
        champion=None,
        gamma=5,
        confidence=0.95,
        dropped_prompts=0,
        speed=None,
        drafts=drafts,
        gains=paired_gains(candidate, baseline, 0.95),
        benefit=None,
        training=[TrainingStep(**entry) for entry in TRAINING],
        provenance=PROVENANCE,
    )
    return replace(decision, **changes)


def make_speed(speedup: Measured | None) -> DecodingSpeed:
    """The candidate's `speedup` over plain decoding. That of the base draft is not measurable."""
    return DecodingSpeed(
        device="cpu",
        prompts=8,
        tokens=512,
        turns=9,
        confidence=0.95,
        plain=Measured(5000.0, 4900.0, 5100.0),
        baseline=DraftSpeed(
            gamma=1, tokens_per_second=Measured(4500.0, None, None), speedup=None, not_measurable="turns differ"
        ),
        candidate=DraftSpeed(gamma=2, tokens_per_second=Measured(4350.0, 4250.0, 4500.0), speedup=speedup),
    )


def make_summary(**changes: Any) -> Summary:
    """The summary of a finished run."""
    found: dict[str, Any] = {
        "run": "r",
        "state": "finished",
        "stages": [],
        "gamma": 5,
        "temperature": 1.0,
        "confidence": 0.95,
        "drafts": [],
        "perplexity": {},
        "decision": None,
        "promotion": None,
        "mlflow": None,
        "learning_curve": None,
        "directories": {},
        "examination": None,
        "failure": "",
    }
    return Summary(**found | changes)


def make_example_set(*tokens: str, domain: str = "code", count: int = 1) -> dict[str, Any]:
    """`examples.json` with equal examples of these tokens: accepted by the candidate, corrected by the baseline."""
    sides = {CANDIDATE: "a" * len(tokens), BASELINE: "c" * len(tokens)}
    example = {
        "id": "p00",
        "domain": domain,
        "title": "The prompt",
        "prompt": [["<|user|>", True], ["The prompt", False]],
        "length": len(tokens),
        "tokens": list(tokens),
        **{side: {"acceptance_rate": 0.5, "outcomes": letters} for side, letters in sides.items()},
    }
    return {"schema": 2, "gamma": 5, "examples": [example] * count}
