"""The smoke loop, run once through the real command, and copies of its store for tests that go on from there.

Everything here sees the product from outside: a command line, its exit code, what it prints, the files it leaves. Most commands
run inside the test's own process (`in_process.py`); a process of its own is started where a test needs one.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.running.stage_list import STAGE_NAMES
from pipeline.store import worker_processes
from tests import shared_cache
from tests.integration import in_process
from tests.integration.forked_worker import ForkedWorker

SMOKE = Path(__file__).resolve().parents[2] / "configs" / "smoke.yaml"
NOBODY = "http://127.0.0.1:1"  # a tracking server that is not there: also saves making a database
RUN = "first"  # the id of the run that made the smoke store
_ENDED = "ended.json"
_TIMED = {
    "step_times.json": ("plain", "rounds"),
    "decision.json": ("speed", "warnings"),
}  # by file: keys that hold measured seconds
_RENDERINGS = ("draft_lengths.png", "latency.png")  # of a decision
JOBS = (
    "pair",
    "corpus",
    "generate",
    "generate/before",
    "distill",
    "quantize/int8",
    "quantize/int4",
    "evaluate/base-before",
    "evaluate/base",
    "evaluate/candidate",
    "evaluate/int8",
    "evaluate/int4",
    "evaluate/prompt-lookup",
    "speed/base",
    "speed/candidate",
    "gate",
    "promote",
)
# Those that the first run builds: the candidate has the base draft's shape, and so its step times.
BUILT = tuple(job for job in JOBS if job != "speed/candidate")
# With a champion, which the candidate is then compared with instead of the base draft.
JOBS_WITH_CHAMPION = (
    *(job if job != "speed/base" else "speed/champion" for job in JOBS),
    "evaluate/champion",
)
_FOREIGN = ("MLFLOW_", "UNDERSTUDY_", "HF_", "XDG_", "GITHUB_", "COLUMNS", "FORCE_COLOR")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
HEAVY = ("torch", "transformers", "trl", "datasets", "bitsandbytes", "mlflow")
_SPY = f"""
import json, sys
from pipeline.cli import main
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
except BaseException:
    import traceback
    code = traceback.format_exc()
print("\\n" + json.dumps({{"code": code, "imported": [name for name in {HEAVY!r} if name in sys.modules]}}))
"""


@dataclass(frozen=True)
class Ended:
    """What a finished command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that says why it ended; fails where there is none, more than one, or a traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("understudy: ")]
        assert ("Traceback" not in self.err, 1) == (True, len(lines)), self.err
        return lines[0].removeprefix("understudy: ")

    @property
    def states(self) -> dict[str, str]:
        """Job -> `done` or `skipped`, from the lines of progress."""
        found = {}
        for line in self.err.splitlines():
            job, _, rest = line.partition(": ")
            if job in {*JOBS, *JOBS_WITH_CHAMPION} and rest.split(" ")[0] in ("done", "skipped"):
                found[job] = rest.split(" ")[0]
        return found


def command_line() -> list[str]:
    """The installed console script, beside this interpreter; its entry point where there is no script."""
    script = Path(sys.executable).with_name("understudy")
    return [str(script)] if script.exists() else [sys.executable, "-m", "understudy_cli"]


