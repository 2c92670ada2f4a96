"""Hours, bytes and savings of a run that is planned, and where each figure comes from."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.commands.tables.dry_run import print_stored
from pipeline.commands.tables.plan import print_estimate
from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.planning.assumptions import amounts_of, longest_prompt
from pipeline.planning.earlier_runs import Lengths, MeasuredJob, Measurements, differences, with_small_runs
from pipeline.planning.estimate import Estimate, JobEstimate, estimate
from pipeline.planning.forecast import forecast
from pipeline.planning.savings import Saving
from pipeline.planning.trial_runs import Cost, TrialCosts
from pipeline.planning.work import Amounts, Work, work_of
from pipeline.running.jobs import jobs_of
from pipeline.running.preview import BUILD, REUSE

CONFIGS = Path(__file__).parents[3] / "configs"
RATE = "distill.learning_rate=2.0e-5"  # stated: nothing is tried

LENGTHS = Lengths(
    source="run r1", kept=0.5, prompt_tokens=100.0, longest_prompt=300.0, max_new_tokens=512, completion_tokens=200.0
)
STATED = (
    "plan.prompt_tokens=400",
    "plan.completion_tokens=350",
    "plan.generate_tokens_per_second=1000",
    "plan.flops=1.0e+14",
    "plan.draft_parameters=1.0e+9",
    "plan.gpus_per_endpoint=4",
)


def planned(*settings: str) -> Config:
    """300,000 prompts, four endpoints: 180,000 train, 30,000 dev and 90,000 examination prompts."""
    return load_config(CONFIGS / "llama3.1-70b.yaml", ["plan.rows=300000", RATE, *settings])


def estimated(*settings: str, known: Measurements | None = None, measured: TrialCosts | None = None) -> Estimate:
    config = planned(*settings)
    return estimate(config, forecast(config), known or Measurements(), measured)


def estimated_here(*settings: str) -> Estimate:
    """Of a pair whose target is loaded here; what it generates a second is stated, and nothing else is known."""
    stated = ("plan.rows=1000", RATE, "plan.generate_tokens_per_second=100")
    config = load_config(CONFIGS / "qwen3-8b.yaml", [*stated, *settings])
    return estimate(config, forecast(config), Measurements(), None)


def saving_of(found: Estimate, job: str) -> Saving:
    (saving,) = (one for one in found.savings if one.job == job)
    return saving


def job_of(found: Estimate, name: str) -> JobEstimate:
    return next(job for job in found.jobs if job.job == name)


def earlier(work: Work, seconds: float, **changes: object) -> MeasuredJob:
    job = MeasuredJob(run="r1", seconds=seconds, stored_bytes=1_000, device="cuda H100", resumed=False, work=work)
    return replace(job, **changes)  # type: ignore[arg-type]


def test_what_is_unknown_is_said_to_be_unknown() -> None:
    """Nothing was measured and nothing stated: tokens have upper bounds, and no job has a time."""
    found = estimated()

    assert [job.job for job in found.jobs] == found.unknown
    assert {None} == {job.seconds for job in found.jobs} == {job.per_second for job in found.jobs}
    assert (None, 0.0, None, []) == (found.critical, found.seconds, found.endpoint_seconds, found.savings)
    assert 390_000 * 512 + 180_000 * 16 == job_of(found, "generate").tokens_out
    assert "state plan.generate_tokens_per_second" in job_of(found, "generate").why
    assert {"pair", "distill", "quantize/int8", "quantize/int4", "gate", "promote"} == set(found.unknown_bytes)


def test_hours_at_stated_throughputs() -> None:
    """390,000 completions of 350 tokens and 180,000 x 16 past their ends, at 4 x 1,000 tokens per second; 8 FLOPs for a trained
    token and parameter (gradient checkpointing), 2 for an examined one."""
    found = estimated(*STATED)
    tokens = 390_000 * 350 + 180_000 * 16
    trained, examined = 96_000 * (2_048 + 512), 13 * 30_000 * 750

    assert pytest.approx(tokens / 4_000) == job_of(found, "generate").seconds
    assert pytest.approx((8 * trained + 2 * examined) * 1e9 / 1e14) == job_of(found, "distill").seconds
    assert pytest.approx(2 * 180_000 * 766 * 1e9 / 1e14) == job_of(found, "evaluate/base").seconds
    assert pytest.approx(4 * tokens / 4_000) == found.endpoint_seconds
    assert pytest.approx(16 * tokens / 4_000) == found.endpoint_gpu_seconds
    assert ("generate", ["pair", "corpus", "evaluate/prompt-lookup", "gate", "promote"]) == (
        found.critical,
        found.unknown,
    )
    assert pytest.approx(sum(job.seconds or 0 for job in found.jobs)) == found.seconds
    assert {"stated", "FLOPs", "unknown"} == {job.origin for job in found.jobs}


def test_one_more_endpoint_takes_its_share() -> None:
    saving = saving_of(estimated(*STATED), "generate")

    assert "one more endpoint" == saving.change
    assert pytest.approx(0.8) == saving.seconds_after / saving.seconds_before


def test_more_gpus_share_the_training() -> None:
    """8 rows of a micro-batch are divided among 2, 4 or 8 processes, and so are the examinations on dev prompts."""
    trained, examined = 8 * 96_000 * (2_048 + 512), 2 * 13 * 30_000 * 750
    one, two = (saving_of(estimated(*STATED, f"distill.processes={count}"), "distill") for count in ("auto", "2"))
    most = estimated(*STATED, "distill.processes=8").savings  # no more GPUs can share a micro-batch

    assert "distill" not in {saving.job for saving in most}
    assert "one more GPU (distill.processes: 2)" == one.change
    assert pytest.approx((trained + examined) * 1e-5) == one.seconds_before
    assert pytest.approx((trained + examined) / 2 * 1e-5) == one.seconds_after == pytest.approx(two.seconds_before)
    assert ("2 more GPUs (distill.processes: 4)", pytest.approx((trained + examined) / 4 * 1e-5)) == (
        two.change,
        two.seconds_after,
    )


def test_processes_of_an_earlier_training_are_those_of_the_next() -> None:
    """With `auto`: what two processes did in 100 s, a run of the same work does in 100 s."""
    work = work_of(planned(), replace(_amounts(), processes=2.0))["distill"]
    known = Measurements(jobs={"distill": earlier(work, 100.0)}, differences={"r1": []})
    job = job_of(estimated("plan.prompt_tokens=400", "plan.completion_tokens=350", known=known), "distill")
    alone = job_of(
        estimated("plan.prompt_tokens=400", "plan.completion_tokens=350", "distill.processes=1", known=known), "distill"
    )

    assert (2.0, pytest.approx(100.0)) == (job.workers, job.seconds)
    assert pytest.approx(100.0 * work.of_one(1.0) / work.of_one(2.0)) == alone.seconds


def test_one_more_gpu_where_the_target_is_loaded_here() -> None:
    """Two processes share the shards, and three would; on a CPU they share its cores too."""
    found = estimated_here("execution.local=2")
    saving = found.savings[0]

    assert ("one more GPU (execution.local: 3)", pytest.approx(2 / 3)) == (
        saving.change,
        saving.seconds_after / saving.seconds_before,
    )
    assert pytest.approx(job_of(found, "generate").tokens_out / 200) == job_of(found, "generate").seconds
    assert ["all jobs"] == [one.job for one in estimated_here("execution.local=2", "device=cpu").savings]


def test_examinations_are_shared_by_processes() -> None:
    """Of 180,000 completions, by four; a fifth GPU would take its share of all drafts'."""
    found = estimated(*STATED, "plan.examine_tokens_per_second=1000", "execution.local=4")
    jobs = [job for job in found.jobs if job.job.startswith("evaluate/") and job.seconds is not None]
    saving = saving_of(found, "evaluate")

    assert {180_000 * 766 / 4_000} == {job.seconds for job in jobs}
    assert (
        len(jobs) == len([job for job in found.jobs if job.job.startswith("evaluate/")]) - 1
    )  # prompt-lookup has no draft
    assert ("one more GPU (execution.local: 5)", pytest.approx(4 / 5)) == (
        saving.change,
        saving.seconds_after / saving.seconds_before,
    )
    assert pytest.approx(sum(job.seconds or 0 for job in jobs)) == saving.seconds_before


