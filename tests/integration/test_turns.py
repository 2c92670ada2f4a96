"""Chats regenerated turn by turn, through the real command."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import yaml

from pipeline.generation.completion_store import StoredCompletion, read_completions
from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke


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


def test_each_question_follows_the_targets_own_answer(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Three turns, each prompt beginning with the one before, whose answer had ended; why others went no further is counted."""
    config = _config(smoke, tmp_path)
    ended = place.understudy("run", config, "--until", "generate", "--run", "chats", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    artifact = place.artifact("generate", "chats")
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    turns = [list(read_completions(artifact, shards=prefix)) for prefix in ("shard-", "turn-002-", "turn-003-")]

    assert 3 == figures["turns"]
    assert len(turns[0]) > len(turns[1]) > len(turns[2]) > 10
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