@dataclass(frozen=True)
class Place:
    """A store, and an empty directory and an empty home to call the command from. No network but this machine's."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def cwd(self) -> Path:
        return self.root / "cwd"

    def prepare(self) -> "Place":
        for name in ("cwd", "home"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        return self

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*_FOREIGN, *_PROXIES))}
        closed = dict.fromkeys(_PROXIES, "http://127.0.0.1:9")  # a call to any hub fails instead of going out
        here = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
        own = {"HOME": str(self.root / "home"), "XDG_CACHE_HOME": str(shared_cache.COMPILED)}
        return kept | closed | here | own | extra

    def _line(self, arguments: tuple[object, ...], store: bool) -> list[str]:
        return [*map(str, arguments), *(["--store", str(self.store)] if store else [])]

    def start(self, *arguments: object, store: bool = True, **extra: str) -> subprocess.Popen[str]:
        """The command, begun; SIGINT does what it does in a terminal even where our own caller ignores it."""
        return subprocess.Popen(
            [*command_line(), *self._line(arguments, store)],
            cwd=self.cwd,
            env=self.environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def forked(self, *arguments: object, store: bool = True, **extra: str) -> in_process.Forked:
        """As `start`, for commands at the same time; forked from this process, which saves the seconds of its imports."""
        return in_process.Forked(self._line(arguments, store), self.cwd, self.environment(**extra))

    def understudy(self, *arguments: object, store: bool = True, **extra: str) -> Ended:
        """The command, run to its end inside this process; on this place's store unless told not to."""
        return Ended(*in_process.call(self._line(arguments, store), self.cwd, self.environment(**extra)))

    def process(self, *arguments: object, store: bool = True, **extra: str) -> Ended:
        """The installed command in a process of its own, for what depends on one; seconds more than `understudy`."""
        process = self.start(*arguments, store=store, **extra)
        out, err = process.communicate(timeout=600)
        return Ended(process.returncode, out, err)

    def spied(self, *arguments: object, store: bool = True) -> tuple[Ended, int, list[str]]:
        """The command inside a process that tells, at its end, the exit code and which heavy libraries it imported."""
        line = [sys.executable, "-c", _SPY, *self._line(arguments, store)]
        ended = subprocess.run(
            line, cwd=self.cwd, env=self.environment(), capture_output=True, text=True, timeout=600, check=False
        )
        verdict = json.loads(ended.stdout.splitlines()[-1])
        return Ended(ended.returncode, ended.stdout, ended.stderr), verdict["code"], verdict["imported"]

    def record(self, run: str) -> dict[str, Any]:
        return dict(json.loads((self.store / "runs" / run / "run.json").read_text()))

    def records(self) -> list[dict[str, Any]]:
        """All run records, the latest last."""
        found = [json.loads(path.read_text()) for path in (self.store / "runs").glob("*/run.json")]
        return sorted(found, key=lambda record: (record["created"], record["id"]))

    def keys(self, run: str) -> dict[str, str]:
        return {job: entry["key"] for job, entry in self.record(run)["jobs"].items()}

    def artifact(self, job: str, run: str = RUN) -> Path:
        entry = self.record(run)["jobs"][job]
        return self.store / "artifacts" / f"{entry['stage']}-{entry['key']}"

    def committed(self) -> dict[str, tuple[int, int]]:
        """Every committed artifact: its directory's inode and the mtime of its manifest; both change if it is rebuilt."""
        return {
            path.parent.name: (path.parent.stat().st_ino, path.stat().st_mtime_ns)
            for path in (self.store / "artifacts").glob("*/manifest.json")
        }

    def contents(self) -> dict[str, dict[str, str]]:
        """SHA-256 of every file of every committed artifact, by its directory. Measured seconds and dates are left
        out: those in an examination and in a decision, and the renderings of a decision."""
        return {
            path.parent.name: {
                name: _timeless_sha256(path.parent / name, entry["sha256"])
                for name, entry in json.loads(path.read_text())["files"].items()
            }
            for path in (self.store / "artifacts").glob("*/manifest.json")
        }

    def registry(self) -> dict[str, Any]:
        """The registered models of the store's own database: versions, aliases and tags by name."""
        uri = f"file:{self.store}/mlflow/mlflow.db?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            found: dict[str, Any] = {
                name: {"versions": {}, "aliases": {}, "tags": {}}
                for (name,) in database.execute("SELECT name FROM registered_models")
            }
            for name, version in database.execute("SELECT name, version FROM model_versions"):
                found[name]["versions"][str(version)] = {}
            for name, version, key, value in database.execute(
                "SELECT name, version, key, value FROM model_version_tags"
            ):
                found[name]["versions"][str(version)][key] = value
            for name, alias, version in database.execute("SELECT name, alias, version FROM registered_model_aliases"):
                found[name]["aliases"][alias] = str(version)
            for name, key, value in database.execute("SELECT name, key, value FROM registered_model_tags"):
                found[name]["tags"][key] = value
        return found

    def champion(self) -> str | None:
        """The version on stage, of the smoke config's registry entry."""
        return self.registry().get("reference-draft", {"aliases": {}})["aliases"].get("champion")


