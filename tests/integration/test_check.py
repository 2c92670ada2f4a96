"""`understudy check`: the regression check of CI, on the completions of the smoke run."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.drafts.directory import TrainedOn, trained_on
from pipeline.generation.completion_files import text_ids
from pipeline.generation.completion_store import read_shard
from pipeline.generation.segment_files import segment_file, write_segments
from pipeline.store.files import content_key
from tests.integration.conftest import RUN, SMOKE, Ended, Place, Smoke, rename_token, replace_bytes


@pytest.fixture(scope="module")
def baseline(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The baseline of the promoted draft. Nothing of this module writes to the store."""
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    return path, smoke.place.understudy(
        "check", "--draft", smoke.place.artifact("distill"), "--baseline", path, "--update-baseline"
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    """A baseline file as this version would have written it with this content."""
    head = {name: value for name, value in content.items() if name not in ("sha256", "prompts")}
    path.write_text(json.dumps({**content, "sha256": content_key([head, content["prompts"]])}))


def _check(place: Place, draft: Path, baseline: Path, *more: object) -> Ended:
    return place.understudy("check", RUN, "--draft", draft, "--baseline", baseline, *more)


def test_same_draft_is_no_regression(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """The draft against its own baseline: no difference at all, exit 0; the baseline says how many prompts it has. In a job of
    GitHub Actions the summary is written without an option."""
    path, written = baseline
    prompts = len(json.loads(path.read_text())["prompts"])
    command = ["check", RUN, "--draft", smoke.place.artifact("distill"), "--baseline", path]
    ended = smoke.place.understudy(*command, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert (0, f"baseline of {prompts} prompts written to {path}\n") == (written.code, written.out), written.err
    assert (0, "") == (ended.code, ended.err)
    assert "no regression: acceptance rate 0." in ended.out
    assert f"+0.00 points [+0.00, +0.00] over {prompts} prompts, margin 1" in ended.out
    power, line = ended.out.splitlines()
    assert "power not known: too few prompts, or both drafts accept the same on every prompt" == power
    assert f"    {line}\n" in (tmp_path / "summary.md").read_text()


def _files(tmp_path: Path) -> list[object]:
    """Options for all three files."""
    return ["--junit", tmp_path / "r.xml", "--summary", tmp_path / "r.md", "--json", tmp_path / "r.json"]


def _problems(tmp_path: Path) -> list[tuple[str, str | None]]:
    """Failures and errors of the JUnit file."""
    return [
        (one.tag, one.get("message")) for one in ET.parse(tmp_path / "r.xml").iter() if one.tag in ("failure", "error")
    ]


def test_noised_draft_is_a_regression(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """Noise on every weight costs acceptance: exit 3, both rates and the interval in one line."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "noised")
    weights = load_file(tmp_path / "noised" / "model.safetensors")
    chance = np.random.default_rng(7)
    noised = {
        name: (value + chance.normal(0, 2 * value.std() + 1e-3, value.shape)).astype(value.dtype)
        for name, value in weights.items()
    }
    save_file(noised, tmp_path / "noised" / "model.safetensors", metadata={"format": "pt"})
    ended = _check(smoke.place, tmp_path / "noised", baseline[0], *_files(tmp_path))
    found = json.loads((tmp_path / "r.json").read_text())
    assert 3 == ended.code, ended.err
    assert ended.complaint.startswith("regression: acceptance rate 0.")
    assert re.search(r"baseline 0\.\d{4}: -\d", ended.complaint)
    assert [("failure", ended.complaint)] == _problems(tmp_path)
    assert (3, ended.complaint) == (found["exit_code"], found["line"])
    assert {"modules", "tests"} == {one["domain"] for one in found["domains"]}
    assert ended.complaint in (tmp_path / "r.md").read_text()


def _labelled(smoke: Smoke, to: Path) -> Path:
    """A copy of the completions, in which every third token begins a tool call of one token."""
    shutil.copytree(smoke.place.artifact("generate"), to)
    manifest = json.loads((to / "manifest.json").read_text())
    for path in sorted(to.glob("*.completions.arrow")):
        shard = path.name.removesuffix(".completions.arrow")
        labels = np.concatenate([np.arange(len(item.tokens)) % 3 == 2 for item in read_shard(path)])
        write_segments(to, shard, ["answer", "tool_call"], labels.astype(np.uint8))
        written = segment_file(to, shard)
        manifest["files"][written.name] = {
            "size": written.stat().st_size,
            "mtime_ns": written.stat().st_mtime_ns,
            "sha256": hashlib.sha256(written.read_bytes()).hexdigest(),
        }
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


def test_a_segment_that_lost_is_a_regression(smoke: Smoke, tmp_path: Path) -> None:
    """The baseline's draft was worse over all tokens and better in tool calls: exit 3, and the segment is named, in every file.
    With a margin of 1 for segments the check passes."""
    completions, path = _labelled(smoke, tmp_path / "labelled"), tmp_path / "b.json"
    draft = smoke.place.artifact("distill")
    written = _check(smoke.place, draft, path, "--completions", completions, "--update-baseline")
    same = _check(smoke.place, draft, path, "--completions", completions)
    content = json.loads(path.read_text())
    for row in content["prompts"]:
        row["accepted"] *= 0.9
        if called := row["segments"].get("tool_call"):
            called["accepted"] = called["examined"]
    _write(path, content)
    ended = _check(smoke.place, draft, path, "--completions", completions, *_files(tmp_path))
    shown = _check(smoke.place, draft, path, "--completions", completions, "--segment-margin", "1")
    found = {one["segment"]: one for one in json.loads((tmp_path / "r.json").read_text())["segments"]}

    assert (0, 0, 3, 0) == (written.code, same.code, ended.code, shown.code), ended.err + shown.err
    assert ["segment 'answer' (6", "segment 'tool_call'"] == [line[:19] for line in same.out.splitlines()[1:3]]
    assert ended.complaint.startswith("regression: segment 'tool_call' (3")
    assert "; all tokens: acceptance rate 0." in ended.complaint
    assert (True, False) == (found["answer"]["passed"], found["tool_call"]["passed"])
    assert [("failure", ended.complaint.removeprefix("regression: ").partition("; all tokens")[0])] == _problems(
        tmp_path
    )
    assert "segment `tool_call`, 3" in (tmp_path / "r.md").read_text()
    assert "for information" in shown.out


def test_damaged_draft_is_a_regression(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """A draft of NaN cannot be examined: exit 3 like any draft that is worse."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "nan")
    replace_bytes(tmp_path / "nan" / "model.safetensors", lambda data: data[:-4096] + b"\xff" * 4096)
    ended = _check(smoke.place, tmp_path / "nan", baseline[0], *_files(tmp_path))

    assert 3 == ended.code, ended.err
    assert ended.complaint.startswith("regression: the draft returned NaN logits")
    assert [("error", ended.complaint)] == _problems(tmp_path)
    assert "refused" == json.loads((tmp_path / "r.json").read_text())["verdict"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--margin", "1"], "--margin 1: 100 points, with which every draft passes; 1 point is 0.01"),
        (["--baseline", "."], "--baseline .: a directory, not a file"),
        (["--baseline", ".", "--update-baseline"], "--baseline .: is a directory; name a file"),
        (
            ["--baseline", "no/b.json", "--update-baseline"],
            "--baseline no/b.json: no is not a directory; make it first",
        ),
    ],
)
def test_options_with_which_nothing_is_compared(
    smoke: Smoke, baseline: tuple[Path, Ended], options: list[str], complaint: str
) -> None:
    """Exit 2, before a model is loaded."""
    ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], *options)

    assert (2, complaint) == (ended.code, ended.complaint)


def test_baseline_of_other_conditions_is_refused(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """Figures of other settings are not compared: exit 2, and the settings that differ are named."""
    content = json.loads(baseline[0].read_text())
    content["conditions"] |= {"target_dtype": "bfloat16", "completions": "0"}
    _write(tmp_path / "other.json", content)
    ended = _check(smoke.place, smoke.place.artifact("distill"), tmp_path / "other.json", *_files(tmp_path))

    assert 2 == ended.code, ended.err
    assert [("error", ended.complaint)] == _problems(tmp_path)
    assert ended.complaint.startswith(
        f"--baseline {tmp_path}/other.json: made under other conditions (completions, target dtype); use the same"
    )


def test_no_store_is_needed(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """Completions, draft and baseline alone, copied to a place where there is neither a store nor a run; also for writing the
    baseline again, with the settings of the old one."""
    place = Place(tmp_path / "alone").prepare()
    for job in ("generate", "distill"):
        shutil.copytree(smoke.place.artifact(job), place.root / job)
    line = ["check", "--draft", place.root / "distill", "--completions", place.root / "generate", "--baseline"]
    found = place.understudy(*line, baseline[0], store=False)
    fresh = shutil.copy(baseline[0], place.root / "fresh.json")
    again = place.understudy(*line, fresh, "--update-baseline", store=False)

    assert (0, 0) == (found.code, again.code), found.err + again.err
    assert "no regression: acceptance rate 0." in found.out
    assert json.loads(baseline[0].read_text()) == json.loads(Path(fresh).read_text())
    assert [] == list(place.cwd.iterdir())


def test_a_new_baseline_takes_its_settings_from_a_run(smoke: Smoke, tmp_path: Path) -> None:
    """Without a run and without an old baseline nothing says how to examine."""
    line = ["--completions", smoke.place.artifact("generate"), "--update-baseline", "--baseline", tmp_path / "new.json"]
    ended = smoke.place.understudy("check", "--draft", smoke.place.artifact("distill"), *line)

    assert 2 == ended.code, ended.err
    assert (
        "takes its settings from a run; name it, and the --store that has it: understudy check latest"
        in ended.complaint
    )


def test_completions_of_another_target_are_refused(smoke: Smoke, baseline: tuple[Path, Ended]) -> None:
    """Completions of the target before its change: exit 2, and the target is among what differs."""
    other = smoke.place.artifact("generate/before")
    ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--completions", other)

    assert 2 == ended.code, ended.err
    assert "made under other conditions (completions, completions sha256, target); use the same" in ended.complaint


def test_altered_completions_are_refused(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """A shard that was altered is found by its hash; one whose manifest was made to agree, by the baseline's digest."""
    copied = shutil.copytree(smoke.place.artifact("generate"), tmp_path / "altered")
    shard = copied / "shard-00000.tokens.arrow"
    replace_bytes(shard, lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:])
    first = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--completions", copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["files"][shard.name]["sha256"] = hashlib.sha256(shard.read_bytes()).hexdigest()
    (copied / "manifest.json").write_text(json.dumps(manifest))
    second = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--completions", copied)

    assert (1, 2) == (first.code, second.code), first.err + second.err
    assert f"{shard} was altered after it was written" in first.complaint
    assert "made under other conditions (completions sha256); use the same" in second.complaint


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("dtype", "bfloat16", "target dtype"),
        ("sampling", {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, "sampling"),
    ],
)
def test_the_conditions_of_completions_are_read_from_them(
    smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path, key: str, value: object, named: str
) -> None:
    """Number format and sampling of the target are those in the manifest of the completions."""
    copied = shutil.copytree(smoke.place.artifact("generate"), tmp_path / "other")
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["settings"][key] = value
    (copied / "manifest.json").write_text(json.dumps(manifest))
    ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--completions", copied)

    assert 2 == ended.code, ended.err
    assert f"made under other conditions ({named}); use the same" in ended.complaint


def test_a_baseline_that_is_written_again_keeps_its_settings(
    smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path
) -> None:
    """Number format and examination are those of the old file, not the defaults."""
    content = json.loads(baseline[0].read_text())
    settings = {"convention": "transformers", "draft_sampling": "greedy", "max_gamma": 6, "confidence": 0.9}
    content["conditions"] |= {"dtype": "bfloat16", "evaluate": settings | {"batch_tokens": 4096}}
    content["prompts"] = []  # of 16 draft lengths
    _write(tmp_path / "again.json", content)
    line = ["--completions", smoke.place.artifact("generate"), "--baseline", tmp_path / "again.json"]
    ended = smoke.place.understudy("check", "--draft", smoke.place.artifact("distill"), *line, "--update-baseline")

    assert 0 == ended.code, ended.err
    assert content["conditions"] == json.loads((tmp_path / "again.json").read_text())["conditions"]


def test_a_directory_that_is_no_generate_artifact_is_named(smoke: Smoke, baseline: tuple[Path, Ended]) -> None:
    """Another artifact in its place is bad usage."""
    for other in (smoke.place.artifact("distill"), smoke.place.store):
        ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--completions", other)
        assert 2 == ended.code, ended.err
        assert ended.complaint.startswith(f"--completions {other}: not a generate artifact")


def test_a_draft_that_was_trained_on_the_prompts_is_refused(
    smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path
) -> None:
    """Prompts in the draft's `trained_on.json`, by tokens or by words, are left out, as in the gate; with none left there is no
    pass."""
    ids = sorted(row["id"] for row in json.loads(baseline[0].read_text())["prompts"])
    texts = text_ids(smoke.place.artifact("generate"), {"examination"})
    copied = shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "learnt")
    known = trained_on(copied)
    ends = []
    for learnt in (
        TrainedOn(frozenset(ids[:2]), frozenset(texts[name] for name in ids[2:5])),
        TrainedOn(frozenset(), texts=frozenset(texts[name] for name in ids)),
    ):
        (known | learnt).write(copied)
        ends.append(_check(smoke.place, copied, baseline[0]))

    assert [0, 3] == [ended.code for ended in ends], ends[0].err + ends[1].err
    assert "; 5 prompts left out, because a draft was trained on them" in ends[0].out
    assert f"over {len(ids) - 5} prompts" in ends[0].out
    assert f"inconclusive: a draft was trained on all of the {len(ids)} examination prompts" in ends[1].complaint


def test_another_class_of_machine_is_said(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """The comparison goes on, with a note."""
    content = json.loads(baseline[0].read_text())
    _write(tmp_path / "gpu.json", content | {"hardware": "cuda H200"})
    ended = _check(smoke.place, smoke.place.artifact("distill"), tmp_path / "gpu.json")

    assert 0 == ended.code, ended.err
    assert f"note: the baseline was measured on cuda H200, this machine is {content['hardware']}" in ended.out


def test_the_latest_run_is_one_that_has_completions(smoke: Smoke, baseline: tuple[Path, Ended], loop: Place) -> None:
    """A later run that ended before its completions is passed over."""
    later = loop.understudy("run", SMOKE, "--until", "pair", "--run", "later")
    ended = loop.understudy("check", "--draft", loop.artifact("distill"), "--baseline", baseline[0])

    assert (0, 0) == (later.code, ended.code), later.err + ended.err


def test_a_margin_is_a_share(smoke: Smoke, baseline: tuple[Path, Ended]) -> None:
    """A margin above 1 would pass every draft, and is refused."""
    ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--margin", 1.5)
    assert 2 == ended.code
    assert "Invalid value for '--margin'" in ended.err


def test_missing_baseline_is_bad_usage(smoke: Smoke, tmp_path: Path) -> None:
    """A missing baseline exits 2 before any model is loaded, and the error has the command that writes one."""
    path = tmp_path / "none.json"
    ended, code, imported = smoke.place.spied("check", "--draft", smoke.place.artifact("distill"), "--baseline", path)
    assert (2, []) == (code, imported), ended.err
    start = f"--baseline {path}: no such file; write it from the draft to compare with: "
    assert ended.complaint.startswith(start)
    command = shlex.split(ended.complaint.removeprefix(start))
    written = smoke.place.understudy(*command[1:], store=False)
    assert (0, True) == (written.code, path.is_file()), written.err


def test_a_file_that_cannot_be_written_is_bad_usage(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """It exits 2 before any model is loaded."""
    line = [
        "check",
        "--draft",
        smoke.place.artifact("distill"),
        "--baseline",
        baseline[0],
        "--junit",
        tmp_path / "no" / "r.xml",
    ]
    ended, code, imported = smoke.place.spied(*line)

    assert (2, []) == (code, imported), ended.err
    assert f"--junit {tmp_path}/no/r.xml: {tmp_path}/no is not a directory; make it first" == ended.complaint


def test_a_new_baseline_is_no_result(smoke: Smoke, tmp_path: Path) -> None:
    """Nothing is compared, so there is nothing for a file to say."""
    line = ["check", "--draft", smoke.place.artifact("distill"), "--baseline", tmp_path / "b.json", "--update-baseline"]
    ended = smoke.place.understudy(*line, "--json", tmp_path / "r.json")

    assert 2 == ended.code, ended.err
    assert "--json: --update-baseline compares nothing; leave the option out" == ended.complaint


def test_file_that_is_no_baseline_is_named(smoke: Smoke, tmp_path: Path) -> None:
    """A JSON file of another kind is an error."""
    (tmp_path / "other.json").write_text('{"schema": 99}')
    ended = _check(smoke.place, smoke.place.artifact("distill"), tmp_path / "other.json")
    assert 2 == ended.code, ended.err
    assert (
        f"{tmp_path}/other.json: a baseline of schema 99, and this version reads schema 5; "
        f"write it again with `understudy check --draft DRAFT --baseline {tmp_path}/other.json --update-baseline`"
    ) == ended.complaint


def test_draft_of_another_family_is_named(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """A draft whose tokenizer differs in one token is not examined: exit 2 and the token named."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "other")
    rename_token(tmp_path / "other" / "tokenizer.json")
    ended = _check(smoke.place, tmp_path / "other", baseline[0])
    assert 2 == ended.code, ended.err
    assert ended.complaint.startswith("draft and target have different tokenizers: token ")
    assert "choose a draft with the target's tokenizer" in ended.complaint


@pytest.mark.long
def test_the_pytest_plugin_calls_the_real_command(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """In a project that has a package `pipeline` of its own, which PYTHONPATH puts first: one test passes, and one fails with
    the command's line."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("raise SystemExit('the foreign pipeline')\n")
    shutil.copy(baseline[0], tmp_path / "baseline.json")
    (tmp_path / "test_draft.py").write_text(
        "def test_good(acceptance):\n    assert acceptance.not_worse_than('baseline.json').figures['difference']['prompts']\n"
        "def test_gone(acceptance):\n    assert acceptance.not_worse_than('gone.json')\n"
    )
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nunderstudy_draft = {smoke.place.artifact('distill')}\n"
        f"understudy_completions = {smoke.place.artifact('generate')}\n"
    )
    environment = smoke.place.environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONPATH=".")
    line = [sys.executable, "-m", "pytest", "-p", "understudy_pytest"]
    ended = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )

    assert 1 == ended.returncode, ended.stdout + ended.stderr
    assert "1 failed, 1 passed" in ended.stdout
    gone = f"understudy check: --baseline {tmp_path}/gone.json: no such file; write it from the draft to compare with: "
    assert any(line.startswith(gone) for line in ended.stdout.splitlines())
