"""Chats regenerated turn by turn, through the real command."""

import json
import os
import shutil
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from pipeline.generation.completion_store import StoredCompletion, read_completions
from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke, copy_place
from tests.integration.in_process import Forked
from tests.integration.test_execution import completions, shard_times

RUN = ("--until", "generate", "--run", "chats")
SECOND_TURN = "turn-002-"  # begins the names of its shards


class Chats(NamedTuple):
    """A store with a run up to the completions of chats, made by one process."""

    config: Path
    place: Place


def _config(smoke: Smoke, tmp_path: Path) -> Path:
    """The smoke target with many stop tokens, so that its answers end, and chats of three questions."""
    pair = smoke.place.artifact("pair")
    shutil.copytree(pair / "target", tmp_path / "target")
    settings = json.loads((tmp_path / "target" / "generation_config.json").read_text())
    settings["eos_token_id"] = list(range(40))
    (tmp_path / "target" / "generation_config.json").write_text(json.dumps(settings))
    words = [
        json.loads(line)["prompt"].split()[0][:12] for line in (pair / "prompts.jsonl").read_text().splitlines()[:60]
    ]
    rows = [
        {
            "messages": [
                {"role": role, "content": f"{word} {number} {place}"}
                for place in range(3)
                for role in ("user", "assistant")
            ],
            "domain": "chat",
        }
        for number, word in enumerate(words)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = yaml.safe_load(SMOKE.read_text())
    config["pair"] = {"target": {"source": str(tmp_path / "target")}, "draft": {"source": str(pair / "draft")}}
    config["corpus"] = {
        "sources": [{"path": str(tmp_path / "chats.jsonl"), "every_turn": True}],
        "near_duplicate_threshold": 1.0,
    }
    config["generate"] |= {"lookahead": 0, "shard": 16}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "config.yaml"


@pytest.fixture(scope="module")
def chats(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> Chats:
    root = tmp_path_factory.mktemp("chats")
    made = Chats(_config(smoke, root), Place(root / "place").prepare())
    ended = made.place.understudy("run", made.config, *RUN, MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    return made


@pytest.fixture
def unanswered(chats: Chats, tmp_path: Path) -> Place:
    """A copy of the store without completions."""
    place = copy_place(chats.place, tmp_path / "unanswered")
    for path in (place.store / "artifacts").glob("generate-*"):
        shutil.rmtree(path)
    return place


def test_each_question_follows_the_targets_own_answer(chats: Chats) -> None:
    """Three turns, each prompt beginning with the one before, whose answer had ended; why others went no further is counted."""
    artifact = chats.place.artifact("generate", "chats")
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    turns = [list(read_completions(artifact, shards=prefix)) for prefix in ("shard-", "turn-002-", "turn-003-")]

    assert 3 == figures["turns"]
    assert len(turns[0]) > len(turns[1]) >= len(turns[2]) > 10
    assert sum(map(len, turns)) == figures["completions"]
    assert len(turns[0]) - len(turns[2]) == figures["chats_cut"] + figures["chats_too_long"] + figures["chats_refused"]
    for earlier, later in pairwise(turns):
        for item in later:
            assert any(_goes_on(before, item) for before in earlier)


def _goes_on(before: StoredCompletion, item: StoredCompletion) -> bool:
    """Whether `item` was asked after `before` was answered: the same conversation, split and sampling."""
    begun = before.prompt.tolist()
    return (
        before.stopped
        and (before.conversation, before.split, before.sampling) == (item.conversation, item.split, item.sampling)
        and before.text_id != item.text_id
        and item.prompt[: len(begun)].tolist() == begun
    )


def killed_in_second_turn(place: Place, command: "subprocess.Popen[str] | Forked", workers: str) -> dict[str, int]:
    """SIGKILL for one of two workers of a command, known by words of their command lines, while both make shards of the second
    turn. Returns the shards of the first turn with their times, once the command has ended without an error."""
    own = list[int]()
    while len(list((place.store / "parts").glob(f"*.{SECOND_TURN}*.claim"))) < 2:
        assert command.poll() is None
        own = own if len(own) > 1 else _descendants(command.pid, workers)
        time.sleep(0.001)
    os.kill(own[-1], signal.SIGKILL)
    made = {name: at for name, at in shard_times(place, "work").items() if SECOND_TURN not in name}
    _, said = command.communicate(timeout=600)
    assert 0 == command.returncode, said
    assert [f"while it made {SECOND_TURN}" in line for line in said.splitlines() if "is made again" in line] == [True]
    return made


def _descendants(pid: int, words: str) -> list[int]:
    """The processes that a process has started, or that these have, by words of their command lines."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    table = [
        (int(child), int(parent), line) for child, parent, line in (row.split(None, 2) for row in found.splitlines())
    ]
    family, before = {pid}, 0
    while before < len(family):
        before = len(family)
        family |= {child for child, parent, _ in table if parent in family}
    return [
        child
        for child, _, line in table
        if child in family - {pid} and words in line and "resource_tracker" not in line
    ]


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_is_killed_in_the_second_turn_changes_no_byte(chats: Chats, unanswered: Place) -> None:
    """Of two processes; what was made before is not made again."""
    two = unanswered.forked("run", chats.config, *RUN, "--set", "execution.local=2", MLFLOW_TRACKING_URI=NOBODY)
    made = killed_in_second_turn(unanswered, two, "")

    assert completions(chats.place) == completions(unanswered)
    kept = shard_times(unanswered, "artifacts")
    assert made == {name: kept[name] for name in made} != {}


def test_tasks_are_repeated_for_each_turn(chats: Chats, unanswered: Place) -> None:
    """Two shares, one after the other: each ends with the first turn of which shards of the other are missing. The command that
    commits has nothing left to make."""
    said = []
    for shards in ("1/2", "2/2", "1/2", "2/2"):
        ended = unanswered.understudy("stage", "generate", chats.config, "--run", "chats", "--shards", shards)
        assert 0 == ended.code, ended.err
        said.append(ended.err.splitlines()[-1])
    made = shard_times(unanswered, "work")
    whole = unanswered.understudy("stage", "generate", chats.config, "--run", "chats", MLFLOW_TRACKING_URI=NOBODY)

    assert [True, True, True, False] == [line.endswith("not there yet") for line in said], said
    assert "generate: shards 2/2 are there" == said[-1]
    assert 0 == whole.code, whole.err
    assert completions(chats.place) == completions(unanswered)
    assert made == shard_times(unanswered, "artifacts") != {}
