"""What `understudy plan` prints, and a learning curve in one line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.distillation.learning_curve import LearningCurve
from pipeline.report.console import Report

if TYPE_CHECKING:  # `show` imports this module and should not wait for the code that reads prompts
    from pipeline.planning.forecast import Forecast
    from pipeline.planning.trial_runs import Cost, Measured

COLUMNS = ("job", "time", "disk", "memory", "GPU memory")


def print_forecast(found: "Forecast", curve: LearningCurve | None, notes: Sequence[str]) -> None:
    """To stdout, with `notes` on what the pair leaves out. The figures are upper bounds, except that the sizes of the splits are
    expectations."""
    out = Report()
    for source in found.sources:
        out.text(source)
    splits = ", ".join(f"{count:,} {split}" for split, count in found.prompts.items())
    out.text(f"corpus: {found.rows:,} rows: about {splits} prompts, before rejected rows and duplicates are removed")
    for asked in found.generate:
        out.text(
            f"{asked.job}: up to {asked.completions:,} completions, {asked.tokens:,} target tokens, "
            f"{asked.stored_bytes / 1e6:,.1f} MB on disk ({found.bytes_per_token} bytes per token)"
        )
    out.text(
        f"target tokens: {found.new_tokens:,} for each completion (generate.max_new_tokens), and {found.lookahead:,} more for "
        "those of examination prompts (generate.lookahead), because some engines draft past the end"
    )
    out.text(
        "completions: one for each train or dev prompt; for each examination prompt one sampled as in `sampling` and one greedy "
        "(more with generate.train_temperatures and generate.examination_samplings)"
    )
    if found.endpoints:
        out.text(
            f"generation runs on {found.endpoints} {_endpoints(found.endpoints)}, which also prefill the prompts, and "
            "score the completions (a second prefill) if `sampling` is neither greedy nor plain temperature 1"
        )
    if found.recorded_answers:
        out.text("recorded answers are among these completions; the endpoints score them and generate only the others")
    if found.first_turns_only:
        out.text(
            "chats with `every_turn` are counted by their first question; those with more questions need more tokens"
        )
    out.text(f"distill: {_training(found)}")
    for note in notes:
        out.text(note)
    if curve is not None:
        out.text(curve_text(curve))


def _training(found: "Forecast") -> str:
    batch = found.training_rows // found.training_steps
    return f"{found.training_steps:,} steps x batch {batch} = {found.training_rows:,} sequences"


def _endpoints(count: int) -> str:
    return "endpoint" if count == 1 else "endpoints"


def print_measured(found: "Measured", endpoints: int) -> None:
    """To stdout: the costs of the whole run, estimated from two small runs. `endpoints`: servers that generate, or 0."""
    out, gpu = Report(), bool(found.total.gpu_bytes)
    costs = {**found.jobs, "all jobs": found.total}
    out.table(
        COLUMNS if gpu else COLUMNS[:-1], [[name, *_cells(cost, gpu)] for name, cost in costs.items()], left=("job",)
    )
    if endpoints:
        seconds = found.jobs["generate"].seconds
        out.text(
            f"generate: {_time(seconds)} with {endpoints} {_endpoints(endpoints)}; one more as fast as these would save about "
            f"{_time(seconds / (endpoints + 1))}"
        )
    if not found.serving_bytes:  # the target is on servers, and its size is not known here
        return
    variants = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in found.serving_bytes.items())
    requests = "request" if found.batch == 1 else "requests"
    out.text(
        f"memory to serve (target and draft weights, KV caches of {found.batch} {requests} with {found.context:,} tokens): "
        f"{variants}"
    )


def _cells(cost: "Cost", gpu: bool) -> list[str]:
    sizes = [cost.stored_bytes, cost.memory_bytes, *([cost.gpu_bytes] if gpu else [])]
    return [_time(cost.seconds), *(f"{size / 1e6:,.1f} MB" for size in sizes)]


def _time(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def curve_text(curve: LearningCurve) -> str:
    """Acceptance on dev prompts by number of training completions."""
    points = ", ".join(f"{point.dev_acceptance_rate:.3f} from {point.completions:,}" for point in curve.points)
    text = f"learning curve, acceptance rate on dev prompts by training completions: {points}"
    gain = curve.next_doubling
    return text if gain is None else f"{text}; twice as many completions would add about {100 * gain:.1f} points"