def test_one_more_node_shares_what_can_be_shared() -> None:
    """The training but its examinations, and the examinations of the drafts; servers generate as fast as before."""
    found = estimated(*STATED)
    saving = saving_of(found, "all jobs")
    examined = sum(job.seconds or 0 for job in found.jobs if job.job.startswith("evaluate/"))
    trained = saving_of(found, "distill")

    assert "one more node like this one (docs/scale.md)" == saving.change
    assert pytest.approx(found.seconds) == saving.seconds_before
    assert pytest.approx(examined / 2 + trained.seconds_before - trained.seconds_after) == (
        saving.seconds_before - saving.seconds_after
    )
    here = estimated_here("execution.local=2")
    both = saving_of(here, "all jobs")
    assert pytest.approx((job_of(here, "generate").seconds or 0) / 2) == both.seconds_before - both.seconds_after


def test_a_machine_whose_runs_were_on_a_cpu_gains_nothing_by_more_processes() -> None:
    """`device: auto` does not say what there is; an earlier run's manifests do, and so do small runs."""
    settings = ("plan.rows=1000", "plan.generate_tokens_per_second=100", "plan.flops=1.0e+12")
    config = load_config(CONFIGS / "qwen3-8b.yaml", [*settings, "plan.draft_parameters=1.0e+9"])
    job = earlier(Work(rate="other", amount=10.0, unit="rows"), 1.0)
    cost = Cost(seconds=1.0, stored_bytes=1, memory_bytes=1, gpu_bytes=0)

    def changed(device: str, measured: Cost | None) -> list[str]:
        known = Measurements(jobs={"corpus": replace(job, device=device)}, differences={"r1": []})
        found = measured and TrialCosts(jobs={}, total=measured, serving_bytes={}, batch=1, context=1)
        return [saving.job for saving in estimate(config, forecast(config), known, found).savings]

    gpus = ["generate", "evaluate", "distill", "all jobs"]
    assert gpus == changed("cuda H100", None) == changed("cuda H100", replace(cost, gpu_bytes=1))
    assert ["all jobs"] == changed("cpu x86_64 AVX512 bf16", None) == changed("", cost)  # of one more node


