"""From the results of the rules to the verdict. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.acceptance.count_table import CountTable
from pipeline.judgement.policy import Case
from pipeline.judgement.rule_result import PASS, RuleResult
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE, REFUSE, Verdict


@dataclass(frozen=True)
class Judgement:
    """The verdict, the text of each rule that did not pass, and the results of all rules."""

    verdict: Verdict
    reasons: list[str]
    rules: list[RuleResult]


def judge(rules: Sequence[RuleResult]) -> Judgement:
    """Promote if every rule passes; else refuse. No rule refuses too."""
    failed = [rule for rule in rules if rule.verdict != PASS]
    reasons = [f"{rule.name} ({rule.verdict}): {rule.text}" for rule in failed]
    return Judgement(REFUSE if failed or not rules else PROMOTE, reasons, list(rules))


def already_champion() -> Judgement:
    """The decision where the candidate is the champion."""
    reason = "training gave the draft that is already the champion; what is served does not change"
    return Judgement(ALREADY_CHAMPION, [reason], [])


def unseen(counts: CountTable, seen: Collection[str]) -> CountTable:
    """The prompts that are in no training set: neither the candidate's nor the champion's."""
    return counts.select(np.array([name not in seen for name in counts.ids], dtype=bool))


def without_prompts(case: Case, seen: Collection[str]) -> Case:
    """The same case over the prompts that are in no training set."""
    lookup = None if case.prompt_lookup is None else unseen(case.prompt_lookup, seen)
    # A domain that loses all its prompts keeps its rule, which is then inconclusive: the domain must not disappear.
    domains = case.domains or Counter(case.candidate.domains)
    return replace(
        case,
        candidate=unseen(case.candidate, seen),
        baseline=unseen(case.baseline, seen),
        prompt_lookup=lookup,
        domains=domains,
    )
