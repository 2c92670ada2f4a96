"""What `understudy latency fit` prints: step costs with confidence intervals, and the errors of the fit."""

from collections.abc import Sequence
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


def _model(found: FittedCosts) -> str:
    terms = found.piecewise.terms if found.piecewise else None
    extra = [
        name
        for name, one in (
            ("powers", terms and terms.powers),
            ("tiles", terms and terms.tiles),
            ("drops", terms and terms.drops),
            ("a rise", terms and terms.rises),
        )
        if one
    ]
    return "piecewise" + (f" with {' and '.join(extra)}" if extra else "")


def _measured(found: FittedCosts) -> str:
    """Draft lengths and numbers of requests."""
    by_range: dict[tuple[int, int], list[str]] = {}
    for gamma, ends in found.measured_requests.items():
        by_range.setdefault(ends, []).append(str(gamma))
    return "; ".join(
        f"{low} {f'to {high} ' if high > low else ''}requests, draft lengths {', '.join(gammas)}"
        for (low, high), gammas in by_range.items()
    )


def print_costs(
    found: FittedCosts, measurements: int, path: Path | None, notes: Sequence[str] = (), worst: Misfit | None = None
) -> None:
    """To stdout. `notes`: how the files were read; `worst`: the measurement that the costs describe worst."""
    out = Report()
    costs = found.costs
    rows = []
    unknown = (
        set() if found.max_gamma and found.acceptance_known else {"draft", "draft_each"}
    )  # or plain decoding alone
    unknown |= {"verify_each", "draft_each"} if found.load else set()
    for name, one in costs.coefficients.items():
        if name in unknown:
            continue
        bounds = "unknown" if one.high == float("inf") else f"{1e3 * one.low:.3g} to {1e3 * one.high:.3g}"
        rows.append([name, f"{1e3 * one.value:.4g}", bounds, _MEANING[name]])
    out.table(COLUMNS, rows, left=("cost", "unit"))
    for note in notes:
        out.text(note)
    out.text(f"{measurements} measurements; linear fit: MAPE {costs.mape:.1%}, R2 {costs.r2:.4f}")
    error = found.leave_one_out
    if found.load:
        out.text("model used: what was measured, since it is one load")
    elif error is None:
        out.text(
            "model used: linear; its error on left-out points is unknown, because there are fewer than 6 different points"
        )
    elif found.piecewise:
        out.text(
            f"model used: {_model(found)}, {error.chosen:.1%} off on left-out points (linear, whose costs are in the table: "
            f"{error.linear:.1%})"
        )
    else:
        out.text(
            f"model used: linear, {error.linear:.1%} off on left-out points; a piecewise fit predicts them no better"
        )
    if found.edge:
        out.text(
            f"at the edge: {found.edge.lighter:.1%} off one load lighter, {found.edge.heavier:.1%} off one load heavier, "
            "by the outermost loads when they are left out"
        )
    if worst is not None and abs(worst.error) > _LARGE_ERROR:
        out.text(f"check {worst.where}: its step is {worst.error:+.0%} off the fitted costs")
    if not found.plain:
        out.text("No measurement without a draft: there is no baseline for a speedup; add draft length 0")
    outside = "predictions outside are extrapolated"
    if found.load:
        outside = "nothing is known of other loads: `schedule` gives the best of these lengths"
    out.text(f"measured: {_measured(found)}; {outside}")
    if found.batch_share:
        low, high = min(found.batch_share.values()), max(found.batch_share.values())
        out.text(
            f"On average {low:.0%} to {high:.0%} of the concurrency is in the batch: a new request waits for the running step, "
            "and a test begins and ends with an empty batch; `predict` and `schedule` count that"
        )
    if not found.max_gamma:
        out.text("No measurement with a draft: these costs predict plain decoding only")
    if confounded := [name for name in costs.confounded if name not in unknown]:
        out.text(
            f"These measurements cannot separate {', '.join(confounded)}. Add other loads or draft lengths; predictions at the "
            "measured ones are valid"
        )
    if found.prefill:
        shared = ", and the first token comes with a step of the batch (chunked prefill)" if found.first_steps else ""
        out.text(f"Each prefill delays the batch by {1e3 * found.prefill:.3g} ms{shared}")
    elif found.first_token:
        reason = "output lengths are unknown (column `tokens`)" if found.output_tokens is None else _SLICED
        out.text(
            f"TTFT of one request is {1e3 * found.first_token:.3g} ms; prefills are part of the step times: {reason}"
        )
    elif found.output_tokens is None:
        out.text(
            "Prefill time is unknown, so predictions leave out TTFT. To fit it, add output lengths (column `tokens`) and a row "
            "with one request and its TTFT (column `ttft`)"
        )
    else:
        out.text(
            "Prefill time is unknown, so predictions leave out TTFT: there is no row with one request and its TTFT (column "
            "`ttft`), and the measurements do not separate prefills from the cost per request. Step times contain the prefills"
        )
    if path is not None:
        out.line(f"written to {path}")