def test_one_more_worker_of_a_ray_cluster() -> None:
    """Which may have cores of its own, so a CPU does not forbid it."""
    found = estimated_here("execution.ray.workers=3", "device=cpu")
    (saving,) = found.savings

    assert ("generate", "one more Ray worker (execution.ray.workers: 4)") == (saving.job, saving.change)
    assert pytest.approx(3 / 4) == saving.seconds_after / saving.seconds_before
    assert pytest.approx(job_of(found, "generate").tokens_out / 300) == saving.seconds_before


def test_a_limit_of_requested_tokens_is_the_least_time() -> None:
    """It counts prompts, scorings and the longest completions; more endpoints do not shorten it. A high one changes nothing."""
    work = work_of(planned(*STATED), _amounts())["generate"]
    found = estimated(*STATED, "generate.server.tokens_per_second=1000")
    free = estimated(*STATED, "generate.server.tokens_per_second=1.0e+9")

    assert pytest.approx(work.asked / 1_000) == job_of(found, "generate").seconds
    assert "generate.server.tokens_per_second" == job_of(found, "generate").why
    assert found.savings[0].seconds_before == found.savings[0].seconds_after
    assert pytest.approx(work.tokens_out / 4_000) == job_of(free, "generate").seconds


def _amounts() -> Amounts:
    config = planned(*STATED)
    return amounts_of(config, forecast(config), Measurements())


def test_a_budget_of_tokens_is_counted_in_executions() -> None:
    work = work_of(planned(*STATED), _amounts())["generate"]
    found = estimated(*STATED, "generate.server.token_budget=100000000")

    assert pytest.approx((work.tokens_in + work.tokens_out) / 1e8) == found.budget_share
    assert None is estimated(*STATED).budget_share


def test_an_earlier_run_gives_throughput_and_lengths() -> None:
    """Twice the work of one endpoint of weight 1 in 100 s is 4 times that of four in 25; half of the rows are prompts."""
    work = Work(rate="generate", tokens_out=50_000.0, amount=50_000.0, unit="tokens", workers=2.0)
    known = Measurements(jobs={"generate": earlier(work, 100.0)}, differences={"r1": []}, lengths=LENGTHS)
    found = estimated(known=known)
    job = job_of(found, "generate")

    assert 195_000 * 200 + 90_000 * 16 == job.tokens_out
    assert pytest.approx(job.tokens_out / (4 * 250)) == job.seconds
    assert ("earlier", "run r1 on cuda H100") == (job.origin, job.why)


