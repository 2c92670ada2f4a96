"""What earlier runs have measured: which of them, and how their figures are read."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.corpus.prompt_store import Prompt
from pipeline.planning import earlier_runs, same_inputs
from pipeline.planning.earlier_runs import Measurements, measurements
from pipeline.planning.work import work_of
from pipeline.store.runs import OutsideInput

CONFIG = Path(__file__).parents[3] / "configs" / "qwen3-8b.yaml"
CORPUS = {"rows": 200.0, "prompts": 100.0, "tokens": 5_000.0, "train": 60.0, "dev": 10.0, "examination": 30.0}
# 130 completions are planned: 60, 10, and 30 twice.
GENERATED = {"completions": 260.0, "tokens": 26_000.0}
INPUTS = {name: OutsideInput(name) for name in ("target", "draft", "prompts_0")}


def _config(*settings: str) -> Config:
    return load_config(CONFIG, settings)


class _Runs:
    """Runs of a store, the oldest first. `add` gets the figures of each job that a run has built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._configs: dict[str, Config] = {}
        self._built: dict[str, dict[str, Any]] = {}
        self._records: list[Any] = []
        monkeypatch.setattr(earlier_runs, "read_runs", lambda store: self._records)
        monkeypatch.setattr(earlier_runs, "run_config", lambda record: self._configs[record.id])
        monkeypatch.setattr(earlier_runs, "_built", lambda store, record: self._built[record.id])
        self.planned = dict(INPUTS)
        monkeypatch.setattr(same_inputs, "known_files", lambda config, store: self.planned)
        prompts = [Prompt("0", "train", "code", 0, (1,) * count, text_id="", conversation="") for count in (3, 70, 5)]
        monkeypatch.setattr("pipeline.corpus.prompt_store.open_prompts", lambda path: prompts)

    def add(
        self,
        name: str,
        config: Config,
        figures: dict[str, dict[str, float]],
        seconds: float = 10.0,
        resumed: tuple[str, ...] = (),
        **inputs: OutsideInput,
    ) -> None:
        self._configs[name] = config
        self._built[name] = {
            job: SimpleNamespace(
                figures=own,
                path=Path(job),
                manifest=SimpleNamespace(
                    seconds=seconds,
                    files={"a": SimpleNamespace(size=3), "b": SimpleNamespace(size=4)},
                    environment={"device": "cuda H100"},
                    resumed=job in resumed,
                ),
            )
            for job, own in figures.items()
        }
        outside = INPUTS | inputs
        jobs = {
            job: SimpleNamespace(
                figures=None, seconds=1.0, state="done", stage=job.partition("/")[0], key=str(own.get("key", job))
            )
            for job, own in figures.items()
        }
        self._records.append(SimpleNamespace(id=name, name=config.name, jobs=jobs, outside=outside))

    def found(self, *settings: str) -> Measurements:
        return measurements(None, _config(*settings))  # type: ignore[arg-type]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> _Runs:
    return _Runs(monkeypatch)


def test_lengths_are_those_of_the_stored_prompts_and_completions(runs: _Runs) -> None:
    """Twice as many completions as are planned for the first turn: two turns a chat."""
    runs.add("r1", _config(), {"corpus": CORPUS, "generate": GENERATED})
    found = runs.found().lengths

    assert found is not None
    assert (0.5, 50.0, 70.0) == (found.kept, found.prompt_tokens, found.longest_prompt)
    assert (100.0, 2.0, "run r1") == (found.completion_tokens, found.turns, found.source)


def test_of_each_job_the_latest_run_counts(runs: _Runs) -> None:
    """Another job may be of an older one. Runs of another name do not count."""
    runs.add("r1", _config(), {"corpus": CORPUS, "generate": GENERATED}, seconds=1.0)
    runs.add("r2", _config(), {"corpus": CORPUS | {"tokens": 9_000.0}}, seconds=2.0)
    runs.add("r3", _config("name=other"), {"corpus": CORPUS, "generate": GENERATED}, seconds=3.0)
    found = runs.found()

    assert {"corpus": ("r2", 2.0), "generate": ("r1", 1.0)} == {
        name: (job.run, job.seconds) for name, job in found.jobs.items()
    }
    assert ({7}, {"cuda H100"}) == tuple(
        {getattr(job, name) for job in found.jobs.values()} for name in ("stored_bytes", "device")
    )
    assert found.lengths is not None
    assert ("run r1", 50.0) == (found.lengths.source, found.lengths.prompt_tokens)  # the latest with completions


def test_what_two_jobs_share_is_counted_once(runs: _Runs) -> None:
    """Step times of drafts of equal shape are one artifact, whose seconds were spent once."""
    speeds = {f"speed/{part}": {"key": 1.0} for part in ("base", "candidate")}
    runs.add("r1", _config(), {"corpus": CORPUS, **speeds})
    assert {"corpus", "speed/base"} == set(runs.found().jobs)


def test_a_job_that_was_made_in_one_go_goes_before_a_later_one_that_was_not(runs: _Runs) -> None:
    """Whose seconds are those of its last part. The lengths are those of the latest run in any case."""
    built = {"corpus": CORPUS, "generate": GENERATED, "distill": {"processes": 1.0}}
    runs.add("r1", _config(), built, seconds=1.0, resumed=("distill",))
    runs.add("r2", _config(), built, seconds=2.0, resumed=("distill",))
    runs.add("r3", _config(), built, seconds=3.0, resumed=("generate", "distill"))
    found = runs.found()

    assert {"corpus": ("r3", False), "generate": ("r2", False), "distill": ("r3", True)} == {
        name: (job.run, job.resumed) for name, job in found.jobs.items()
    }
    assert found.lengths is not None
    assert "run r3" == found.lengths.source


