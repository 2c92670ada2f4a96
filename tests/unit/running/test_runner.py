"""The runner with stand-in stages: find or build, record, refuse, survive."""

import json
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.config.stored import given_config, run_config
from pipeline.drafts import loading
from pipeline.errors import BrokenDraft, Refused, RegistryUnavailable, UnderstudyError, UsageError
from pipeline.progress import Progress
from pipeline.registry.drafts import Proposed, RegisteredDraft, TargetIdentity
from pipeline.running import begin as begin_module
from pipeline.running import inputs as inputs_module
from pipeline.running import job_inputs as job_inputs_module
from pipeline.running import runner as runner_module
from pipeline.running.begin import begin, join
from pipeline.running.context import Outcome, StageContext
from pipeline.running.parts import Share, kept_parts
from pipeline.running.runner import Runner
from pipeline.running.share_run import ShareRun
from pipeline.running.stage_list import STAGE_NAMES
from pipeline.store.artifacts import Store
from pipeline.store.atomic import temporary_name
from pipeline.store.files import content_key, write_json
from pipeline.store.processes import own_tag, signs
from pipeline.store.runs import GC_LOCK, RunRecord, list_runs, load_run, require_run, run_directory, run_lock
from pipeline.store.times import utc_now
from tests.pairs import pair_facts
from tests.unit.latency.costs.test_latency_profile import PROFILE

CONFIG = Path(__file__).parents[3] / "configs" / "smoke.yaml"


@cache
def _config(*overrides: str) -> Config:
    return load_config(CONFIG, overrides)


class _Registry:
    """Stands in for MLflow; `answer` is the champion or an error."""

    answer: RegisteredDraft | Exception | None = None
    overdue: Proposed | None = None
    name = "the-draft"

    def champion(self) -> RegisteredDraft | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def holder(self) -> RegisteredDraft | None:
        return self.champion()

    def drop_overdue(self) -> Proposed | None:
        return self.overdue

    def champion_at(self, version: str) -> RegisteredDraft:
        assert isinstance(self.answer, RegisteredDraft)
        return self.answer

    def fetch(self, draft: RegisteredDraft, into: Path) -> Path:
        return into


class _Tracker:
    def __init__(self, *_: Any) -> None: ...

    def sync(self, record: RunRecord) -> bool:
        return True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "_World":
    registry = _Registry()
    for module in (job_inputs_module, begin_module):
        monkeypatch.setattr(module, "registry_for", lambda config, store: registry)
    monkeypatch.setattr(runner_module, "Tracker", _Tracker)
    monkeypatch.setattr(inputs_module, "text_digest", lambda library, megabytes: "text")
    monkeypatch.setattr(inputs_module, "library_stamp", lambda library: "stamp")
    monkeypatch.setattr(begin_module, "_check_before_paying", lambda *_: None)  # its models and prompts are stand-ins
    return _World(tmp_path, registry)


class _World:
    """A store, and stand-in stages that record their calls."""

    def __init__(self, root: Path, registry: _Registry) -> None:
        self.store, self.registry, self.calls = Store(root / "store"), registry, []  # type: ignore[var-annotated]
        self.verdict, self.even_if_refused = "promote", False
        self.domains: dict[str, dict[str, int]] = {}
        self.facts = pair_facts()
        self.during: dict[str, Callable[[StageContext[Any]], None]] = {}
        self.stages = {name: self._stage(name) for name in STAGE_NAMES}

    def _stage(self, name: str) -> Callable[[StageContext[Any]], Outcome]:
        def run(context: StageContext[Any]) -> Outcome:
            self.calls.append(context.job_id)
            (context.out / "file").write_text(name)
            if name == "pair":
                write_json(context.out / "pair.json", self.facts)
                (context.out / "tokenizer").mkdir()
                (context.out / "tokenizer/tokenizer.json").write_text("{}")
            self.during.get(name, lambda context: None)(context)
            names = ("target", "draft", "target_before", "tokenizer", "prompts", "shared")
            provides = {part: f"{context.job_id}:{part}" for part in names}
            if name == "corpus":
                return Outcome({"n": 1.0}, provides, notes={"domains": self.domains})
            if name == "gate":
                refused = "refused: because" if self.verdict == "refuse" else ""
                return Outcome({"n": 1.0}, provides, refused=refused, decision={"verdict": self.verdict})
            return Outcome({"n": 1.0}, provides)

        return run

    def begin(self, *overrides: str, run_id: str | None = None, verify: bool = False) -> RunRecord:
        return begin(_config(*overrides), self.store, run_id, Progress(False), verify, self.even_if_refused)

    def run(self, *overrides: str, first: str = "pair", last: str = "promote", run_id: str | None = None) -> RunRecord:
        record = self.begin(*overrides, run_id=run_id)
        self.runner(record).run(first, last)
        return record

    def runner(self, record: RunRecord, verify: bool = False) -> Runner:
        return Runner(
            self.store, record, Progress(False), self.stages, _page, verify, even_if_refused=self.even_if_refused
        )