@pytest.mark.parametrize(("generated", "expected"), [(50_000.0, 250.0), (5_000.0, 25.0), (0.0, None)])
def test_a_run_that_scored_recorded_answers_gives_no_speed_of_generation(
    generated: float, expected: float | None
) -> None:
    """Of 50,000 tokens it generated a tenth, or none: a run without recorded answers takes ten times as long, or nobody knows."""
    work = Work(rate="generate", tokens_out=generated, amount=50_000.0, unit="tokens", workers=2.0)
    known = Measurements(jobs={"generate": earlier(work, 100.0)}, differences={"r1": []}, lengths=LENGTHS)
    job = job_of(estimated(known=known), "generate")
    assert (expected and pytest.approx(4 * expected)) == job.per_second


def test_what_is_stated_goes_before_what_was_measured() -> None:
    work = Work(rate="generate", amount=50_000.0, unit="tokens", workers=2.0)
    known = Measurements(jobs={"generate": earlier(work, 100.0)}, differences={"r1": []}, lengths=LENGTHS)
    cost = Cost(seconds=70.0, stored_bytes=1, memory_bytes=1, gpu_bytes=0)
    measured = TrialCosts(jobs={"generate": cost}, total=cost, serving_bytes={}, batch=1, context=1)

    assert 70.0 == pytest.approx(job_of(estimated(known=known, measured=measured), "generate").seconds)
    assert "measured" == job_of(estimated(known=known, measured=measured), "generate").origin
    stated = job_of(estimated(*STATED, known=known, measured=measured), "generate")
    assert ("stated", 4_000.0) == (stated.origin, pytest.approx(stated.per_second))
    assert 390_000 * 0.5 * 350 + 90_000 * 16 == stated.tokens_out  # the share that is kept was measured


def test_lengths_that_are_stated_go_before_those_of_a_run() -> None:
    """The next prompts may be longer."""
    known = Measurements(lengths=LENGTHS)
    stated = estimated("plan.prompt_tokens=400", "plan.completion_tokens=350", known=known)

    assert 150_000 * 400 == job_of(stated, "corpus").tokens_out
    assert 195_000 * 350 + 90_000 * 16 == job_of(stated, "generate").tokens_out
    assert 150_000 * 100 == job_of(estimated(known=known), "corpus").tokens_out


def test_chats_have_as_many_turns_as_in_the_last_run() -> None:
    twice = estimated(known=Measurements(lengths=replace(LENGTHS, turns=2.0)))
    once = estimated(known=Measurements(lengths=LENGTHS))

    assert 2 * job_of(once, "generate").tokens_out == job_of(twice, "generate").tokens_out


def test_a_resumed_job_has_no_throughput() -> None:
    """Its seconds are those of its last part, and it would look faster than it is. A manifest does not tell tasks from a kill."""
    work = Work(rate="train", amount=50_000.0, unit="tokens")
    job = job_of(estimated(known=Measurements(jobs={"distill": earlier(work, 1.0, resumed=True)})), "distill")

    assert (None, "unknown") == (job.seconds, job.origin)
    assert job.why.startswith(
        "only the last part was timed: tasks of a scheduler, or a run that was killed, had made the rest"
    )
    assert "state plan.train_tokens_per_second" in job.why


def test_lengths_under_another_limit_do_not_hold() -> None:
    """Completions of at most 128 tokens say nothing of how long they become within 512."""
    shorter = replace(LENGTHS, max_new_tokens=128, completion_tokens=100.0)
    found = estimated(known=Measurements(lengths=shorter))

    assert 195_000 * 512 + 90_000 * 16 == job_of(found, "generate").tokens_out
    assert {"mean tokens of a completion": "the most that generate.max_new_tokens allows"}.items() <= {
        one.what: one.source for one in found.assumptions
    }.items()


