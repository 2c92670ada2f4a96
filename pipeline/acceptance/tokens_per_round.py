"""Tokens that a round of a draft gives, with their intervals over prompts, and the speed that follows from them. numpy."""

import numpy as np

from pipeline.acceptance.count_table import BLOCK, CountTable
from pipeline.acceptance.decoding_speed import DraftSpeed
from pipeline.acceptance.profile import shared_conversations
from pipeline.acceptance.ratio_sums import RatioSums
from pipeline.acceptance.schema import Figure
from pipeline.acceptance.step_times import StepTimes, draft_speed


def tokens_per_round(counts: CountTable, confidence: float) -> dict[int, Figure]:
    """1 + accepted / rounds at each draft length, as vLLM logs it: the tokens per target call of `convention: vllm`, whatever the
    convention of the run counts beside. Intervals are by conversation, stratified by domain; none where no prompt has a round."""
    ratios = RatioSums(counts.gammas, shared_conversations(counts.conversations))
    for begin in range(0, len(counts), BLOCK):
        part = slice(begin, begin + BLOCK)
        rounds_NG, accepted_NG = (counts.columns[name][part] for name in ("rounds", "accepted_drafts"))
        ratios.add(
            np.asarray(rounds_NG + accepted_NG, dtype=np.float64),
            np.asarray(rounds_NG, dtype=np.float64),
            counts.domains[part],
            rounds_NG > 0,
            counts.conversations[part],
        )
    return {
        number + 1: ratios.interval(number, confidence).figure if ratios.prompts(number) else Figure(1.0, None, None, 0)
        for number in range(counts.gammas)
    }


def examined_speed(times: StepTimes, counts: CountTable, confidence: float) -> DraftSpeed:
    """Decoding with the draft that has these counts, of the shape that was timed."""
    return draft_speed(times, tokens_per_round(counts, confidence), int(counts.columns["tokens"].sum()), confidence)
