"""A head that gives up a part of the traffic wins by every figure but that of its segment, and the gate refuses it for that."""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from pipeline.acceptance.count_table import CountTable
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.gate import GateConfig
from pipeline.examination.examiner import Examiner
from pipeline.judgement.decision import judge
from pipeline.judgement.policy import Case, apply_rules
from pipeline.judgement.schema import REFUSE
from pipeline.speculation.settings import Sampling
from tests.fakes import stored_completion, tiny_llama
from tests.heads import eagle3_draft

VOCABULARY, PROMPTS, GAMMA = 32, 48, 3


def test_a_head_without_the_tokens_of_tool_calls_is_refused_by_that_segment_alone() -> None:
    """Of one head's weights the candidate has half of the vocabulary, as published heads have the frequent tokens: q of these is
    higher for it. The tokens of tool calls are of the other half."""
    target = tiny_llama(VOCABULARY, layers=4, dtype=torch.float32)
    whole, part = eagle3_draft(target), eagle3_draft(target, kept=VOCABULARY // 2)
    assert part.model.targets_D is not None
    kept = part.model.targets_D.numpy()
    others, source, items = np.setdiff1d(np.arange(VOCABULARY), kept), np.random.default_rng(1), list[Any]()
    for number in range(PROMPTS):
        tokens = [*source.choice(kept, 32), *source.choice(others, 8)]
        item = stored_completion(
            source.integers(0, VOCABULARY, 4),
            tokens,
            name=f"p{number}",
            log_p=np.full(40, np.log(0.08)),
            vocabulary=VOCABULARY,
        )
        labels = np.array([0] * 32 + [1] * 8, dtype=np.uint8)
        items.append(replace(item, segments=labels, segment_names=("answer", "tool_call")))
    examiner = Examiner(Sampling(), EvaluateConfig(gamma=GAMMA, max_gamma=GAMMA))
    counts = [CountTable.of(chain.from_iterable(examiner.counts(draft, items))) for draft in (part, whole)]
    case = Case(
        candidate=counts[0],
        baseline=counts[1],
        baseline_name="champion",
        prompt_lookup=None,
        draft_bytes=1e6,
        crosscheck_agrees=True,
    )
    policy = GateConfig(min_prompts_per_domain=10, beats_prompt_lookup=False, length_margin=None, min_speedup=0)
    rules = apply_rules(case, policy, GAMMA, 0.95)

    assert ["segment_margin:tool_call"] == [rule.name for rule in rules if rule.verdict != "pass"]
    assert {"min_gain", "domain_margin:code", "segment_margin:answer"} <= {rule.name for rule in rules}
    assert REFUSE == judge(rules).verdict
