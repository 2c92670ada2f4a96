"""Extrapolation of two small runs to the whole run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.planning import trial_runs
from pipeline.planning.forecast import forecast
from pipeline.planning.trial_runs import Cost, Trial, _shares, cost_of, extrapolate, scaled
from pipeline.progress import Progress
from pipeline.store.artifacts import Artifact, FileEntry, Manifest, Store

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


def _cost(seconds: float, stored: int, memory: int, gpu: int) -> Cost:
    return Cost(seconds=seconds, stored_bytes=stored, memory_bytes=memory, gpu_bytes=gpu)


def _trial(share: float, pair_share: float, noise: float = 0.0) -> Trial:
    """3 s of start; a pair of 5 + 200 s; a generation of 1 + 100 s whose file has a header of 400 bytes."""
    jobs = {
        "pair": _cost(5 + 200 * pair_share, 7_000, 900, 0),
        "generate": _cost(1 + 100 * share + noise, 400 + round(10_000 * share), 1_000 + round(100 * share), 50),
    }
    shares, counts = {"pair": pair_share, "generate": share}, {"pair": 0.0, "generate": 1_000 * share}
    seconds = 3 + sum(one.seconds for one in jobs.values())
    return Trial(seconds=seconds, shares=shares, counts=counts, jobs=jobs)


def test_jobs_are_extrapolated_linearly() -> None:
    """Seconds and bytes at share 1, each job by its own shares; memory is the higher of the two runs."""
    jobs, total = extrapolate(_trial(0.1, 0.03), _trial(0.2, 0.09))

    assert pytest.approx(205) == jobs["pair"].seconds
    assert pytest.approx(101) == jobs["generate"].seconds
    assert (7_000, 10_400) == (jobs["pair"].stored_bytes, jobs["generate"].stored_bytes)
    assert (1_020, 50) == (jobs["generate"].memory_bytes, jobs["generate"].gpu_bytes)
    assert pytest.approx(205 + 101 + 3) == total.seconds
    assert (17_400, 1_020, 50) == (total.stored_bytes, total.memory_bytes, total.gpu_bytes)


def test_more_work_never_takes_less_time() -> None:
    """A slow small run does not make the whole faster than the larger run."""
    jobs, _ = extrapolate(_trial(0.1, 0.03, noise=30), _trial(0.2, 0.09))

    assert pytest.approx(21) == jobs["generate"].seconds


def test_equal_shares_are_scaled_in_proportion() -> None:
    """Without two different shares there is no line: the higher of the two proportional estimates is taken."""
    held_up, _ = extrapolate(_trial(0.2, 0.03, noise=10), _trial(0.2, 0.09))
    slower, _ = extrapolate(_trial(0.2, 0.03), _trial(0.2, 0.09, noise=10))

    assert pytest.approx(31 / 0.2) == held_up["generate"].seconds == slower["generate"].seconds


def test_counts_replace_shares() -> None:
    """Where the number of completions is random, the extrapolation is by completions, not by the share of prompts."""
    small, large = _trial(0.1, 0.03), _trial(0.2, 0.09)
    lucky = replace(
        small, counts={"pair": 0.0, "generate": 140.0}, jobs=small.jobs | {"generate": _cost(15, 1_800, 0, 0)}
    )
    jobs, _ = extrapolate(lucky, replace(large, counts={"pair": 0.0, "generate": 200.0}))

    assert pytest.approx(101) == jobs["generate"].seconds


def test_of_scored_prompts_the_share_is_exact() -> None:
    """They are no completions."""
    built: Any = {
        "generate/prompts": SimpleNamespace(manifest=SimpleNamespace(stage="generate"), figures={"prompts": 3.0})
    }
    assert 0.0 == trial_runs._count("generate/prompts", built)


def test_shares_fill_a_batch_and_leave_examinations_whole() -> None:
    """30 dev prompts need a share of four fifteenths, 20 steps between examinations round it to three tenths; a long training
    needs less."""
    assert (0.3, 0.6) == _shares(load_config(SMOKE), forecast(load_config(SMOKE)))
    long = load_config(SMOKE, ["distill.max_steps=4000", "distill.evaluate_every=100", "pair.reference.prompts=48000"])
    assert (0.01, 0.02) == _shares(long, forecast(long))
    on_policy = load_config(SMOKE, ["distill.on_policy={rounds: 1, max_steps: 20}", "pair.reference.prompts=48000"])
    assert (0.5, 1.0) == _shares(on_policy, forecast(on_policy))
    short = load_config(SMOKE, ["distill.on_policy={rounds: 1, max_steps: 12}", "pair.reference.prompts=48000"])
    assert (0.5, 1.0) == _shares(short, forecast(short))  # the larger run is not larger than the run itself


def test_too_few_rows_are_one_line() -> None:
    """10 rows leave one for the dev split."""
    few = load_config(SMOKE, ["pair.reference.prompts=10"])
    with pytest.raises(UsageError, match="10 rows are too few for two smaller runs; start the run itself"):
        _shares(few, forecast(few))


def test_a_small_run_is_the_same_loop() -> None:
    """Fewer prompts and steps; batches, models, splits and completions per prompt are unchanged."""
    whole = load_config(SMOKE, ["tracking.uri=http://127.0.0.1:1", "distill.on_policy={rounds: 2, prompts: 100}"])
    small = scaled(whole, 0.1, 0.05)

    assert (30, 2, 2) == (
        small.pair.reference.prompts,
        small.pair.reference.target.steps,
        small.pair.reference.draft.steps,
    )
    assert (4, 2, 1) == (small.distill.max_steps, small.distill.evaluate_every, small.distill.save_every)
    assert (2, 10) == (small.distill.on_policy.rounds, small.distill.on_policy.prompts)
    assert whole.generate == small.generate
    assert whole.corpus.splits == small.corpus.splits
    assert whole.pair.reference.target.hidden == small.pair.reference.target.hidden
    assert whole.evaluate == small.evaluate
    assert small.tracking.uri is None


def test_of_files_the_first_rows_are_read(tmp_path: Path) -> None:
    """The share applies to the rows of the whole run, a limit included."""
    rows = tmp_path / "prompts.jsonl"
    rows.write_text('{"prompt": "a"}\n' * 200)
    sources = f"[{{path: {rows}}}, {{path: {rows}, limit: 50}}]"
    small = scaled(load_config(SMOKE, [f"corpus.sources={sources}"]), 0.1, 0.05)

    assert [20, 5] == [source.limit for source in small.corpus.sources]
    sampled = scaled(load_config(SMOKE, [f"corpus.sources=[{{path: {rows}, sample: 100}}]"]), 0.1, 0.05)
    assert [(10, None)] == [(source.sample, source.limit) for source in sampled.corpus.sources]


def test_memory_is_the_higher_of_both() -> None:
    """The peak is the higher of the two runs."""
    small, large = _trial(0.1, 0.03), _trial(0.2, 0.09)
    held = replace(
        small, jobs=small.jobs | {"generate": replace(small.jobs["generate"], memory_bytes=5_000, gpu_bytes=80)}
    )
    more = replace(large, jobs=large.jobs | {"generate": replace(large.jobs["generate"], gpu_bytes=90)})
    _, total = extrapolate(held, large)

    assert (5_000, 80) == (total.memory_bytes, total.gpu_bytes)
    assert 90 == extrapolate(small, more)[1].gpu_bytes


def test_a_cost_is_read_from_a_manifest() -> None:
    """Seconds, bytes of all files, peak memory, and a GPU's where there was one."""
    files = {"a": FileEntry(3, 0, ""), "b": FileEntry(4, 0, "")}
    manifest = Manifest(
        stage="pair", key="k", figures={}, provides={}, files=files, seconds=2.5, peak_memory={"process": 100}
    )

    assert _cost(2.5, 7, 100, 0) == cost_of(Artifact(Path("nowhere"), manifest))
    assert _cost(2.5, 7, 100, 9) == cost_of(
        Artifact(Path("nowhere"), replace(manifest, peak_memory={"process": 100, "gpu": 9}))
    )