def _page(record: RunRecord, gate: Path) -> str:
    """The page of a run names its config and the decision's artifact."""
    assert record.resolved is not None
    return f"{record.resolved['name']} {gate.name} {'promoted' if 'promote' in record.jobs else ''}"


def _raises(error: BaseException) -> Callable[[StageContext[Any]], None]:
    """What happens during a stage."""

    def fail(context: StageContext[Any]) -> None:
        raise error

    return fail


def test_a_run_builds_every_job_once_and_says_so(world: _World) -> None:
    """All jobs run in order, and the record on disk has an entry for each. The next run builds nothing again; promote runs."""
    record = world.run()
    assert list(record.jobs) == world.calls
    stored = require_run(world.store, record.id)
    assert ("finished", "promote") == (stored.state, stored.decision["verdict"])  # type: ignore[index]

    world.calls.clear()
    again = world.run()
    assert ["promote"] == world.calls
    assert {"skipped"} == {entry.state for job, entry in again.jobs.items() if job != "promote"}


def test_a_decision_is_not_found_again_once_completions_are_of_another_age(world: _World) -> None:
    """A refusal that rests on `max_examination_days` ends with the old completions, and a pass ends when they have become old."""
    asked = ("gate.max_examination_days=30",)
    record = world.run(*asked)
    manifest = world.store.directory("generate", record.jobs["generate"].key) / "manifest.json"
    keys = []
    for created in ("2020-01-01T00:00:00Z", utc_now(), utc_now(), "2020-01-01T00:00:00Z"):
        write_json(manifest, {**json.loads(manifest.read_text()), "created": created})
        keys.append(world.run(*asked).jobs["gate"].key)

    assert keys[0] == keys[3] != keys[1] == keys[2]


def test_a_gpu_that_is_not_there_is_found_before_anything_is_built(world: _World) -> None:
    """Not after the corpus is read. Stages that compute nothing run without it, and so do artifacts that are in the store."""
    gone, untimed = "device=cuda:977", "evaluate.speed.turns=0"  # step times are of the device that is asked for
    with pytest.raises(UsageError, match="device = 'cuda:977' cannot be used here"):
        world.run(gone)
    assert [] == world.calls
    world.run(untimed, last="evaluate")
    world.calls.clear()
    begun = world.run(gone, untimed, last="evaluate").id
    assert "promote" in world.run(gone, untimed, run_id=begun, first="gate").jobs


