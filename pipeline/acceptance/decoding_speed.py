"""Tokens per second of plain decoding and of decoding with a draft, as a decision has them. Imports nothing heavy."""

from pipeline.store.parsing import Count, Number, Text, stored


@stored(kw_only=False)
class Measured:
    """The median over turns, with its confidence bounds, which are None where there are too few turns."""

    median: Number
    low: Number | None
    high: Number | None


@stored
class DraftSpeed:
    """Decoding with one draft. `speedup`: tokens per second / those of plain decoding in the same turn."""

    gamma: Count  # draft tokens per round: the best examined length
    tokens_per_second: Measured
    speedup: Measured | None  # None where it is not measurable
    not_measurable: Text | None = None  # why there is no speedup, in one line for people


@stored(schema=1)
class DecodingSpeed:
    """One request at a time, in interleaved turns: plain, with the baseline, with the candidate. `plain` and the conditions are
    of the turns with the candidate; a baseline of another shape was timed in turns of its own."""

    device: Text
    prompts: Count
    tokens: Count  # steps of plain decoding in a turn
    turns: Count
    confidence: Number
    plain: Measured  # tokens per second
    baseline: DraftSpeed | None  # None where the candidate is the baseline itself
    candidate: DraftSpeed