def test_settings_that_change_a_throughput_are_named() -> None:
    changed = planned("generate.server.concurrency=128", "distill.max_steps=9")

    assert ["generate.server.concurrency (was 64, now 128)"] == differences(planned(), changed)
    (place,) = differences(planned(), planned("execution.local=2"))
    assert place.startswith("execution (was local=1 ")
    assert [
        "distill.batch (was 8, now 4)",
        "distill.processes (was auto, now 2)",
        "evaluate.batch_tokens (was 32768, now 4096)",
    ] == differences(planned(), planned("distill.batch=4", "distill.processes=2", "evaluate.batch_tokens=4096"))
    assert [] == differences(planned(), planned("plan.rows=5", "seed=3", "distill.learning_rate=1"))


def test_disk_at_its_fullest() -> None:
    """While the draft is trained: three checkpoints of weights and two moments in float32, and the best weights twice."""
    found = estimated(*STATED)
    before = [job_of(found, name).stored_bytes or 0 for name in ("corpus", "generate", "distill")]

    assert pytest.approx(sum(before) + 44 * 1e9) == found.peak_bytes
    assert pytest.approx(sum(job.stored_bytes or 0 for job in found.jobs)) == found.stored_bytes
    assert pytest.approx(2e9 + 44 * 180_000) == job_of(found, "distill").stored_bytes


def test_memory_of_each_process_that_trains() -> None:
    """16 bytes a parameter; divided among four 4 of them, or in an examination 3 and the whole weights. Adapters take less, which
    is not planned."""

    def bytes_of(*settings: str) -> tuple[float | None, float | None]:
        found = estimated(*STATED, *settings)
        return found.training_bytes, found.sharded_bytes

    four = "distill.processes=4"
    assert (16e9, None) == bytes_of()
    assert (16e9, 7e9) == bytes_of(four)
    assert (7e9, None) == bytes_of(four, "distill.shard=true")
    assert (12e9, 6e9) == bytes_of(four, "distill.optimizer=muon")
    assert (None, None) == bytes_of(four, "distill.lora={rank: 4}")


def test_bytes_of_an_earlier_run_are_scaled() -> None:
    work = Work(rate="examine", amount=10.0, unit="tokens", size=100.0)
    known = Measurements(jobs={"evaluate/base": earlier(work, 1.0)}, differences={"r1": []})

    assert 1_000 * 180_000 / 100 == job_of(estimated(known=known), "evaluate/base").stored_bytes


