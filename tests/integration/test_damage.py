"""What happens to a store behind our back: altered, truncated and deleted files are found when read, and named."""

import json
import shutil
from pathlib import Path

from tests.integration.conftest import NOBODY, RUN, SMOKE, Place, replace_bytes

LATE = ("--set", "evaluate.crosscheck_prompts=1")  # makes every examination read its draft and its completions again


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _remedy(path: Path, artifact: Path, what: str) -> str:
    return f"{path} {what}; delete {artifact} and run again to rebuild it"


def test_flipped_byte_is_found_when_read(loop: Place) -> None:
    """One bit of the completions, size and time kept: the stage that reads them ends with exit 1 and the file's name."""
    artifact = loop.artifact("generate")
    path = artifact / "shard-00003.tokens.arrow"
    replace_bytes(path, _flip)
    ended = loop.understudy("run", SMOKE, *LATE, "--until", "evaluate", "--run", "late", MLFLOW_TRACKING_URI=NOBODY)
    assert 1 == ended.code, ended.err
    expected = _remedy(path, artifact, "was altered after it was written (its SHA-256 differs)")
    assert expected == ended.complaint
    assert "failed" == loop.record("late")["state"]


def test_flipped_byte_is_found_by_verify(loop: Place) -> None:
    """A run that reads nothing does not see it; `--verify` hashes everything and does. Deleted, it is rebuilt alike."""
    artifact = loop.artifact("evaluate/prompt-lookup")
    replace_bytes(artifact / "acceptance.json", _flip)
    unread = loop.understudy("run", SMOKE, "--until", "evaluate", MLFLOW_TRACKING_URI=NOBODY)
    verified = loop.understudy("run", SMOKE, "--until", "evaluate", "--verify", MLFLOW_TRACKING_URI=NOBODY)
    shutil.rmtree(artifact)
    rebuilt = loop.understudy(
        "run", SMOKE, "--until", "evaluate", "--verify", "--run", "rebuilt", MLFLOW_TRACKING_URI=NOBODY
    )
    assert (0, 1, 0) == (unread.code, verified.code, rebuilt.code), unread.err + rebuilt.err
    assert f"{artifact}/acceptance.json was altered after it was written" in verified.complaint
    assert ["evaluate/prompt-lookup"] == [job for job, state in rebuilt.states.items() if state == "done"]
    assert loop.keys(RUN)["evaluate/prompt-lookup"] == loop.keys("rebuilt")["evaluate/prompt-lookup"]


def test_a_wrong_digest_of_an_input_is_found_by_verify(loop: Place) -> None:
    """`--verify` hashes the inputs too, whatever the store remembers of them."""
    remembered = loop.store / "digests.json"
    known = {name: entry | {"sha256": "0" * 64} for name, entry in json.loads(remembered.read_text()).items()}
    remembered.write_text(json.dumps(known))
    ended = loop.understudy(
        "run", SMOKE, "--until", "pair", "--verify", "--run", "verified", MLFLOW_TRACKING_URI=NOBODY
    )

    assert 0 == ended.code, ended.err
    assert loop.record(RUN)["outside"]["reference_text"] == loop.record("verified")["outside"]["reference_text"]
    assert loop.keys(RUN)["pair"] == loop.keys("verified")["pair"]


def test_truncated_file_is_found_when_skipped(loop: Place) -> None:
    """A file that lost its end is found without hashing, before anything is built on it."""
    artifact = loop.artifact("distill")
    path = artifact / "draft" / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1000])
    ended = loop.understudy("run", SMOKE, MLFLOW_TRACKING_URI=NOBODY)
    assert 1 == ended.code, ended.err
    assert _remedy(path, artifact, f"has {size - 1000} bytes instead of {size}") == ended.complaint


def test_missing_file_is_found_when_skipped(loop: Place) -> None:
    """A deleted file is noticed."""
    artifact = loop.artifact("corpus")
    (artifact / "prompts.arrow").unlink()
    ended = loop.understudy("run", SMOKE, MLFLOW_TRACKING_URI=NOBODY)
    assert (1, _remedy(artifact / "prompts.arrow", artifact, "is missing")) == (ended.code, ended.complaint)


def test_deleted_manifest_is_found(loop: Place) -> None:
    """A directory without its manifest is neither taken for a result nor silently overwritten."""
    artifact = loop.artifact("generate/before")
    (artifact / "manifest.json").unlink()
    ended = loop.understudy("run", SMOKE, MLFLOW_TRACKING_URI=NOBODY)
    assert 1 == ended.code, ended.err
    assert f"{artifact} has no manifest.json, so it was changed; delete it and run again" == ended.complaint


def test_damaged_manifest_is_found(loop: Place) -> None:
    """A manifest that is not JSON any more is named."""
    path = loop.artifact("pair") / "manifest.json"
    path.write_text(path.read_text()[:100])
    ended = loop.understudy("run", SMOKE, MLFLOW_TRACKING_URI=NOBODY)
    assert 1 == ended.code, ended.err
    assert ended.complaint.startswith(f"{path}: damaged (")
    assert ended.complaint.endswith("delete it and run again")


def test_damaged_champion_is_found(loop: Place) -> None:
    """The registry's own copy of the champion, altered: the gate that needs it fails with exit 1 and names it."""
    (champion,) = (loop.store / "mlflow" / "artifacts").rglob("model.safetensors")
    replace_bytes(champion, _flip)
    ended = loop.understudy("run", SMOKE, "--run", "damaged")
    assert 1 == ended.code, ended.err
    assert f"{champion.parent}: not the files that were registered as reference-draft version 1" in ended.complaint


def test_touched_and_copied_stores_are_the_same_store(loop: Place) -> None:
    """New mtimes alone (a copy without them) damage nothing: what moved is hashed and found unchanged."""
    for path in (loop.store / "artifacts").rglob("*"):
        if path.is_file():
            path.touch()
    ended = loop.understudy("run", SMOKE, "--until", "evaluate", MLFLOW_TRACKING_URI=NOBODY)
    assert (0, {"skipped"}) == (ended.code, set(ended.states.values())), ended.err