def test_one_look_back_suffices_where_all_was_made_in_one_go(runs: _Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs before it are read only for a job that was not."""
    wanted = ("corpus", "generate")
    monkeypatch.setattr(earlier_runs, "jobs_of", lambda *_: [SimpleNamespace(id=job, shares="") for job in wanted])
    read = list[str]()
    monkeypatch.setattr(earlier_runs, "differences", lambda *_: read.append("run") or [])
    runs.add("r1", _config(), {"corpus": CORPUS, "generate": GENERATED})
    runs.add("r2", _config(), {"corpus": CORPUS, "generate": GENERATED})
    runs.found()
    once = len(read)
    runs.add("r3", _config(), {"corpus": CORPUS, "generate": GENERATED}, resumed=("generate",))
    runs.found()

    assert (1, 3) == (once, len(read))


def test_a_run_without_completions_has_lengths_of_prompts(runs: _Runs) -> None:
    runs.add("r1", _config(), {"corpus": CORPUS})
    found = runs.found().lengths

    assert found is not None
    assert (50.0, None, 1.0) == (found.prompt_tokens, found.completion_tokens, found.turns)


def test_the_work_of_a_job_is_that_of_its_own_run(runs: _Runs) -> None:
    """Of its config, its prompts, and the processes that trained its draft."""
    earlier = _config("distill.max_steps=40", "execution.local=2")
    runs.add("r1", earlier, {"corpus": CORPUS, "generate": GENERATED, "distill": {"processes": 4.0}})
    found = runs.found("distill.max_steps=80", "distill.batch=2").jobs
    amounts = earlier_runs.Amounts(
        rows=200.0,
        prompts={"train": 60.0, "dev": 10.0, "examination": 30.0},
        prompt_tokens=50.0,
        completion_tokens=100.0,
        longest_prompt=70.0,
        turns=2.0,
        processes=4.0,
    )

    assert {name: work_of(earlier, amounts)[name] for name in found} == {name: job.work for name, job in found.items()}
    assert (4.0, 2.0) == (found["distill"].work.workers, found["generate"].work.workers)


def test_parameters_are_those_of_the_same_draft(runs: _Runs) -> None:
    runs.add("r1", _config(), {"pair": {"draft_parameters": 6e8}})

    assert 6e8 == runs.found().draft_parameters
    runs.planned["draft"] = OutsideInput("other")
    assert runs.found().draft_parameters is None


def test_small_runs_go_before_earlier_ones(runs: _Runs) -> None:
    runs.add("r1", _config(), {"pair": {"draft_parameters": 6e8}, "corpus": CORPUS})
    known = runs.found()
    assert known.lengths is not None
    small = replace(known.lengths, source="two small runs")

    assert known == earlier_runs.with_small_runs(known, None, None, None)
    assert ("two small runs", 5e8) == (
        earlier_runs.with_small_runs(known, small, 5e8, None).lengths.source,  # type: ignore[union-attr]
        earlier_runs.with_small_runs(known, small, 5e8, None).draft_parameters,
    )


def _model(digest: str, shape: str = "", tokenizer: str = "") -> OutsideInput:
    return OutsideInput(digest, "/a/target", {"shape": shape, "tokenizer": tokenizer})


@pytest.mark.parametrize(
    ("earlier", "planned", "jobs", "prompt_tokens", "completion_tokens"),
    [
        ({}, {}, True, 50.0, 100.0),
        # Another pair of the same name: its prompts have other lengths, and its passes take another time.
        ({"target": _model("a"), "prompts_0": OutsideInput("p")}, {"target": _model("b")}, False, None, None),
        ({"target": _model("a", "s", "t")}, {"target": _model("b", "other", "t")}, False, None, None),
        (
            {"target": _model("a")},
            {"target": _model("b")},
            False,
            None,
            None,
        ),  # of an earlier version: nothing is known
        # Fine-tuned: as fast, and the same prompts; how long its answers are is not known.
        ({"target": _model("a", "s", "t")}, {"target": _model("b", "s", "t")}, True, 50.0, None),
        ({"target": _model("a", "s", "t")}, {"target": _model("b", "s", "u")}, True, None, None),
        # Other prompts, or others beside.
        ({"prompts_0": OutsideInput("p")}, {}, True, None, None),
        ({"prompts_1": OutsideInput("p")}, {}, True, None, None),
        # Targets on servers are told by their tokenizer.
        ({"tokenizer": OutsideInput("k")}, {"tokenizer": OutsideInput("k"), "target": _model("x")}, True, 50.0, 100.0),
        ({"tokenizer": OutsideInput("k")}, {"tokenizer": OutsideInput("l")}, False, None, None),
        ({}, {"tokenizer": OutsideInput("l")}, False, None, None),
    ],
)
def test_a_run_of_other_content_is_not_taken_for_its_name(
    runs: _Runs,
    earlier: dict[str, OutsideInput],
    planned: dict[str, OutsideInput],
    jobs: bool,
    prompt_tokens: float | None,
    completion_tokens: float | None,
) -> None:
    """Two pairs in directories called `target` have configs of one name."""
    runs.add("r1", _config(), {"corpus": CORPUS, "generate": GENERATED}, **earlier)
    runs.planned |= planned
    found = runs.found()
    lengths = found.lengths

    assert jobs == ("generate" in found.jobs)
    assert (prompt_tokens, completion_tokens) == (
        (None, None) if lengths is None else (lengths.prompt_tokens, lengths.completion_tokens)
    )
