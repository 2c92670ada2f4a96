"""Which artifacts a run builds, and what makes their keys differ."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.config.tasks import EvaluateTask, GenerateTask, QuantizeTask, Task
from pipeline.judgement.schema import ChampionVersion
from pipeline.running.context import StageContext
from pipeline.running.jobs import Job, jobs_of
from pipeline.running.settings import Settings
from pipeline.running.stage_list import STAGE_NAMES

CHAMPION = ChampionVersion("smoke-draft", "3")
CONFIGS = Path(__file__).parents[3] / "configs"


def _config(*overrides: str, name: str = "smoke") -> Config:
    return load_config(CONFIGS / f"{name}.yaml", overrides)


def _keys(config: Config, champion: ChampionVersion | None = None) -> dict[str, str]:
    """The key of every job, with each job's provided digests standing in as functions of its key."""
    keys: dict[str, str] = {}
    for job in jobs_of(config, champion):
        digests = {}
        for role, reference in job.reads.items():
            source, _, name = reference.partition("#")
            digests[role] = reference if source == "outside" else f"{keys[source]}#{name}"
        keys[job.id] = job.key(digests)
    return keys


def test_a_decision_names_the_version_that_it_compared_with() -> None:
    """The same weights under another version number: they are not examined again, and the decision is made anew."""
    one, another = (_keys(_config(), champion) for champion in (CHAMPION, replace(CHAMPION, version="4")))
    assert {"gate", "promote"} == {job for job in one if one[job] != another[job]}


def _changed(*overrides: str) -> set[str]:
    before, after = _keys(_config()), _keys(_config(*overrides))
    return {job.partition("/")[0] for job in before if before[job] != after.get(job)}


def test_jobs_cover_every_stage_in_order() -> None:
    """Every stage has a job, and a job reads only from jobs before it."""
    jobs = jobs_of(_config(), CHAMPION)
    assert list(STAGE_NAMES) == list(dict.fromkeys(job.stage for job in jobs))
    seen = {"outside"}
    for job in jobs:
        assert {reference.partition("#")[0] for reference in job.reads.values()} <= seen
        seen.add(job.id)


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("distill.learning_rate=0.1", "distill"),
        ("evaluate.draft_sampling=greedy", "distill"),
        ("gate.min_gain=0.1", "gate"),
        ("generate.examination_samplings=[{temperature: 0.5}]", "generate"),
        ("seed=3", "pair"),
    ],
)
def test_a_change_reruns_its_stage_and_what_follows_only(override: str, first: str) -> None:
    """A job that does not depend on a setting keeps its key. Which stages know which setting: `test_key_leaves.py`."""
    changed = _changed(override) - {"promote"}
    upstream = set(STAGE_NAMES[: STAGE_NAMES.index(first)])
    assert first in changed
    assert set() == changed & upstream


def test_the_gate_depends_on_the_champion() -> None:
    """With another champion the gate runs again."""
    with_champion, without = _keys(_config(), CHAMPION), _keys(_config())
    assert with_champion["gate"] != without["gate"]
    assert with_champion["distill"] == without["distill"]


def test_a_candidate_that_became_champion_is_not_examined_again() -> None:
    """Neither the part nor the role enters an examination's key, only the draft's digest."""
    jobs = {job.id: job for job in jobs_of(_config(), CHAMPION)}
    digests = {"draft": "d", "completions": "c", "target": "t", "shared": "s"}
    assert jobs["evaluate/candidate"].key(digests) == jobs["evaluate/champion"].key(digests)


def _asked(task: Task) -> Any:
    return task.examination if isinstance(task, EvaluateTask) else task


def _job(task: Task, part: str = "") -> Job:
    settings = next(job.settings for job in jobs_of(_config()) if type(job.task) is type(task))
    return Job(stage="evaluate", part=part, task=task, settings=replace(settings, task=_asked(task)), reads={})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EvaluateTask(kind="plain", role="base"), EvaluateTask(kind="prompt-lookup")),
        (EvaluateTask(kind="plain", role="base"), EvaluateTask(kind="plain", role="base", split="dev")),
        (EvaluateTask(kind="plain", role="base"), EvaluateTask(kind="plain", role="base", target="target_before")),
        (GenerateTask(target="target", splits=("dev",)), GenerateTask(target="target_before", splits=("dev",))),
        (GenerateTask(target="target", splits=("dev",)), GenerateTask(target="target", splits=("train", "dev"))),
        (QuantizeTask(variant="int8"), QuantizeTask(variant="int4")),
    ],
)
def test_the_task_enters_the_key(one: Task, other: Task) -> None:
    """Two tasks of a stage have two artifacts; the part's name changes nothing."""
    assert _job(one).key({}) != _job(other).key({})
    assert _job(one, "a").key({}) == _job(one, "b").key({})


