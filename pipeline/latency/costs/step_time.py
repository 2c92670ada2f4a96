"""How long a step took, by the times of one row of measurements. Pure."""

from pipeline.latency.costs.columns import is_median
from pipeline.latency.costs.in_batch import mean_step
from pipeline.latency.costs.row import AGREES, MeasuredRow, ratio, token_seconds


def step_seconds(row: MeasuredRow, length: float, share: float) -> tuple[float, list[str]]:
    """Seconds of a step with `length` tokens for each request; `share`: the `decoding_share` of the table. The mean
    time between two chunks of a stream is a step where an engine sends each step's tokens together, as vLLM does; some tables
    have the time per token under the same name."""
    values, notes = row.values, list[str]()
    if "step" in values:
        other = values.get("tpot", values["step"] / length) * length
        if ratio(values["step"], other) <= AGREES:
            return values["step"], []
        notes.append(
            f"{row.columns.get('step', 'step')} is not the time per token times tokens per step, so it was not used"
        )
    itl = values.get("itl")
    if itl is not None and not values.keys() & {"tpot", "latency", "throughput"}:
        return itl, [*notes, "the time between chunks was used as the time of a step, which it is in vLLM"]
    step = token_seconds(row) * length
    if itl is not None and ratio(itl, step) <= min(AGREES, ratio(itl, step / length)):
        return itl, notes
    if itl is not None and ratio(itl, step / length) > AGREES:
        notes.append(f"{row.columns.get('itl', 'itl')} is neither a step nor the time per token, so it was not used")
    if is_median(row.columns.get("tpot", "")):
        step, of_median = mean_step(row, step, length, share)
        notes += of_median
    return step, notes
