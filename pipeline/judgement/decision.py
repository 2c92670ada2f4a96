"""From the results of the rules to the verdict and the content of `decision.json`. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.acceptance.profile import PromptCounts
from pipeline.judgement.policy import Case, Rule
from pipeline.judgement.schema import ALREADY_CHAMPION, PASS, PROMOTE, REFUSE, SCHEMA


def decide(rules: Sequence[Rule], conditions: dict[str, Any]) -> dict[str, Any]:
    """`decision.json`: promote if every rule passes; else refuse, with the text of each rule that did not pass."""
    failed = [rule for rule in rules if rule.verdict != PASS]
    return {
        "schema": SCHEMA,
        "verdict": REFUSE if failed or not rules else PROMOTE,
        "reasons": [f"{rule.name} ({rule.verdict}): {rule.text}" for rule in failed],
        "rules": [asdict(rule) for rule in rules],
        **conditions,
    }


def already_champion(conditions: dict[str, Any]) -> dict[str, Any]:
    """`decision.json` where the candidate is the champion."""
    return {
        "schema": SCHEMA,
        "verdict": ALREADY_CHAMPION,
        "reasons": ["training gave the draft that is already the champion; what is served does not change"],
        "rules": [],
        **conditions,
    }


def without_prompts(case: Case, seen: Collection[str]) -> Case:
    """The same case over the prompts that are in no training set: neither the candidate's nor the champion's."""

    def unseen(counts: Sequence[PromptCounts]) -> list[PromptCounts]:
        return [item for item in counts if item.id not in seen]

    lookup = None if case.prompt_lookup is None else unseen(case.prompt_lookup)
    # A domain that loses all its prompts keeps its rule, which is then inconclusive: the domain must not disappear.
    domains = case.domains | {item.domain for item in case.candidate}
    return replace(
        case, candidate=unseen(case.candidate), baseline=unseen(case.baseline), prompt_lookup=lookup, domains=domains
    )