def _timeless_sha256(path: Path, sha256: str) -> str:
    """`sha256` of an artifact's file, or that of its JSON without what depends on the clock."""
    if path.name in _RENDERINGS:
        return ""
    if path.name not in _TIMED:
        return sha256
    found = json.loads(path.read_text())
    for name in _TIMED[path.name]:
        found.pop(name, None)
    found.get("provenance", {}).pop("completions_made_at", None)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def copy_place(source: Place, root: Path) -> Place:
    """A copy of a store, as a user would make it."""
    place = Place(root).prepare()
    shutil.copytree(source.store, place.store, symlinks=True)
    return place


@dataclass(frozen=True)
class Smoke:
    """The one run that all tests share. Never changed: tests that go on from it take a copy."""

    place: Place
    ended: Ended


@pytest.fixture(scope="session")
def smoke() -> Iterator[Smoke]:
    """`understudy run configs/smoke.yaml` into a fresh store, once for this code (`shared_cache`): in a process of its own, so
    that nothing here has a file of it open. The installed command makes the same, byte for byte (`tests/e2e`)."""
    place = Place(shared_cache.entry("smoke", _run_smoke))
    before = _sizes_and_times(place.store)
    yield Smoke(place, Ended(**json.loads((place.root / _ENDED).read_text())))
    changed = sorted({path for path, _ in before.items() ^ _sizes_and_times(place.store).items()})
    if changed:
        shutil.rmtree(place.root)
        pytest.fail(f"a test changed the shared smoke store ({changed}); let it take a copy (the fixture `loop`)")


def _run_smoke(root: Path) -> None:
    for name in STAGE_NAMES:  # here, because the process is forked: what it imported would have to be imported again
        importlib.import_module(f"stages.{name}")
    import mlflow.tracking  # noqa: F401

    import pipeline.distillation.trainer
    import pipeline.quantization.variants  # noqa: F401

    process = Place(root).prepare().forked("run", SMOKE, "--run", RUN)
    out, err = process.communicate(timeout=600)
    ended = Ended(process.returncode or 0, out, err)
    assert 0 == ended.code, ended.err
    (root / _ENDED).write_text(json.dumps(dataclasses.asdict(ended)))


def _sizes_and_times(store: Path) -> dict[str, tuple[int, int]]:
    """Of all files that say something. Locks do only while another worker holds them."""
    files = (path for path in store.rglob("*") if path.is_file() and path.parent.name != "locks")
    found = {path: stat for path in files if (stat := path.stat()).st_size}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A fresh store; whatever was done, nothing may lie in the directory it was called from."""
    fresh = Place(tmp_path / "place").prepare()
    yield fresh
    assert [] == list(fresh.cwd.iterdir())


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import nothing: on a CPU they can be forked. What they are sent is pickled all the same."""
    monkeypatch.setattr(worker_processes, "_start", ForkedWorker)


@pytest.fixture
def first_worker_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `forked_workers`, but for the first, which is started as for a user."""
    starts = iter([worker_processes._start])
    monkeypatch.setattr(worker_processes, "_start", lambda *given: next(starts, ForkedWorker)(*given))


@pytest.fixture
def loop(smoke: Smoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A copy of the smoke store, to go on from; whatever was done, nothing may lie in the directory it was called from. Pages of
    commands inside this process have no charts, which take half a second; that of the smoke run has."""
    monkeypatch.setattr("pipeline.review.page._charts", lambda decision, names: [])
    copied = copy_place(smoke.place, tmp_path / "loop")
    yield copied
    assert [] == list(copied.cwd.iterdir())


def replace_bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Alter a file and put its mtime back, as a bad disk or a careless tool would."""
    stat = path.stat()
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def rename_token(path: Path) -> None:
    """Give the last merged token another spelling, in the vocabulary and where the merge that makes it stands."""
    tokenizer = json.loads(path.read_text())
    model = tokenizer["model"]
    left, right = model["merges"].pop()
    last = model["vocab"].pop(left + right)
    model["vocab"]["~understudy~"] = last
    path.write_text(json.dumps(tokenizer))
