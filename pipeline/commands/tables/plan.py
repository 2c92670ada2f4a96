"""What `understudy plan` prints, and a learning curve in one line."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.commands.tables.console import Report
from pipeline.distillation.learning_curve import LearningCurve

if TYPE_CHECKING:  # `show` imports this module and should not wait for the code that reads prompts
    from pipeline.planning.estimate import Estimate, JobEstimate
    from pipeline.planning.forecast import Forecast
    from pipeline.planning.trial_runs import Cost, TrialCosts

COLUMNS = ("job", "tokens in", "tokens out", "disk", "time", "throughput", "from")
_MOST_NAMED = 3  # jobs, where the others are all
MEMORY = ("memory", "GPU memory")
_TEXT = ("job", "from")


def print_forecast(forecast: "Forecast", curve: LearningCurve | None, notes: Sequence[str]) -> None:
    """Print the forecast to stdout, with `notes` on what the pair leaves out. The figures are upper bounds, except that the sizes
    of the splits are expectations."""
    out = Report()
    for source in forecast.sources:
        out.text(source)
    splits = ", ".join(f"{count:,} {split}" for split, count in forecast.prompts.items())
    out.text(f"corpus: {forecast.rows:,} rows: about {splits} prompts, before rejected rows and duplicates are removed")
    for asked in forecast.generate:
        out.text(
            f"{asked.job}: up to {asked.completions:,} completions, {asked.tokens:,} target tokens of "
            f"{forecast.bytes_per_token} bytes on disk"
        )
    if forecast.prompt_positions:
        out.text(
            "generate/prompts: the target scores the train prompts too, in a prefill of each, up to "
            f"{forecast.prompt_positions:,} positions (distill.prompt_weight)"
        )
    out.text(
        f"target tokens: {forecast.new_tokens:,} for each completion (generate.max_new_tokens), and {forecast.lookahead:,} more "
        "for those of examination prompts (generate.lookahead), because some engines draft past the end"
    )
    out.text(
        f"completions: one for each {_completions(forecast.samplings)} (more with generate.train_temperatures and "
        "generate.examination_samplings)"
    )
    if forecast.endpoints:
        out.text(
            f"generation runs on {forecast.endpoints} {_endpoints(forecast.endpoints)}, which also prefill the prompts, and "
            "score the completions (a second prefill) if `sampling` is neither greedy nor plain temperature 1"
        )
    if forecast.recorded_answers:
        out.text(
            f"recorded answers: {forecast.recorded_answers:,} rows have one that is one of these completions, unless its tokens "
            "or its sampling turn out otherwise; the target scores them in one pass each and generates only the others"
        )
    elif forecast.recorded_answers is None:
        out.text(
            "recorded answers are not counted, because plan.rows is stated: all completions are counted as generated"
        )
    if forecast.first_turns_only:
        out.text(
            "chats with `every_turn` are counted by their first question; those with more questions need more tokens"
        )
    out.text(f"distill: {_training(forecast)}")
    for note in notes:
        out.text(note)
    if curve is not None:
        out.text(curve_text(curve))


def _training(forecast: "Forecast") -> str:
    batch = forecast.training_rows // forecast.training_steps
    trials = f" ({forecast.trial_steps:,} of them find the learning rate)" if forecast.trial_steps else ""
    if forecast.rate_is_untried:
        trials = " (too few to try learning rates, so a low one is taken; distill.learning_rate, distill.max_steps)"
    return f"{forecast.training_steps:,} steps{trials} x batch {batch} = {forecast.training_rows:,} sequences"


def _completions(samplings: int) -> str:
    if samplings == 1:
        return "prompt, because `sampling` is greedy"
    return "train or dev prompt; for each examination prompt one sampled as in `sampling` and one greedy"


def _endpoints(count: int) -> str:
    return "endpoint" if count == 1 else "endpoints"


def print_estimate(estimate: "Estimate", measured: "TrialCosts | None") -> None:
    """Print a table of the jobs, totals, what more machines save, and the assumptions to stdout."""
    out = Report()
    columns = (*COLUMNS, *(MEMORY if measured else ()))
    if measured and not measured.total.gpu_bytes:
        columns = columns[:-1]
    out.table(columns, [_row(job, measured) for job in estimate.jobs] + [_total_row(estimate, measured)], left=_TEXT)
    for line in (*_totals(estimate), *_savings(estimate), *_sources(estimate)):
        out.text(line)
    if measured and measured.serving_bytes:  # else the target is on servers, and its size is not known here
        out.text(_serving(measured))
    out.text("assumed, with the key that changes it:")
    for assumption in estimate.assumptions:
        out.text(f"  {assumption.what}: {_figure(assumption.value)} ({assumption.source}; {assumption.key})", indent=4)


def _row(job: "JobEstimate", measured: "TrialCosts | None") -> list[str]:
    speed = "" if job.per_second is None else f"{_figure(job.per_second)} {job.unit}/s"
    cells = [
        job.job,
        _count(job.tokens_in),
        _count(job.tokens_out),
        _size(job.stored_bytes),
        duration(job.seconds),
        speed,
        job.origin,
    ]
    return cells + _memory(measured, measured.jobs.get(job.job) if measured else None)


def _total_row(estimate: "Estimate", measured: "TrialCosts | None") -> list[str]:
    cells = [
        "all jobs",
        "",
        "",
        _size(estimate.stored_bytes),
        duration(estimate.seconds if _has_times(estimate) else None),
        "",
        "",
    ]
    return cells + _memory(measured, measured.total if measured else None)


def _memory(measured: "TrialCosts | None", cost: "Cost | None") -> list[str]:
    if measured is None:
        return []
    sizes = ["" if cost is None else _size(cost.memory_bytes)]
    return [*sizes, "" if cost is None else _size(cost.gpu_bytes)] if measured.total.gpu_bytes else sizes


def _totals(estimate: "Estimate") -> Iterator[str]:
    least = "at least " if estimate.unknown else ""
    if _has_times(estimate):
        yield f"time: {least}{duration(estimate.seconds)}, one job after another{_bottleneck(estimate)}"
    if estimate.unknown:
        yield f"time not known: {', '.join(estimate.unknown)}"
    more = f", without {', '.join(estimate.unknown_bytes)}" if estimate.unknown_bytes else ""
    yield f"disk: {_size(estimate.stored_bytes)} when the run has ended, {_size(estimate.peak_bytes)} at most while it runs{more}"
    if estimate.endpoint_seconds is not None:
        each, gpus = estimate.endpoint_seconds / estimate.endpoints, estimate.endpoint_gpu_seconds
        gpu = "GPU hours: state plan.gpus_per_endpoint" if gpus is None else f"{_hours(gpus)} GPU hours"
        yield (
            f"machine hours: {estimate.endpoints} {_endpoints(estimate.endpoints)} x {_hours(each)} = "
            f"{_hours(estimate.endpoint_seconds)} "
            f"({gpu}); this machine {least}{_hours(estimate.seconds)}, of which {_hours(estimate.seconds - each)} without the "
            "endpoints"
        )
    elif not estimate.endpoints and _has_times(estimate):
        yield f"machine hours: {least}{_process_hours(estimate)}"
    splits = ", ".join(f"{_count(tokens)} {split}" for split, tokens in estimate.generated_by_split.items())
    yield f"generated tokens by split: {splits} (corpus.splits; an examination prompt has several completions)"
    if estimate.budget_share is not None and estimate.budget_share > 1:
        yield (
            f"generate.server.token_budget: the requests need {estimate.budget_share:.1f} times the budget, so as many executions"
        )


def _has_times(estimate: "Estimate") -> bool:
    return len(estimate.unknown) < len(estimate.jobs)


def _bottleneck(estimate: "Estimate") -> str:
    """Empty while a job that may be it has no time."""
    critical = next((job for job in estimate.jobs if job.job == estimate.critical), None)
    if critical is None or critical.seconds is None:
        return ""
    share = critical.seconds / estimate.seconds if estimate.seconds else 1.0
    return f"; most of it is {critical.job} ({duration(critical.seconds)}, {share:.0%})"


def _process_hours(estimate: "Estimate") -> str:
    """The hours of all processes, Ray workers and tasks, each from the start of its stage to the end."""
    timed = [(job.job.partition("/")[0], job.workers, job.seconds) for job in estimate.jobs if job.seconds is not None]
    shared = dict.fromkeys((stage, workers) for stage, workers, _ in timed if workers > 1)
    parts = [
        f"{stage} {workers:.0f} x {_hours(sum(seconds for *of, seconds in timed if of == [stage, workers]))}"
        for stage, workers in shared
    ]
    rest = sum(seconds for _, workers, seconds in timed if workers == 1)
    counted = f" ({', '.join(parts)}, other jobs {_hours(rest)})" if parts else ""
    whole = _hours(sum(workers * seconds for _, workers, seconds in timed))
    return f"{whole}{counted}; GPU hours, where each process has a GPU"


def _savings(estimate: "Estimate") -> Iterator[str]:
    for saving in estimate.savings:
        yield f"{saving.change}: {saving.job} {duration(saving.seconds_before)} -> {duration(saving.seconds_after)}"


def _sources(estimate: "Estimate") -> Iterator[str]:
    """Each source of throughputs once, with its jobs."""
    jobs_by_source: dict[str, list[str]] = {}
    for job in estimate.jobs:
        if job.origin == "shared":
            yield f"{job.job} is counted once, with {job.why}: drafts of equal shape share it"
            continue
        jobs_by_source.setdefault(f"{job.origin}: {job.why}", []).append(job.job)
    for source, jobs in jobs_by_source.items():
        which = "all jobs" if len(jobs) == len(estimate.jobs) else ", ".join(jobs)
        if len(estimate.jobs) > len(jobs) > _MOST_NAMED:
            others = [job.job for job in estimate.jobs if job.job not in jobs]
            which = f"all jobs but {', '.join(others)}" if len(others) <= _MOST_NAMED else which
        yield f"throughput {source} ({which})"
    for run, differences in estimate.differences.items():
        yield f"the throughputs of run {run} may not hold here, because settings differ: {', '.join(differences)}"


def _serving(measured: "TrialCosts") -> str:
    variants = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in measured.serving_bytes.items())
    requests = "request" if measured.batch == 1 else "requests"
    return (
        f"memory to serve (target and draft weights, KV caches of {measured.batch} {requests} with {measured.context:,} tokens): "
        f"{variants}"
    )


def duration(seconds: float | None) -> str:
    """The time for people; `unknown` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{_hours(seconds)} h"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 1 or not hours else f"{hours:.2g}"


def _size(size: float | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def _count(tokens: float) -> str:
    if not tokens:
        return "-"
    return f"{tokens / 1e6:,.1f} M" if tokens >= 1e6 else f"{tokens:,.0f}"


def _figure(value: float) -> str:
    """Three digits, or all before the point; large ones in millions, and from 10^12 with an exponent."""
    if value >= 1e12:
        return f"{value:.3g}"
    if value >= 1e7:
        return f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def curve_text(curve: LearningCurve) -> str:
    """Acceptance on dev prompts by number of training completions."""
    points = ", ".join(f"{point.dev_acceptance_rate:.3f} from {point.completions:,}" for point in curve.points)
    text = f"learning curve, acceptance rate on dev prompts by training completions: {points}"
    gain = curve.next_doubling
    return text if gain is None else f"{text}; twice as many completions would add about {100 * gain:.1f} points"