def test_every_artifact_of_a_stage_has_its_task() -> None:
    """The tasks of a run with two variants that compete, in order; stages with one artifact have none."""
    profiles = "gate.profile={unquantized: a.json, int8: b.json, int4: c.json}"
    jobs = jobs_of(_config(profiles, "gate.load={requests_per_second: 1}"), CHAMPION)
    roles = [
        (job.part, job.task.role, job.task.variant, job.task.split)
        for job in jobs
        if isinstance(job.task, EvaluateTask)
    ]
    assert [
        ("base-before", "base", None, "examination"),
        ("base", "base", None, "examination"),
        ("champion", "champion", None, "examination"),
        ("candidate", "candidate", "unquantized", "examination"),
        ("int8", "candidate", "int8", "examination"),
        ("int4", "candidate", "int4", "examination"),
        ("dev-candidate", "candidate", "unquantized", "dev"),
        ("dev-int8", "candidate", "int8", "dev"),
        ("dev-int4", "candidate", "int4", "dev"),
        ("prompt-lookup", None, None, "examination"),
    ] == roles
    assert {"generate", "quantize", "evaluate"} == {job.stage for job in jobs if job.task}
    targets = {job.part: job.task.target for job in jobs if isinstance(job.task, EvaluateTask | GenerateTask)}
    assert {"before", "base-before"} == {part for part, target in targets.items() if target == "target_before"}


def test_a_moved_prompt_file_is_the_same_file(tmp_path: Path) -> None:
    """The digest of a prompt file enters the key, its path does not."""
    common = ("pair.target.source=./t", "pair.draft.source=./d")
    one, other = (_keys(_config(*common, f"corpus.sources=[{{path: {tmp_path}/{name}.jsonl}}]")) for name in ("a", "b"))
    assert one == other


def test_training_on_the_drafts_own_text_reads_the_target() -> None:
    """On-policy rounds load the target, so it is among the inputs that are checked."""
    distill = next(job for job in jobs_of(_config("distill.on_policy.rounds=1")) if job.id == "distill")
    assert "pair#target" == distill.reads["target"]


def test_another_base_draft_does_not_repeat_the_completions() -> None:
    """generate depends on the target inside the pair artifact, not on the whole of it."""
    generate = next(job for job in jobs_of(_config()) if job.id == "generate")
    assert {"target": "pair#target", "shared": "pair#shared", "corpus": "corpus"} == dict(generate.reads)


def _other(value: Any) -> Any:
    """Another value of the same type; a section of the config with another number."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple | list):
        return (*value, "x")
    if isinstance(value, dict):
        return {**value, "x": 1}
    if isinstance(value, BaseModel):
        name = next(name for name in type(value).model_fields if isinstance(getattr(value, name), int | float))
        return value.model_copy(update={name: _other(getattr(value, name))})
    return replace(value, **{fields(value)[0].name: _other(getattr(value, fields(value)[0].name))})


@pytest.mark.parametrize("kind", get_args(Settings), ids=lambda kind: kind.__name__)
def test_everything_that_a_stage_reads_of_the_config_is_in_its_key(kind: Any) -> None:
    """Every field of a stage's settings changes the key."""
    job = next(job for job in jobs_of(_config()) if type(job.settings) is kind)
    key = job.key({})
    for field in fields(kind):
        changed = replace(job.settings, **{field.name: _other(getattr(job.settings, field.name))})
        assert key != replace(job, settings=changed).key({}), field.name


def test_every_stage_has_settings_of_its_own() -> None:
    """A stage gets them and resources, and no config."""
    kinds = {job.stage: type(job.settings) for job in jobs_of(_config(), CHAMPION)}
    assert list(get_args(Settings)) == [kinds[stage] for stage in STAGE_NAMES]
    assert {"settings", "resources"} <= {field.name for field in fields(StageContext)}
    assert "config" not in {field.name for field in fields(StageContext)}


_READS = """
from pipeline.judgement.schema import ChampionVersion
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import GateSettings

def run(context: StageContext[GateSettings]) -> Outcome:
    print(context.settings.gamma, context.resources.device)
    print({read})
    return Outcome()
"""


@pytest.mark.long
def test_a_stage_that_reads_anything_else_has_no_type(tmp_path: Path) -> None:
    """mypy refuses the whole config, settings of another stage, and what is in no key."""
    reads = {
        "context.settings.gamma": None,
        "context.config": '"StageContext[GateSettings]" has no attribute "config"',
        "context.settings.evaluate": '"GateSettings" has no attribute "evaluate"',
        "context.resources.seed": '"Resources" has no attribute "seed"',
    }
    paths = []
    for number, read in enumerate(reads):
        paths.append(tmp_path / f"snippet_{number}.py")
        paths[-1].write_text(_READS.format(read=read))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *paths],
        cwd=CONFIGS.parent,
        env={**os.environ, "MYPYPATH": str(CONFIGS.parent)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    lines = [line for line in found.splitlines() if "snippet_" in line]
    assert sorted(filter(None, reads.values())) == sorted(
        line.split("error: ")[1].split("  [")[0] for line in lines if "error: " in line
    )


def test_each_job_says_what_it_does() -> None:
    """In the words of its stage."""
    said = {job.id: job.summary for job in jobs_of(_config())}
    assert "teacher-forced acceptance, every draft length" == said["evaluate/candidate"]
    assert said["speed/candidate"].startswith("step times")
