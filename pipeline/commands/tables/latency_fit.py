"""What `understudy latency fit` prints: step costs with confidence intervals, and the errors of the fit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.commands.tables.console import Report
from pipeline.latency.costs.fit_measurements import Misfit
from pipeline.latency.costs.fitted import FittedCosts

_LARGE_ERROR = 0.25  # of a step, from which its row is named
_SLICED = "without them the costs predict left-out points no better, as with chunked prefill"
COLUMNS = ("cost", "ms", "95% interval", "unit")
_MEANING = {
    "verify": "per step",
    "draft": "per draft token",
    "verify_each": "per request",
    "draft_each": "per request and draft token",
    "experts": "per step with all experts active",
    "prefill": "per prefill",
}


def print_costs(
    fitted: FittedCosts, measurements: int, path: Path | None, notes: Sequence[str] = (), worst: Misfit | None = None
) -> None:
    """Print the costs to stdout. `notes`: how the files were read; `worst`: the measurement that the costs describe worst."""
    out, unknown = Report(), _unknown(fitted)
    out.table(COLUMNS, _rows(fitted, unknown), left=("cost", "unit"))
    for line in (
        *notes,
        f"{measurements} measurements; linear fit: MAPE {fitted.costs.mape:.1%}, R2 {fitted.costs.r2:.4f}",
        *_errors(fitted, worst),
        *_ranges(fitted),
        *_confounded(fitted, unknown),
        _prefill(fitted),
    ):
        out.text(line)
    if path is not None:
        out.line(f"written to {path}")


def _unknown(fitted: FittedCosts) -> set[str]:
    """Names of the coefficients that the measurements do not determine."""
    unknown = set() if fitted.max_gamma and fitted.acceptance_known else {"draft", "draft_each"}
    return unknown | ({"verify_each", "draft_each"} if fitted.load else set())


def _rows(fitted: FittedCosts, unknown: set[str]) -> list[list[str]]:
    rows = []
    for name, cost in fitted.costs.coefficients.items():
        if name not in unknown:
            bounds = "unknown" if cost.high == float("inf") else f"{1e3 * cost.low:.3g} to {1e3 * cost.high:.3g}"
            rows.append([name, f"{1e3 * cost.value:.4g}", bounds, _MEANING[name]])
    return rows


def _errors(fitted: FittedCosts, worst: Misfit | None) -> Iterator[str]:
    """The model that is used, with its error, the error at the edge, and the measurement with the largest error."""
    yield f"model used: {_model(fitted)}"
    if fitted.edge:
        yield (
            f"at the edge: {fitted.edge.lighter:.1%} off one load lighter, {fitted.edge.heavier:.1%} off one load heavier, "
            "by the outermost loads when they are left out"
        )
    if worst is not None and abs(worst.error) > _LARGE_ERROR:
        yield f"check {worst.where}: its step is {worst.error:+.0%} off the fitted costs"


def _model(fitted: FittedCosts) -> str:
    error = fitted.leave_one_out
    if fitted.load:
        return "what was measured, since it is one load"
    if error is None:
        return "linear; its error on left-out points is unknown, because there are fewer than 6 different points"
    if fitted.piecewise is None:
        return f"linear, {error.linear:.1%} off on left-out points; a piecewise fit predicts them no better"
    terms = fitted.piecewise.terms
    has = {"powers": terms.powers, "tiles": terms.tiles, "drops": terms.drops, "a rise": terms.rises}
    extra = " and ".join(name for name, is_there in has.items() if is_there)
    return (
        f"piecewise{extra and f' with {extra}'}, {error.chosen:.1%} off on left-out points (linear, whose costs are in the "
        f"table: {error.linear:.1%})"
    )


def _ranges(fitted: FittedCosts) -> Iterator[str]:
    """Which loads and draft lengths were measured, and what cannot be predicted without the others."""
    if not fitted.plain:
        yield "No measurement without a draft: there is no baseline for a speedup; add draft length 0"
    outside = "predictions outside are extrapolated"
    if fitted.load:
        outside = "nothing is known of other loads: `schedule` gives the best of these lengths"
    yield f"measured: {_measured(fitted)}; {outside}"
    if fitted.batch_share:
        low, high = min(fitted.batch_share.values()), max(fitted.batch_share.values())
        yield (
            f"On average {low:.0%} to {high:.0%} of the concurrency is in the batch: a new request waits for the running step, "
            "and a test begins and ends with an empty batch; `predict` and `schedule` count that"
        )
    if not fitted.max_gamma:
        yield "No measurement with a draft: these costs predict plain decoding only"


def _measured(fitted: FittedCosts) -> str:
    """Draft lengths and numbers of requests."""
    by_range: dict[tuple[int, int], list[str]] = {}
    for gamma, ends in fitted.measured_requests.items():
        by_range.setdefault(ends, []).append(str(gamma))
    return "; ".join(
        f"{low} {f'to {high} ' if high > low else ''}requests, draft lengths {', '.join(gammas)}"
        for (low, high), gammas in by_range.items()
    )


def _confounded(fitted: FittedCosts, unknown: set[str]) -> Iterator[str]:
    if confounded := [name for name in fitted.costs.confounded if name not in unknown]:
        yield (
            f"These measurements cannot separate {', '.join(confounded)}. Add other loads or draft lengths; predictions at the "
            "measured ones are valid"
        )


def _prefill(fitted: FittedCosts) -> str:
    """What is known of the time of a prefill, or what is missing to fit it."""
    if fitted.prefill:
        shared = ", and the first token comes with a step of the batch (chunked prefill)" if fitted.first_steps else ""
        return f"Each prefill delays the batch by {1e3 * fitted.prefill:.3g} ms{shared}"
    if fitted.first_token:
        reason = "output lengths are unknown (column `tokens`)" if fitted.output_tokens is None else _SLICED
        return (
            f"TTFT of one request is {1e3 * fitted.first_token:.3g} ms; prefills are part of the step times: {reason}"
        )
    if fitted.output_tokens is None:
        return (
            "Prefill time is unknown, so predictions leave out TTFT. To fit it, add output lengths (column `tokens`) and a row "
            "with one request and its TTFT (column `ttft`)"
        )
    return (
        "Prefill time is unknown, so predictions leave out TTFT: there is no row with one request and its TTFT (column "
        "`ttft`), and the measurements do not separate prefills from the cost per request. Step times contain the prefills"
    )
