"""Forward times of a pair: the page's speedup is computed from them where no load is given."""

from typing import Any

from pipeline.acceptance.schema import MeasuredTimes
from pipeline.latency.costs.forward_times import measure_times
from pipeline.models.loading import hardware_class
from pipeline.models.stored_pair import Pair

_TIMED_CONTEXT, _TIMED_REPEATS = 128, 5


def pass_times(target: Any, draft: Any, pair: Pair, gamma: int) -> MeasuredTimes:
    """Seconds of a forward pass on this machine at batch 1: of the target by number of tokens (1 and gamma + 1), and of the draft
    over one token."""
    context = max(1, min(_TIMED_CONTEXT, pair.context - gamma - 1))
    times = measure_times(target, draft, pair.vocabulary, [gamma + 1], context=context, repeats=_TIMED_REPEATS)
    return MeasuredTimes(hardware_class(target.device), context, dict(times.target), times.draft)