def test_step_times_that_drafts_share_are_planned_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The candidate is the base draft, trained: it has its shape. Where a run had step times of its own, these count."""
    found = estimated_here()
    base, candidate = (job_of(found, f"speed/{part}") for part in ("base", "candidate"))
    assert (120.0, 0.0, "shared") == (base.seconds, candidate.seconds, candidate.origin)
    assert 120.0 == found.seconds - sum(job.seconds or 0.0 for job in found.jobs if not job.job.startswith("speed"))
    print_estimate(found, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "speed/candidate is counted once, with speed/base: drafts of equal shape share it" in said
    assert "(speed/base)" in said

    config = load_config(CONFIGS / "qwen3-8b.yaml", ["plan.rows=1000"])
    own = Measurements(jobs={"speed/candidate": earlier(Work(rate="speed"), 30.0)}, differences={"r1": []})
    assert 30.0 == job_of(estimate(config, forecast(config), own, None), "speed/candidate").seconds


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """What a person asks for a budget with."""
    print_estimate(estimated(*STATED), None)
    said = capsys.readouterr().out

    assert "time: at least 20.3 h, one job after another; most of it is generate (9.7 h, 48%)\n" in said
    assert "time not known: pair, corpus, evaluate/prompt-lookup, gate, promote\n" in said
    assert (
        "machine hours: 4 endpoints x 9.7 = 38.7 (154.9 GPU hours); this machine at least 20.3, of which 10.7 " in said
    )
    assert "one more endpoint: generate 9.7 h -> 7.7 h\n" in said
    assert "one more GPU (distill.processes: 2): distill 7.1 h -> 3.5 h\n" in said
    assert "one more node like this one (docs/scale.md): all jobs 20.3 h -> " in said
    assert (
        "throughput unknown: never measured; measure it with --measure (pair, corpus, evaluate/prompt-lookup, gate, promote)\n"
        in said
    )
    assert "  mean tokens of a prompt: 400 (stated; plan.prompt_tokens)\n" in said
    longest = "  longest prompt, in tokens: 2,048 (the most that corpus.max_prompt_tokens allows; "
    assert f"{longest}plan.longest_prompt_tokens)\n" in said
    assert "  FLOP/s of one device: 1e+14 (stated; a parameter and a token take 6 FLOPs in training (Kaplan" in said


def test_a_plan_says_what_is_there_already(capsys: pytest.CaptureFixture[str]) -> None:
    """Whose time nobody pays again; and what a champion adds to the table, which is of a run without one."""
    found, jobs = estimated(*STATED), {job.id: job for job in jobs_of(planned(*STATED))}
    actions = dict.fromkeys(jobs, BUILD) | {"pair": REUSE, "corpus": REUSE, "generate": REUSE}
    would: list[Any] = [SimpleNamespace(job=jobs[name], action=action) for name, action in actions.items()]
    print_stored(found, would)
    assert (
        "in the store already, and not made again: pair, corpus, generate; the others in the table take at least 10"
        in (capsys.readouterr().out)
    )

    would = [one for one in would if one.job.id != "evaluate/base"]
    would += [
        SimpleNamespace(job=SimpleNamespace(id=name), action=BUILD) for name in ("evaluate/champion", "speed/champion")
    ]
    print_stored(found, would)
    assert (
        "of the champion, and not in the table: evaluate/champion, speed/champion, as long as those of the base draft, in place "
        "of evaluate/base\n" in capsys.readouterr().out
    )
    print_stored(found, [SimpleNamespace(job=jobs[name], action=BUILD) for name in jobs])  # type: ignore[misc]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (("distill.processes=1",), "machine hours: at least 77.1; GPU hours, where each process has a GPU\n"),
        (
            ("execution.local=16", "distill.processes=2"),
            "machine hours: at least 77.1 (generate 16 x 1.2, distill 2 x 9.1, evaluate 16 x 2.1, other jobs 5.7); GPU hours,",
        ),
    ],
    ids=["one process", "tasks"],
)
def test_hours_of_processes_where_the_target_is_loaded_here(
    processes: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen tasks of a scheduler, each with its own target, are planned as sixteen processes: a sixteenth of the time, and the
    same hours of all of them."""
    stated = ("plan.rows=100000", "plan.train_tokens_per_second=5000", "plan.examine_tokens_per_second=5000")
    print_estimate(estimated_here(*stated, "plan.generate_tokens_per_second=1000", *processes), None)

    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    "missing", ["plan.generate_tokens_per_second=null", "plan.flops=null"], ids=["generation", "training"]
)
def test_no_job_takes_the_most_while_a_large_one_has_no_time(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest of the others would be named, such as the measurement of speed, whose time is always known."""
    found = estimated(*STATED, missing, "evaluate.speed.turns=1")
    print_estimate(found, None)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("time: "))

    assert found.critical is None
    assert line.startswith("time: at least ")
    assert line.endswith(", one job after another")


@pytest.mark.parametrize("gpu", [0, 9_000_000_000])
def test_a_measured_plan_in_words(gpu: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory of each job, and of the GPU where there is one; serving memory by variant."""
    cost = Cost(seconds=3_725.0, stored_bytes=2_500_000, memory_bytes=1_200_000_000, gpu_bytes=gpu)
    jobs = {"generate": cost, "corpus": replace(cost, seconds=42.0)}
    serving = {"unquantized": 2.5e9, "int4": 2.1e9}
    measured = TrialCosts(jobs=jobs, total=cost, serving_bytes=serving, batch=32, context=4096)
    print_estimate(estimated(measured=measured), measured)
    said = capsys.readouterr().out

    assert bool(gpu) == ("9.0 GB" in said) == ("GPU" in said.split("corpus")[0])
    assert ["62.1", "min"] == _words(said, "generate ", "min")
    assert "42 s" in said
    assert "1.2 GB" in said
    assert (
        "memory to serve (target and draft weights, KV caches of 32 requests with 4,096 tokens): unquantized 2,500 MB,"
        " int4 2,100 MB\n" in said
    )


def _words(said: str, job: str, unit: str) -> list[str]:
    """The word before `unit` and itself, in the row of the table that begins with `job`."""
    row = next(line.split() for line in said.splitlines() if line.lstrip("│ ").startswith(job))
    return row[row.index(unit) - 1 : row.index(unit) + 1]


def test_a_plan_that_has_measured_does_not_advise_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    """What the small runs leave out is said to be that; parameters come from the small runs, not from a last run."""
    cost = Cost(seconds=3.0, stored_bytes=1, memory_bytes=1, gpu_bytes=0)
    names = [job.job for job in estimated().jobs if job.job != "promote"]
    measured = TrialCosts(jobs=dict.fromkeys(names, cost), total=cost, serving_bytes={}, batch=1, context=1)
    known = with_small_runs(Measurements(), None, 5e8, None)
    print_estimate(estimated(known=known, measured=measured), measured)
    said = capsys.readouterr().out

    assert "--measure" not in said
    assert "throughput unknown: not part of the small runs (promote)\n" in said
    assert "(all jobs but promote)\n" in said
    assert "parameters of the draft: 500 M (measured in two small runs; plan.draft_parameters)\n" in said


def test_parameters_of_an_earlier_draft_name_its_run() -> None:
    """There may be no last run in the store, and several of other names."""
    known = Measurements(draft_parameters=5e8, parameters_source="those of run r1")
    assumed = {one.key: one.source for one in estimated(known=known).assumptions}

    assert "those of run r1" == assumed["plan.draft_parameters"]


@pytest.mark.parametrize(("kind", "places"), [("eagle3", (3, 16)), ("medusa", (1, 1))])
def test_a_head_takes_a_pass_of_its_target_for_each_token(kind: str, places: tuple[int, int]) -> None:
    """By FLOPs 6 of the head for each place that is trained after another, and 2 of the target; an examination likewise. Nothing
    is estimated where the target's size is not known."""
    draft = f"pair.draft={{source: target, head: {{kind: {kind}}}}}"
    stated = (
        draft,
        "distill.gradient_checkpointing=false",
        "evaluate.gamma=3",
        "evaluate.max_gamma=16",
        "plan.flops=1.0e+14",
        "plan.draft_parameters=2.0e+8",
    )
    without, found = estimated_here(*stated), estimated_here(*stated, "plan.target_parameters=8.0e+9")
    per_second = {job.job: job.per_second for job in found.jobs}

    assert "state plan.target_parameters" in job_of(without, "distill").why
    assert 1e14 / (6 * 2e8 * places[0] + 2 * 8e9) == pytest.approx(per_second["distill"])
    assert 1e14 / (2 * 2e8 * places[1] + 2 * 8e9) == pytest.approx(per_second["evaluate/candidate"])
    assert ("parameters of the target", 8e9) in [(one.what, one.value) for one in found.assumptions]
    assert any("a token costs as much as a trained one" in one.source for one in found.assumptions)


def test_nothing_is_measured_for_a_run_that_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as for a champion of another target: small runs take minutes, and their figures would be lost."""
    from pipeline.commands.plan import plan

    def refused(*_: object) -> None:
        raise UsageError("a champion of another target")

    for name in ("planning.forecast.forecast", "planning.forecast.last_learning_curve"):
        monkeypatch.setattr(f"pipeline.{name}", lambda *_: None)
    monkeypatch.setattr("pipeline.running.local_pair.check_local_pair", lambda config: (config, []))
    monkeypatch.setattr("pipeline.running.preview.require_stored_prompts", lambda *_: True)
    monkeypatch.setattr("pipeline.running.preview.preview", refused)
    monkeypatch.setattr("pipeline.planning.trial_runs.measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(UsageError, match="of another target"):
        plan(CONFIGS / "qwen3-8b.yaml", measure=True, as_json=True)


@pytest.mark.parametrize(("stated", "value"), [(100, 100.0), (10**6, 2048.0)])
def test_a_stated_longest_prompt_is_cut_as_a_run_cuts_it(stated: int, value: float) -> None:
    """`init` writes that of its sample, and the limit may be lowered since."""
    config = planned("corpus.max_prompt_tokens=2048", f"plan.longest_prompt_tokens={stated}")

    assert value == longest_prompt(config, None).value
