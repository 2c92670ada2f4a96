"""docs/examples/watch_and_retrain.py, the loop without Airflow, against a stand-in for the command."""

import fcntl
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs" / "examples" / "watch_and_retrain.py"
DRIFT = {"drift": "low", "since": "2026-11-20T08:00:00Z", "message": "acceptance is below what it should be"}
STAND_IN = """#!{python} -S
import json, os, sys
place = os.path.dirname(os.path.abspath(__file__))
with open(place + "/calls", "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
with open(place + "/answers") as stream:
    code, said = json.load(stream).get(sys.argv[1] if sys.argv[1] != "champion" else "verify", [0, None])
if "--json" in sys.argv:
    print(json.dumps(said, indent=1))
print("warning: a replica is down\\nunderstudy: the last line", file=sys.stderr)
sys.exit(code)
"""

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="runs in a checkout")


def _ended(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """It needs the standard library only."""
    call = [sys.executable, "-S", str(PROGRAM), "/c.yaml", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, cwd=place, check=False)


def loop(place: Path, answers: Mapping[str, tuple[int, Any]], *options: str) -> tuple[int, str, list[list[str]]]:
    """The exit code, what was printed, and the calls of the command."""
    command = place / "understudy"
    command.write_text(STAND_IN.format(python=sys.executable))
    command.chmod(0o755)
    (place / "answers").write_text(json.dumps(dict(answers)))
    (place / "calls").unlink(missing_ok=True)
    (place / "s").mkdir(exist_ok=True)
    ended = _ended(place, "--store", "s", "--executable", str(command), *options)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout, [json.loads(line) for line in (place / "calls").read_text().splitlines()]


def _run(
    hours: float, state: str = "finished", name: str = "drift-20261119T070000Z-20261119T071000Z"
) -> dict[str, str]:
    """An entry of `understudy runs --json`, started so many hours ago."""
    return {"run": name, "state": state, "started": f"{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"}


@pytest.mark.parametrize("code", [0, 2])
def test_without_a_drift_nothing_is_retrained(tmp_path: Path, code: int) -> None:
    """The exit code is that of the watch."""
    ended, _, calls = loop(tmp_path, {"watch": (code, {})})
    assert (code, [["watch", "--once", "--json", "--for-retraining", "--store=s", "--", "/c.yaml"]]) == (ended, calls)


@pytest.mark.parametrize("runs", [[], [_run(80), _run(7, "failed"), _run(1, name="20261120-0300")]])
def test_a_drift_is_retrained_since_the_change_and_verified(tmp_path: Path, runs: list[dict[str, str]]) -> None:
    """The run's id says that a drift started it; runs before the cool-down, and others, do not count."""
    ended, _, calls = loop(tmp_path, {"watch": (3, DRIFT), "runs": (0, runs)})
    assert ended == 0
    run, verify = calls[2:]
    assert ["run", "--set=corpus.since=2026-11-20T08:00:00Z", "--store=s", "--", "/c.yaml"] == [run[0], *run[2:]]
    assert run[1].startswith("--run=drift-20261120T080000Z-")
    assert ["champion", "verify", "--store=s", "--", "/c.yaml"] == verify


def test_a_drift_starts_one_retraining(tmp_path: Path) -> None:
    """The next look within the cool-down says which run is for it."""
    for hours, state in ((71, "finished"), (5, "failed")):
        runs = [_run(100), _run(hours, state)]
        ended, said, calls = loop(tmp_path, {"watch": (3, DRIFT), "runs": (0, runs)})
        assert (0, ["watch", "runs"]) == (ended, [call[0] for call in calls])
        assert f"({state}) is for this drift; the next one starts after" in said


def test_an_interrupted_retraining_is_continued(tmp_path: Path) -> None:
    """With the id and the time that it had."""
    _, _, calls = loop(tmp_path, {"watch": (3, DRIFT), "runs": (0, [_run(1, "interrupted")])})
    options = ["--run=drift-20261119T070000Z-20261119T071000Z", "--set=corpus.since=2026-11-19T07:00:00Z"]
    assert ["run", *options, "--store=s", "--", "/c.yaml"] == calls[2]


@pytest.mark.parametrize(
    ("answers", "ends", "last"),
    [
        ({"run": (3, None)}, 3, "run"),
        ({"run": (1, None)}, 1, "run"),
        ({"verify": (3, None)}, 3, "champion"),
        ({"watch": (3, DRIFT | {"drift": "high"})}, 3, "watch"),
        ({"runs": (1, None)}, 1, "runs"),
    ],
)
def test_the_first_step_that_does_not_succeed_ends_it(
    tmp_path: Path, answers: dict[str, tuple[int, Any]], ends: int, last: str
) -> None:
    """A refusal, a failure, engines that are not as examined, and an acceptance that is too high."""
    ended, _, calls = loop(tmp_path, {"watch": (3, DRIFT), "runs": (0, [])} | answers)
    assert (ends, last) == (ended, calls[-1][0])


def test_a_scheduled_retraining_asks_no_watch(tmp_path: Path) -> None:
    """With `--now`."""
    ended, _, calls = loop(tmp_path, {}, "--now")
    assert (0, [["run", "--store=s", "--", "/c.yaml"], ["champion", "verify", "--store=s", "--", "/c.yaml"]]) == (
        ended,
        calls,
    )


def test_a_look_ends_at_once_while_another_one_is_at_work(tmp_path: Path) -> None:
    """A retraining takes hours, and a look comes every five minutes."""
    (tmp_path / "s").mkdir()
    with (tmp_path / "s" / ".loop").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ended = _ended(tmp_path, "--store", "s", "--executable", "/no/such")
        assert (0, "another one is at work on this store: it retrains, or looks\n", "") == (
            ended.returncode,
            ended.stdout,
            ended.stderr,
        )


def test_a_retraining_waits_for_a_look(tmp_path: Path) -> None:
    """Both begin at 03:00: the retraining of the week is not skipped for it."""
    (tmp_path / "s").mkdir()
    words = [sys.executable, str(PROGRAM), "/c.yaml", "--store", "s", "--executable", "/no/such", "--now"]
    with (tmp_path / "s" / ".loop").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    assert "--executable /no/such: No such file or directory" in process.communicate(timeout=60)[1]


def test_what_is_mistyped_is_one_line(tmp_path: Path) -> None:
    """A store that is not there is not made: the watch would learn anew in it."""
    ended = _ended(tmp_path, "--store", "s")
    assert (1, "--store s: No such file or directory\n") == (ended.returncode, ended.stderr)
    (tmp_path / "s").mkdir()
    ended = _ended(tmp_path, "--store", "s", "--executable", "/no/such")
    line = "--executable /no/such: No such file or directory; name the path of `understudy`\n"
    assert (1, line) == (ended.returncode, ended.stderr)


def test_cron_mails_no_drift_that_is_being_retrained(tmp_path: Path) -> None:
    """Nothing but warnings on standard error for the 72 hours; an acceptance that is too high is there."""
    for drift, runs, code, said in (
        ("low", [_run(1)], 0, "warning: a replica is down\nwarning: a replica is down\nunderstudy: the last line\n"),
        ("high", [], 3, f"warning: a replica is down\n{DRIFT['message']}\n"),
    ):
        loop(tmp_path, {"watch": (3, DRIFT | {"drift": drift}), "runs": (0, runs)})
        ended = _ended(tmp_path, "--store", "s", "--executable", str(tmp_path / "understudy"))
        assert (code, said) == (ended.returncode, ended.stderr)