def test_step_times_are_of_the_machine_that_measures(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a scheduler run on several machines: one before the measurement decides nothing, nor does one after it."""
    for threads, first, last in (("1", "pair", "evaluate"), ("2", "speed", "speed"), ("3", "gate", "promote")):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        record = world.run(run_id="r", first=first, last=last)
    assert ("2", "finished") == (record.outside["machine"].facts["threads"], record.state)


def test_step_times_of_one_run_are_of_one_machine(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a task ended between two measurements, the machine that goes on makes both."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    record = world.run(run_id="r", last="speed")
    timed = [job for job in record.jobs if job.startswith("speed/")]
    written = run_directory(world.store, "r") / "run.json"
    kept = json.loads(written.read_text())
    del kept["jobs"][timed[-1]]
    written.write_text(json.dumps(kept))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    record = world.run(run_id="r", first="speed")
    assert ("2", "finished") == (record.outside["machine"].facts["threads"], record.state)
    assert timed == [job for job in record.jobs if job.startswith("speed/")]


def test_a_manifest_has_inputs_task_and_files(world: _World) -> None:
    """Inputs, task, settings, versions and files are in the manifest, tasks in the record too."""
    record = world.run()
    manifest = json.loads((world.store.directory("distill", record.jobs["distill"].key) / "manifest.json").read_text())
    assert {
        "draft": "pair:draft",
        "shared": "pair:shared",
        "completions": record.jobs["generate"].key,
    } == manifest["inputs"]
    assert {"file"} == set(manifest["files"])
    roles = [job.task.get("role") for job in record.jobs.values() if job.task.get("kind") in ("plain", "prompt-lookup")]
    assert ["base", "base", "candidate", "candidate", "candidate", None] == roles
    variant = json.loads(
        (world.store.directory("quantize", record.jobs["quantize/int4"].key) / "manifest.json").read_text()
    )
    assert [{"variant": "int4"}] * 2 == [variant["task"], variant["settings"]["task"]]
    assert {"python", "torch", "git"} <= set(manifest["environment"])
    assert manifest["environment"]["device"].startswith("cpu")  # equal bytes are promised within a class of devices


def test_a_default_variant_that_the_pair_cannot_have_is_left_out(
    world: _World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the pair is in the store already; named by the user it is an error before any prompt is read."""
    world.facts["impossible_variants"] = {"int4": "q_proj has 172 inputs"}
    for _ in range(2):
        record = world.run()
        assert ["quantize/int8"] == [job for job in record.jobs if job.startswith("quantize")]
        assert "evaluate/int4" not in record.jobs
        assert "quantize: int4 is left out: q_proj has 172 inputs\n" in capsys.readouterr().err
    world.calls.clear()
    with pytest.raises(UsageError, match=r"172 inputs; remove int4 from quantize\.variants"):
        world.run("quantize.variants=[int4]")
    assert [] == world.calls


def test_a_refusal_stops_before_promote_and_is_remembered(world: _World) -> None:
    """Nothing is promoted, also when the refusal is read from the store, or by a scheduler that calls promote alone. The run has
    a page: refusals are what people review first."""
    world.verdict = "refuse"
    for first in ("pair", "pair", "promote"):
        with pytest.raises(Refused, match="because"):
            world.run(run_id="r", first=first)
    assert 0 == world.calls.count("promote")
    assert 1 == world.calls.count("gate")
    assert (world.store.runs / "r" / "review.html").read_text().startswith("smoke gate-")


def test_a_run_appears_when_nothing_is_being_deleted(world: _World, capsys: pytest.CaptureFixture[str]) -> None:
    """`store gc` decides what no run needs: until it is done a run waits, and says so; afterwards it is known to be running."""
    with ThreadPoolExecutor(1) as pool:
        with world.store.lock(GC_LOCK):
            begun = pool.submit(world.begin, run_id="r")
            for _ in range(1000):
                if "waiting" in (said := capsys.readouterr().err):
                    break
                time.sleep(0.01)
            unseen = load_run(world.store, "r")
        record = begun.result(10)
    world.during["corpus"] = lambda context: held.append(world.store.is_locked(run_lock("r")))
    held: list[bool] = []
    world.runner(record).run()

    assert re.fullmatch(rf"`store gc` is running \(process {os.getpid()} on .*\); waiting\n", said)
    assert unseen is None
    assert ([True], False) == (held, world.store.is_locked(run_lock("r")))


def test_the_next_run_says_that_nobody_approved_the_last_draft(
    world: _World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run looks up the champion as it begins; also one that ends before the gate, and a promote stage alone."""
    world.registry.overdue = Proposed(
        version="4", approve_before="2026-11-01", rolled_back="", challenger="4", champion="1"
    )
    for first, last in (("pair", "corpus"), ("pair", "speed"), ("gate", "gate"), ("promote", "promote")):
        world.run(run_id="r", first=first, last=last)
        assert (
            "the-draft version 4: nobody approved it before 2026-11-01; it is refused and no longer challenger\n"
            in capsys.readouterr().err
        )


def test_stages_before_and_after_those_that_are_asked_for_are_not_run(world: _World) -> None:
    """--from needs what precedes it; after --until the run is `stopped`."""
    with pytest.raises(UsageError, match="pair is not in"):
        world.run(first="distill")
    assert [] == world.calls
    record = world.run(last="corpus")
    assert (["pair", "corpus"], "stopped") == (world.calls, record.state)


def test_stages_one_by_one_build_what_one_run_builds(world: _World) -> None:
    """A scheduler's tasks and `run` share keys."""
    whole = world.run()
    for stage in STAGE_NAMES:
        record = world.run(first=stage, last=stage, run_id="by-stage")
    assert {job: entry.key for job, entry in whole.jobs.items()} == {
        job: entry.key for job, entry in record.jobs.items()
    }


def test_a_failed_stage_leaves_no_artifact_and_a_failed_record(
    world: _World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its job is once in front of the failure, though errors of a stage often begin with its name already. The next run builds it
    again, from an empty directory if the stage cannot resume."""
    for error in ("corpus: no luck", "no luck"):
        world.during["corpus"] = _raises(UnderstudyError(error))
        with pytest.raises(UnderstudyError, match="no luck"):
            world.run(run_id="r")
        record = require_run(world.store, "r")
        assert ("failed", "corpus: no luck") == (record.state, record.failure)
        assert "corpus: failed" == capsys.readouterr().err.splitlines()[-1]
    world.during.clear()
    assert "finished" == world.run().state


def test_a_manifest_says_that_its_seconds_are_of_the_last_part(world: _World) -> None:
    """Of a stage that goes on from a killed run's files; one that begins again has all of its time."""
    for stage in ("corpus", "generate"):
        world.during[stage] = _raises(UnderstudyError("killed"))
        with pytest.raises(UnderstudyError):
            world.run(run_id="r")
        world.during.clear()
    record = world.run(run_id="r")
    manifests = {job: world.store.find(one.stage, one.key) for job, one in record.jobs.items() if job != "promote"}

    assert {"generate"} == {job for job, artifact in manifests.items() if artifact and artifact.manifest.resumed}


def test_an_interrupted_run_says_so(world: _World) -> None:
    """The record of a run stopped by Ctrl-C is `interrupted`."""
    world.during["generate"] = _raises(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.run(run_id="r")
    assert "interrupted" == require_run(world.store, "r").state


def test_an_input_altered_between_two_stages_is_found_before_it_is_read(world: _World) -> None:
    """Every artifact is hashed before a stage reads it."""
    record = world.run(last="corpus")
    path = world.store.directory("corpus", record.jobs["corpus"].key) / "file"
    stat = path.stat()
    path.write_text("corpuS")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # so that a look at size and mtime alone finds nothing
    with pytest.raises(UnderstudyError, match=str(path)):
        world.run()


def test_verify_hashes_what_a_skip_does_not(world: _World) -> None:
    """--verify finds a changed file with unchanged size and mtime."""
    record = world.run()
    path = world.store.directory("corpus", record.jobs["corpus"].key) / "file"  # promote does not read this one
    stat = path.stat()
    path.write_text("corpuS")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    world.runner(world.begin()).run()
    with pytest.raises(UnderstudyError, match="altered"):
        world.runner(world.begin(), verify=True).run()


def test_a_run_id_belongs_to_one_config(world: _World) -> None:
    """Continuing a run with another config is an error."""
    world.run(run_id="r")
    with pytest.raises(UsageError, match=r"exists with another config \(seed\)"):
        world.begin("seed=7", run_id="r")


def test_a_record_may_write_a_default_out(world: _World) -> None:
    """As an earlier version did: it is the same config."""
    world.run(run_id="r")
    path = run_directory(world.store, "r") / "run.json"
    record = json.loads(path.read_text())
    record["config"]["distill"]["unrolled_steps"] = 3
    path.write_text(json.dumps(record))
    world.begin(run_id="r")


def test_a_run_may_go_on_with_other_resources(world: _World) -> None:
    """Where it works is no part of what it is; its record says where it works now."""
    world.run(last="corpus", run_id="r")
    world.begin("execution.local=4", "distill.processes=2", run_id="r")
    record = require_run(world.store, "r")
    assert (4, 2) == (record.config["execution"]["local"], record.config["distill"]["processes"])
    assert "r" == join(_config(), world.store, "r").id


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """Overrides for models, prompts and a profile of the user's own, in `tmp_path`."""
    for role in ("target", "draft"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text("{}")
        (tmp_path / role / "model.safetensors").write_text(f"weights of {role}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE.json()))
    return (
        *(f"pair.{role}.source={tmp_path / role}" for role in ("target", "draft")),
        f"corpus.sources=[{{path: {tmp_path / 'prompts.jsonl'}}}]",
        f"gate.profile={{unquantized: {tmp_path / 'profile.json'}}}",
        "gate.load={requests_per_second: 1}",
        "evaluate.gamma=2",
    )


def _replace(path: Path) -> None:
    """Another content of the same size, with the old mtime."""
    stat, text = path.stat(), path.read_text()
    old, new = {"prompts.jsonl": ('"a"', '"b"'), "profile.json": ("here", "HERE")}.get(
        path.name, ("weights", "Weights")
    )
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


OWN_FILES = [
    ("corpus", "prompts.jsonl"),
    ("pair", "target/model.safetensors"),
    ("generate", "target/model.safetensors"),
    ("distill", "draft/model.safetensors"),
    ("evaluate", "target/model.safetensors"),
    ("gate", "profile.json"),
]


@pytest.mark.parametrize(("stage", "file"), OWN_FILES)
def test_an_input_that_changes_while_it_is_read_is_refused(
    world: _World, own: tuple[str, ...], tmp_path: Path, stage: str, file: str
) -> None:
    """Nothing is stored under the key of the old file, and nothing is left to resume from."""
    world.during[stage] = lambda context: _replace(tmp_path / file)
    with pytest.raises(UsageError, match=rf"^{stage}.*: while it was running, \w+ .* has changed since this run began"):
        world.run(*own)
    for place in ("artifacts", "work"):
        assert [] == list((world.store.root / place).glob(f"{stage}-*"))


@pytest.mark.parametrize(("stage", "file"), OWN_FILES[:3])  # the others are checked as these are
def test_an_input_that_changed_before_it_is_read_is_refused(
    world: _World, own: tuple[str, ...], tmp_path: Path, stage: str, file: str
) -> None:
    """The stage that would read it does not start."""
    before = [name for name in STAGE_NAMES if name != stage]
    last = before[STAGE_NAMES.index(stage) - 1] if stage != "pair" else "pair"
    record = world.begin(*own, run_id="r")
    if stage != "pair":
        world.runner(record).run(last=last)
    world.calls.clear()
    _replace(tmp_path / file)
    with pytest.raises(UsageError, match="has changed since this run began; start a new run"):
        world.runner(record).run()
    assert [] == world.calls


@pytest.mark.parametrize(("stage", "file"), [OWN_FILES[0], OWN_FILES[1], OWN_FILES[-1]])
def test_a_replaced_input_is_another_input(
    world: _World, own: tuple[str, ...], tmp_path: Path, stage: str, file: str
) -> None:
    """Also with the size and mtime of the old one, as a retuned target copied with its times has."""
    world.run(*own)
    world.calls.clear()
    _replace(tmp_path / file)
    world.run(*own)
    assert stage in {job.partition("/")[0] for job in world.calls}


def test_remembered_digests_are_not_trusted_to_verify(world: _World, own: tuple[str, ...]) -> None:
    """`--verify` hashes the inputs, here against a remembered digest that is wrong."""
    digest = world.begin(*own).outside["prompts_0"].digest
    path = world.store.root / "digests.json"
    path.write_text(path.read_text().replace(digest, "0" * len(digest)))
    assert "0" * len(digest) == world.begin(*own).outside["prompts_0"].digest
    assert digest == world.begin(*own, verify=True).outside["prompts_0"].digest


def test_a_run_that_continues_reads_the_same_files(world: _World, own: tuple[str, ...], tmp_path: Path) -> None:
    """A run that is begun again with another target is refused."""
    world.begin(*own, run_id="r")
    world.begin(*own, run_id="r")
    _replace(tmp_path / "target/model.safetensors")
    with pytest.raises(UsageError, match=r"target .* has changed since this run began"):
        world.begin(*own, run_id="r")


def test_a_log_may_grow_while_a_run_goes_on(world: _World, own: tuple[str, ...], tmp_path: Path) -> None:
    """Stages in processes of their own: until the corpus stage is done a run takes the prompts as they are; then it has them."""
    world.begin(*own, run_id="r")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "b"}')
    world.runner(world.begin(*own, run_id="r")).run(last="corpus")
    prompts.write_text('{"prompt": "c"}')
    world.calls.clear()
    world.runner(world.begin(*own, run_id="r")).run()
    assert "corpus" not in {job.partition("/")[0] for job in world.calls}
    assert "gate" in world.calls


def test_a_registry_that_does_not_answer_stops_at_the_gate(world: _World) -> None:
    """Everything up to evaluate is done and kept; without the champion the gate does not decide."""
    world.registry.answer = RegistryUnavailable("http://nowhere does not answer")
    with pytest.raises(RegistryUnavailable, match="the gate cannot decide"):
        world.run(run_id="r")
    assert "evaluate/candidate" in world.calls
    assert "gate" not in world.calls
    world.registry.answer = None
    world.calls.clear()
    assert "finished" == world.run(run_id="r").state
    assert ["gate", "promote"] == world.calls


def test_the_champion_is_examined_and_pinned(world: _World) -> None:
    """A champion adds its examination, and the gate reads it."""
    same = TargetIdentity(place="reference", tokenizer=content_key({"tokenizer.json": sha256(b"{}").hexdigest()}))
    world.registry.answer = RegisteredDraft(name="d", version="3", digest="digest", change=1, target=same)
    record = world.run()
    assert "evaluate/champion" in world.calls
    assert {"name": "d", "version": "3", "shape": ""} == record.outside["champion"].facts


def test_the_page_of_a_reused_decision_shows_its_own_runs_config(world: _World) -> None:
    """A decision may be another run's; the page belongs to the run, and is written again when the draft is promoted."""
    first, second = world.run(run_id="a"), world.run("name=renamed", run_id="b")
    pages = [(world.store.runs / record.id / "review.html").read_text() for record in (first, second)]
    gate = world.store.directory("gate", first.jobs["gate"].key).name

    assert ("skipped", 1) == (second.jobs["gate"].state, world.calls.count("gate"))
    assert [f"smoke {gate} promoted", f"renamed {gate} promoted"] == pages


def test_a_record_has_the_config_as_given_and_as_resolved(world: _World) -> None:
    """What the pair decides is stored once it is known; a run that goes on is compared with what was given."""
    world.facts["impossible_variants"] = {"int4": "narrow"}
    begun = world.begin(run_id="r")
    record = world.run(run_id="r")
    stored = require_run(world.store, "r")

    assert (None, None) == (begun.resolved, record.config["quantize"]["variants"])
    assert ("int8",) == run_config(stored).quantize.variants
    assert None is given_config(stored).quantize.variants


def test_a_domain_that_is_too_small_stops_the_run_after_the_corpus(
    world: _World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the corpus is in the store already, under another rule of the gate; not where the stage was not asked for. The
    corpus is done: it is not said to have failed."""
    world.domains = {"code": {"train": 9, "dev": 1, "examination": 39}}
    world.run("gate.min_prompts_per_domain=39", last="corpus")
    for _ in range(2):
        with pytest.raises(UsageError, match="domain 'code' has 39 examination prompts and the gate needs 40"):
            world.run("gate.min_prompts_per_domain=40", last="generate", run_id="r")
        assert capsys.readouterr().err.splitlines()[-1].startswith("corpus: skipped")
        assert require_run(world.store, "r").failure.startswith("corpus: domain 'code'")
    assert ["pair", "corpus"] == world.calls
    world.run("gate.min_prompts_per_domain=40", first="generate", last="generate")
    assert "generate" in world.calls


def test_a_run_that_was_told_to_go_on_is_warned_only(world: _World, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures may be wanted all the same."""
    world.domains = {"code": {"train": 9, "dev": 1, "examination": 3}}
    world.even_if_refused = True
    world.run()
    assert "warning: corpus: domain 'code' has 3 examination prompts" in capsys.readouterr().err
    assert "gate" in world.calls


@pytest.mark.parametrize("built", [False, True])
def test_prompts_are_read_before_a_pair_is_built_and_not_again(
    world: _World, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    """With the pair in the store the corpus stage comes at once. A run that cannot work leaves no record."""

    def refuse(*_: Any) -> None:
        raise UsageError("no prompts")

    if built:
        world.run(last="pair")
    monkeypatch.setattr(begin_module, "_check_before_paying", refuse)
    if built:
        assert "finished" == world.run(run_id="r").state
    else:
        with pytest.raises(UsageError, match="no prompts"):
            world.run(run_id="r")
        assert (None, []) == (load_run(world.store, "r"), world.calls)


def test_a_config_that_the_gate_must_refuse_is_not_begun(world: _World) -> None:
    """Nothing was run, so nothing is recorded."""
    with pytest.raises(UsageError, match=r"evaluate\.crosscheck_prompts = 0 .* --even-if-refused"):
        world.run("evaluate.crosscheck_prompts=0", run_id="r")
    assert (None, []) == (load_run(world.store, "r"), world.calls)
    world.even_if_refused = True
    assert "finished" == world.run("evaluate.crosscheck_prompts=0", run_id="r").state


def test_a_share_of_a_domain_that_is_not_there_stops_before_generation(world: _World) -> None:
    """An error after hours of generation would come too late."""
    world.domains = {
        "code": {"train": 9, "dev": 1, "examination": 90},
        "chat": {"train": 0, "dev": 0, "examination": 90},
    }
    with pytest.raises(UsageError, match="no train prompt has domain 'chat'; domains are code"):
        world.run("distill.domain_shares={chat: 0.5}")
    assert ["pair", "corpus"] == world.calls


def test_a_killed_run_is_closed_by_the_next_one(world: _World, capsys: pytest.CaptureFixture[str]) -> None:
    """Its record says `interrupted`, since its last sign of life; the run that closes it, and one at work, are left alone."""
    seen: list[str | None] = []

    def within(context: StageContext[Any]) -> None:
        world.begin(run_id="second")
        seen.extend(found and found.state for found in (load_run(world.store, name) for name in ("first", "second")))

    world.during["corpus"] = within
    world.run(run_id="first", last="corpus")
    killed = require_run(world.store, "first")
    killed.state = "running"  # as SIGKILL leaves it
    killed.save(world.store)
    begun = run_directory(world.store, "first") / "run.json"
    os.utime(begun, (1_600_000_000,) * 2)
    sign = begun.with_name(".process.0123456789ab-1-1")  # of another machine, long ago
    sign.touch()
    half = begun.with_name(temporary_name(begun).name.replace(own_tag(), "0123456789ab-1-1"))
    half.touch()
    for path in (sign, half):
        os.utime(path, (1_700_000_000,) * 2)
    world.during.clear()
    world.run(run_id="third")
    closed = require_run(world.store, "first")

    assert ["running", "running"] == seen
    assert ("interrupted", "2023-11-14T22:13:20Z", 1_700_000_000) == (closed.state, closed.ended, begun.stat().st_mtime)
    assert (False, False) == (sign.exists(), half.exists())
    assert "run first was killed at 2023-11-14T22:13:20Z: closed as interrupted\n" in capsys.readouterr().err


def test_the_latest_run_is_the_latest_though_the_clock_was_set_back(
    world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an hour between two runs, and within one: it does not end before it began. A run that is dated years ahead is not
    followed."""
    clock = [1_800_000_000.0]
    monkeypatch.setattr("pipeline.store.times.time.time", lambda: clock[0])

    def set_back(context: StageContext[Any]) -> None:
        clock[0] -= 3600

    world.during["corpus"] = set_back
    world.run(run_id="z-first")
    second = world.run(run_id="a-second")
    assert (["z-first", "a-second"], "a-second") == (list_runs(world.store), require_run(world.store, None).id)
    assert second.created <= second.ended
    clock[0] += 40 * 365 * 86400
    world.begin(run_id="of-the-future")
    clock[0] -= 40 * 365 * 86400
    assert world.begin(run_id="now").created < "2030"


@pytest.mark.parametrize(("then", "fails"), [("gone", True), ("another", False)])
def test_a_store_that_is_removed_in_mid_run_is_named(world: _World, then: str, fails: bool) -> None:
    """Not the file that is missing first; and nothing is written where it was, also if another directory is there now."""

    def remove(context: StageContext[Any]) -> None:
        world.store.root.rename(world.store.root.with_name("elsewhere"))
        if then == "another":
            context.out.mkdir(parents=True)
        if fails:
            raise UnderstudyError("pair.json: no such file")

    world.during["distill"] = remove
    with pytest.raises(UnderstudyError, match="was removed, moved or unmounted while the run was at work"):
        world.run()
    assert not world.store.runs.exists()
    assert "distill" == world.calls[-1]


def _share_run(world: _World, share: Share) -> ShareRun:
    record = require_run(world.store, "r")
    return ShareRun(world.store, record, Progress(False), world.stages["generate"], share)


def _share_of_the_stage(world: _World, missing: int) -> Callable[[StageContext[Any]], Outcome]:
    """A stage that notes its share."""

    def run(context: StageContext[Any]) -> Outcome:
        world.calls.append(f"{context.job_id} {context.share}")
        (context.out / f"part-{context.share.number}").touch()  # type: ignore[union-attr]
        return Outcome(notes={"missing": missing})

    return run


def test_a_share_is_made_in_every_job_of_the_stage(world: _World, capsys: pytest.CaptureFixture[str]) -> None:
    """In the directory that the stage itself goes on in; nothing is recorded, and nothing committed."""
    world.run(last="corpus", run_id="r")
    before = (run_directory(world.store, "r") / "run.json").read_bytes()
    world.calls.clear()
    world.stages["generate"] = _share_of_the_stage(world, missing=2)
    _share_run(world, Share(3, 4)).make("generate")

    assert ["generate 3/4", "generate/before 3/4"] == world.calls
    assert before == (run_directory(world.store, "r") / "run.json").read_bytes()
    assert 2 == len(list((world.store.root / "work").glob("generate-*/part-3")))
    assert "generate: shards 3/4 are there; 2 shards of other tasks are not there yet\n" in capsys.readouterr().err


def test_a_share_of_what_is_committed_is_nothing_to_do(world: _World, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it begins, and while it is being made: exit code 0, and the artifact stays as it is."""
    world.run(last="corpus", run_id="r")
    stage = world.stages["generate"]

    def committed(context: StageContext[Any]) -> Outcome:
        world.stages["generate"] = stage
        if context.out.exists():
            world.run(last="generate", run_id="r")
            kept_parts(world.store, context.out.name).mkdir(parents=True)  # as a part that ends late does
        (context.out / "late").touch()  # FileNotFoundError
        raise AssertionError

    world.stages["generate"] = committed
    _share_run(world, Share(1, 2)).make("generate")
    assert "generate: another process has committed it in the meantime\n" in capsys.readouterr().err
    assert [] == list(world.store.parts.iterdir())
    world.calls.clear()
    _share_run(world, Share(1, 2)).make("generate")

    assert "generate: already in the store\n" in capsys.readouterr().err
    assert [] == world.calls
    assert [] == list((world.store.root / "work").iterdir())


def test_a_share_of_a_target_that_changes_meanwhile_is_dropped(
    world: _World, own: tuple[str, ...], tmp_path: Path
) -> None:
    """As the stage itself does: its parts would be committed once the old file is back."""
    world.run(*own, last="corpus", run_id="r")
    stage = _share_of_the_stage(world, missing=0)
    world.stages["generate"] = lambda context: (stage(context), _replace(tmp_path / "target/model.safetensors"))[0]
    with pytest.raises(
        UsageError, match=r"^generate: while it was running, target .* has changed since this run began"
    ):
        _share_run(world, Share(1, 2)).make("generate")
    assert [] == list((world.store.root / "work").glob("generate-*"))


def test_a_share_joins_a_run_of_its_config(world: _World) -> None:
    """Or it would make parts of another artifact. It needs the stages before it, which are made once, by the run."""
    world.run(last="pair", run_id="r")
    with pytest.raises(UsageError, match="corpus is not in"):
        _share_run(world, Share(1, 2)).make("generate")
    with pytest.raises(UsageError, match="r: exists with another config"):
        join(_config("seed=9"), world.store, "r")
    with pytest.raises(UsageError, match="no such run"):
        join(_config(), world.store, "other")
    assert "r" == join(_config(), world.store, "r").id


def test_tasks_work_on_one_stage_at_the_same_time(world: _World) -> None:
    """Each leaves a sign, by which `store gc` sees that the run is worked on."""
    world.run(last="corpus", run_id="r")
    world.calls.clear()
    inner, ended = _share_of_the_stage(world, missing=0), list[bool]()

    def run(context: StageContext[Any]) -> Outcome:
        if context.share == Share(1, 2) and not ended:
            assert [own_tag()] == [sign.name[-len(own_tag()) :] for sign in signs(run_directory(world.store, "r"))]
            other = threading.Thread(target=_share_run(world, Share(2, 2)).make, args=("generate",), daemon=True)
            other.start()
            other.join(30)
            ended.append(not other.is_alive())
        return inner(context)

    world.stages["generate"] = run
    _share_run(world, Share(1, 2)).make("generate")
    assert [True] == ended
    assert {f"{job} {number}/2" for job in ("generate", "generate/before") for number in (1, 2)} == {*world.calls}


def test_a_file_that_is_not_there_is_no_commit_of_another(world: _World) -> None:
    """Of a model, say: the task fails, and its scheduler starts it again."""
    world.run(last="corpus", run_id="r")
    world.during["generate"] = _raises(FileNotFoundError("model.safetensors"))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        _share_run(world, Share(1, 2)).make("generate")


def test_a_share_is_not_begun_where_its_stage_would_not_be(world: _World, own: tuple[str, ...], tmp_path: Path) -> None:
    """Without the GPU that the config names, or with another target than the run began with."""
    world.run(*own, last="corpus", run_id="r")
    world.calls.clear()
    record = join(_config(*own, "device=cuda:977"), world.store, "r")
    share = ShareRun(world.store, record, Progress(False), world.stages["generate"], Share(1, 2))
    with pytest.raises(UsageError, match="device = 'cuda:977' cannot be used here"):
        share.make("generate")
    _replace(tmp_path / "target/model.safetensors")
    with pytest.raises(UsageError, match="has changed since this run began; start a new run"):
        _share_run(world, Share(1, 2)).make("generate")
    assert [] == world.calls


def test_a_share_is_of_the_config_that_the_earlier_stages_completed(world: _World) -> None:
    """What only the pair or the corpus decides is in the key of the stage: else a task makes parts of another artifact."""
    world.run(last="corpus", run_id="r")
    work = _share_of_the_stage(world, missing=0)
    world.stages["generate"] = work
    _share_run(world, Share(1, 2)).make("generate")
    made = {path.parent.name for path in (world.store.root / "work").glob("generate-*/part-1")}
    world.stages["generate"] = world._stage("generate")
    world.run(last="generate", run_id="r")

    assert made == {path.name for path in (world.store.root / "artifacts").glob("generate-*")}


def test_the_champion_of_another_target_stops_a_run_before_it_begins(world: _World) -> None:
    """Under a name that nobody chose. Nothing is recorded; a name in the config is the user's word that it is the same target."""
    other = TargetIdentity(place="/models/a/target", source="./target")
    world.registry.answer = RegisteredDraft(name="d", version="3", digest="digest", target=other)
    with pytest.raises(
        UsageError, match=r"version 3 is a draft of /models/a/target, .* is reference: .*set promote\.target_name"
    ):
        world.begin()
    assert [] == list_runs(world.store)
    assert world.begin("promote.target_name=mine").outside["champion"].digest == "digest"


@pytest.mark.parametrize("go_on", [False, True])
def test_a_champion_with_another_tokenizer_stops_a_run_after_the_pair(
    world: _World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, go_on: bool
) -> None:
    """Whatever the name says: nothing is generated that the gate would have to refuse, unless somebody asks for it."""
    (tmp_path / "tokenizer.json").write_text('{"other": 1}')
    monkeypatch.setattr(world.registry, "fetch", lambda draft, into: tmp_path)

    def lacking(*_: Any) -> None:
        raise BrokenDraft("draft and target have different tokenizers")

    monkeypatch.setattr(loading, "lacking_tokens", lacking)
    world.registry.answer = RegisteredDraft(name="d", version="3", digest="digest")
    world.even_if_refused = go_on
    if go_on:
        assert "finished" == world.run("promote.target_name=mine").state
        return
    with pytest.raises(
        UsageError, match=r"version 3, cannot be examined with this pair.*set promote\.target_name to another"
    ):
        world.run("promote.target_name=mine")
    assert ["pair"] == world.calls