def test_every_training_has_a_share_of_its_steps() -> None:
    """Also on-policy rounds, recovery and the target's fine-tuning; a few bad rows do not refuse a small corpus."""
    settings = ["distill.on_policy={rounds: 2, prompts: 100, max_steps: 40}", "quantize.recovery.max_steps=50"]
    settings.append("pair.reference.fine_tune_steps=50")
    small = scaled(load_config(SMOKE, settings), 0.1, 0.04)

    assert (4, 5) == (small.distill.on_policy.max_steps, small.quantize.recovery.max_steps)
    assert (2, 1.0) == (small.pair.reference.fine_tune_steps, small.corpus.max_rejected_share)
    assert [None] == [source.limit for source in small.corpus.sources]
    assert 8 == scaled(load_config(SMOKE), 0.01, 0.04).pair.reference.prompts
    assert 1 == scaled(load_config(SMOKE), 0.001, 0.001).distill.max_steps


def test_a_small_run_that_fails_says_why_and_is_seen_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its costs would be those of a part. It uploads to no server of the user's."""
    seen: list[dict[str, str]] = []

    def run(command: list[str], **options: Any) -> Any:
        seen.append(options["environment"])
        return SimpleNamespace(
            returncode=1, stderr="distill: 2 processes\nunderstudy: generate.batch = 8: out of memory\n"
        )

    monkeypatch.setattr(trial_runs, "call", run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(
        UnderstudyError, match=r"with 25\.0% of its prompts and steps failed: generate\.batch = 8: out of"
    ):
        trial_runs._run(load_config(SMOKE), 0.25, 0.04, tmp_path / "1", Progress())
    assert ["MLFLOW_TRACKING_URI" in environment for environment in seen] == [False]


def test_a_pair_of_the_users_own_is_checked_once_whole() -> None:
    """Only the reference pair is trained, for a share of its steps."""
    models = ["pair.target.source=./target", "pair.draft.source=./draft", "corpus.sources=[{path: p.jsonl}]"]
    own, reference = load_config(SMOKE, models), load_config(SMOKE)

    assert (1.0, 0.04) == tuple(trial_runs._share("pair", config, 0.5, 0.04) for config in (own, reference))
    assert (0.5, 0.5) == tuple(trial_runs._share("generate", config, 0.5, 0.04) for config in (own, reference))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [((), (1, 256)), (("gate.load.max_batch=8", "gate.load.context=512", "gate.load.requests_per_second=1"), (8, 512))],
    ids=["assumed", "stated"],
)
def test_memory_to_serve_is_that_of_a_request_that_the_pair_can_hold(
    settings: tuple[str, ...], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A KV cache of 4,096 tokens is not what a pair with a context of 256 needs; what is stated stays."""
    monkeypatch.setattr(trial_runs, "_pair", lambda config, store: SimpleNamespace(context=256))
    config = load_config(SMOKE, settings)
    assert expected == trial_runs._served(config, Store(tmp_path))
