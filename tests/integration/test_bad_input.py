"""What people get wrong: configs, command lines, prompt files, pairs. One clear line each, and the right exit code."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from pipeline.registry.draft_names import RUN_FORMS
from tests.integration.conftest import NOBODY, RUN, SMOKE, Ended, Place, Smoke, command_line, rename_token

SMOKE_TEXT = SMOKE.read_text(encoding="utf-8")
PROMPTS = [{"prompt": f"def function_{number}(argument_{number * 7919}):", "domain": "code"} for number in range(60)]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("distil.max_steps=5", "distil = {'max_steps': 5}: unknown key; did you mean 'distill'?"),
        ("distill.max_step=5", "distill.max_step = 5: unknown key; did you mean 'distill.max_steps'?"),
        ("distill.max_steps=many", "distill.max_steps = 'many': input should be a valid integer"),
        ("distill.max_steps=0", "distill.max_steps = 0: input should be greater than 0"),
        ("distill.learning_rate=.nan", "distill.learning_rate = nan: input should be a finite number, or 'auto'"),
        ("distill", "--set distill: write it as key.path=value"),
        ("corpus.sources.7.path=x", "--set corpus.sources.7.path=x: '7' is not a position of a list of 1"),
        ("pair.target.source=gpt2", "pair.target: 'gpt2' is a hub id and needs `revision`"),
        ("corpus.splits.train=0.9", "corpus.splits: train + dev + examination is 1.25; the shares must sum to 1"),
    ],
)
def test_bad_override_is_named(place: Place, override: str, complaint: str) -> None:
    """A wrong `--set` exits 2 with one line that names the key, before anything is written."""
    ended = place.understudy("run", SMOKE, "--set", override)
    assert (2, 1) == (ended.code, len(ended.err.splitlines())), ended.err
    assert complaint in ended.complaint
    assert not place.store.exists()


def test_a_bad_override_is_found_before_anything_heavy_is_imported(place: Place) -> None:
    _, code, imported = place.spied("run", SMOKE, "--set", "pair.target.source=gpt2")
    assert (2, []) == (code, imported)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "config.yaml: no such config file"),
        ("name: a\nname: b\n", "not valid YAML: key 'name' appears twice"),
        ("name: [", "not valid YAML: "),
        ("", "a config must be a mapping of sections, not null"),
        ("- 1\n", "a config must be a mapping of sections, not a list"),
        (SMOKE_TEXT + "distll: {max_steps: 1}\n", "unknown key; did you mean 'distill'?"),
    ],
    ids=["missing", "duplicate key", "broken", "empty", "list", "misspelt section"],
)
def test_bad_config_is_named(place: Place, tmp_path: Path, text: str | None, complaint: str) -> None:
    """A config file that cannot be used exits 2 with one line that names it."""
    config = tmp_path / "config.yaml"
    if text is not None:
        config.write_text(text)
    ended = place.understudy("run", config)
    assert (2, 1) == (ended.code, len(ended.err.splitlines())), ended.err
    assert ended.complaint.startswith(str(config))
    assert complaint in ended.complaint


def test_two_mistakes_are_both_named(place: Place) -> None:
    """Nobody should have to start it twice to learn of the second mistake."""
    ended = place.understudy("run", SMOKE, "--set", "distill.max_steps=0", "--set", "gate.min_gan=1")
    assert (2, 2) == (ended.code, len(ended.err.splitlines())), ended.err
    assert "distill.max_steps = 0" in ended.err
    assert "did you mean 'gate.min_gain'?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("stage", "destill", SMOKE, "--run", "x"), "destill: not a stage; the stages are pair, corpus, generate"),
        (("run", SMOKE, "--from", "destill"), "--from destill: not a stage; the stages are pair, corpus, generate"),
        (("run", SMOKE, "--until", "destill"), "--until destill: not a stage"),
        (("run", SMOKE, "--from", "gate", "--until", "pair"), "--from gate comes after --until pair"),
        (("run", SMOKE, "--run", "../x"), "run '../x': a run id is letters, digits and ._:+- (at most 121)"),
        (("run", SMOKE, "--run", ""), "run '': a run id is letters, digits and ._:+- (at most 121)"),
        (("stage", "pair", SMOKE, "--run", "a b"), "run 'a b': a run id is letters, digits and ._:+- (at most 121)"),
        (("run", SMOKE, "--run", "a\n"), "run 'a\\n': a run id is letters, digits and ._:+- (at most 121)"),
        (("show",), "no runs here yet; start one with `understudy run CONFIG` or name another --store"),
        (("show", "../x"), f"../x: no such directory; give {RUN_FORMS}"),
        (("store", "sync"), "no runs here yet"),
    ],
    ids=lambda value: " ".join(map(str, value)).replace(str(SMOKE), "CONFIG") if isinstance(value, tuple) else "",
)
def test_bad_command_line_is_named(place: Place, arguments: tuple[object, ...], complaint: str) -> None:
    """A wrong command line exits 2 with one line, and builds nothing."""
    ended = place.understudy(*arguments)
    assert (2, 1) == (ended.code, len(ended.err.splitlines())), ended.err
    assert complaint in ended.complaint
    assert not (place.store / "artifacts").exists()


def test_a_current_directory_that_was_deleted_is_told(place: Place, tmp_path: Path) -> None:
    """Each command would fail at another place, decode within a library that ends the process."""
    gone = tmp_path / "gone"
    gone.mkdir()
    ended = subprocess.run(
        [*command_line(), "runs"],
        cwd=gone,
        env=place.environment(),
        preexec_fn=gone.rmdir,
        capture_output=True,
        text=True,
        check=False,
    )
    said = "understudy: the current directory was deleted; change to another one and run again\n"
    assert (2, said) == (ended.returncode, ended.stderr)


def test_store_that_is_a_file_is_named(place: Place) -> None:
    """`--store` naming a file exits 2 with one line."""
    place.store.write_text("")
    ended = place.understudy("run", SMOKE)
    assert (2, f"--store {place.store}: a file, not a directory; name another") == (ended.code, ended.complaint), (
        ended.err
    )


def test_a_store_that_cannot_be_made_is_named(place: Place) -> None:
    """No directory can be made under /proc."""
    ended = place.understudy("run", SMOKE, "--store", "/proc/x", store=False)
    assert (2, "--store /proc/x: this directory cannot be created; choose another") == (ended.code, ended.complaint)


@pytest.mark.parametrize("command", ["rollback", "history"])
def test_a_mistyped_store_has_no_registry(place: Place, command: str) -> None:
    """The command does not create a store."""
    ended = place.understudy("champion", command, SMOKE)
    assert (2, True) == (ended.code, "there is no registry here" in ended.complaint), ended.err
    assert not place.store.exists()


def test_an_export_from_a_mistyped_store_is_refused(place: Place, tmp_path: Path) -> None:
    """No store and no directory are made."""
    ended = place.understudy("champion", "export", SMOKE, "--engine", "vllm", "--out", tmp_path / "out")
    assert (2, True) == (ended.code, "there is no registry here" in ended.complaint), ended.err
    assert not place.store.exists()
    assert not (tmp_path / "out").exists()


def test_run_of_another_config_is_refused(loop: Place) -> None:
    """A run's id stands for one config: another one under it exits 2, and the record stays what it was."""
    before = loop.record(RUN)
    ended = loop.understudy("run", SMOKE, "--set", "distill.max_steps=61", "--run", RUN)
    assert 2 == ended.code, ended.err
    assert (
        f"--run {RUN}: exists with another config (distill.max_steps); leave --run out or name a new one"
        == ended.complaint
    )
    assert before == loop.record(RUN)


def test_unknown_run_is_named(smoke: Smoke) -> None:
    """A run that is not there exits 2, with the forms that are."""
    ended = smoke.place.understudy("show", "nobody")
    assert 2 == ended.code, ended.err
    assert (
        f"nobody: no run and no registered draft of {smoke.place.store}, and no directory here; give {RUN_FORMS}"
        == ended.complaint
    )


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store for all prompt files: the pair, which is the same for all, is looked at once."""
    return Place(tmp_path_factory.mktemp("paired")).prepare()


def _local(smoke: Smoke, where: Path, prompts: bytes | None, **pair: Any) -> Path:
    """A config of the smoke pair from its directories, with a prompt file."""
    source = smoke.place.artifact("pair")
    raw = yaml.safe_load(SMOKE_TEXT)
    raw["pair"] = {role: {"source": str(pair.get(role, source / role))} for role in ("target", "draft")}
    raw["corpus"]["sources"] = [{"path": "prompts.jsonl"}]
    if prompts is not None:
        (where / "prompts.jsonl").write_bytes(prompts)
    path = where / "local.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def _jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _corpus(smoke: Smoke, place: Place, run: str, tmp_path: Path, prompts: bytes | None, *more: object) -> Ended:
    config = _local(smoke, tmp_path, prompts)
    return place.understudy("run", config, "--until", "corpus", "--run", run, *more, MLFLOW_TRACKING_URI=NOBODY)


def test_missing_prompt_file_is_named(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """A prompt file that is not there exits 2 at once, and its path is named relative to the config file."""
    ended = _corpus(smoke, paired, "missing", tmp_path, None)
    assert (2, 1) == (ended.code, len(ended.err.splitlines())), ended.err
    assert f"corpus.sources.0.path: {tmp_path}/prompts.jsonl: no such file or directory" == ended.complaint


def test_bad_rows_are_rejected_with_their_lines(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """One bad row costs one row: each is in rejects.jsonl with its line; emoji are no mistake; the rest is the corpus."""
    bad = [b"{broken", b'{"prompt": null}', b'{"prompt": "NUL \\u0000 inside"}', b"\xff\xfe", b"[]", b'{"other": 1}']
    long = _jsonl([{"prompt": "x" * 1_048_576}])
    prompts = (
        _jsonl([*PROMPTS, {"prompt": "def grüße(): return '🙂🙃'", "domain": "code"}]) + b"\n".join(bad) + b"\n" + long
    )
    ended = _corpus(smoke, paired, "rows", tmp_path, prompts, "--set", "corpus.max_rejected_share=0.2")
    artifact = paired.artifact("corpus", "rows")
    rejects = [json.loads(line) for line in (artifact / "rejects.jsonl").read_text().splitlines()]
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    assert 0 == ended.code, ended.err
    assert [
        (62, "broken JSON"),
        (63, "null prompt"),
        (64, "NUL character"),
        (65, "invalid unicode"),
        (66, "not an object"),
        (67, "missing column"),
        (68, "too many characters"),
    ] == [(reject["row"], reject["reason"].partition(":")[0]) for reject in rejects]
    assert (68, 61, 7) == tuple(figures[name] for name in ("rows", "accepted", "rejected"))
    assert figures["prompts"] + figures["exact_duplicates"] == 61


def test_too_many_bad_rows_stop_the_run(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """A file with a tenth of broken lines exits 2; file, first line, reason and the key that allows more are named."""
    ended = _corpus(smoke, paired, "broken", tmp_path, _jsonl(PROMPTS[:54]) + b"{broken\n" * 6)
    assert 2 == ended.code, ended.err
    assert ended.complaint.startswith(f"{tmp_path}/prompts.jsonl: line 55: broken JSON: ")
    assert "6 of 60 rows rejected (10.0%), more than corpus.max_rejected_share = 0.05" in ended.complaint
    assert "failed" == paired.record("broken")["state"]


def test_empty_prompt_file_is_named(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """An empty prompt file exits 2."""
    ended = _corpus(smoke, paired, "empty", tmp_path, b"")
    assert 2 == ended.code, ended.err
    assert ended.complaint.startswith(f"{tmp_path}/prompts.jsonl: no prompts: the file is empty; add prompts, or name")


@pytest.mark.parametrize(
    ("rows", "override", "complaint"),
    [
        ([], "seed=0", "no prompts: the file is empty"),
        (PROMPTS, "corpus.max_prompt_tokens=1", "60 longer than corpus.max_prompt_tokens = 1"),
        (
            PROMPTS,
            "gate.min_prompts_per_domain=40",
            "domain 'code' has 60 different prompts, about 15 of them for exam",
        ),
        (PROMPTS, "evaluate.crosscheck_prompts=0", "gate: it will refuse, because evaluate.crosscheck_prompts = 0"),
    ],
    ids=["empty", "too long", "too few", "no cross-check"],
)
def test_what_cannot_work_is_said_before_anything_is_paid(
    smoke: Smoke, place: Place, tmp_path: Path, rows: list[Any], override: str, complaint: str
) -> None:
    """By `plan`, a dry run and the run itself: exit 2, and neither a run nor an artifact is left."""
    config = _local(smoke, tmp_path, _jsonl(rows))
    for command in (("plan", config), ("run", config, "--dry-run"), ("run", config)):
        ended = place.understudy(*command, "--set", override, MLFLOW_TRACKING_URI=NOBODY)
        assert 2 == ended.code, ended.err
        assert complaint in ended.complaint
    assert [] == [*place.store.glob("runs/*"), *place.store.glob("artifacts/*")]


def test_a_run_to_which_the_gate_does_not_matter_goes_on(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """One that ends before it, one that was told so, and what is planned for it."""
    config = _local(smoke, tmp_path, _jsonl(PROMPTS))
    few = ("--set", "gate.min_prompts_per_domain=40")
    assert 0 == place.understudy("plan", config, *few, "--even-if-refused").code
    assert 0 == place.understudy("run", config, *few, "--even-if-refused", "--dry-run").code
    assert 0 == place.understudy("run", config, *few, "--until", "generate", "--dry-run").code
    ended = place.understudy("run", config, *few, "--until", "corpus", MLFLOW_TRACKING_URI=NOBODY)
    stopped = place.understudy("run", config, *few, MLFLOW_TRACKING_URI=NOBODY)

    assert 0 == ended.code, ended.err
    assert "warning: corpus: domain 'code' has " in ended.err
    assert (2, True) == (stopped.code, "--even-if-refused runs the stages all the same" in stopped.complaint)


def test_draft_larger_than_its_target_is_refused(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Target and draft swapped: exit 2, with both sizes."""
    pair = smoke.place.artifact("pair")
    config = _local(smoke, tmp_path, _jsonl(PROMPTS), target=pair / "draft", draft=pair / "target")
    ended = place.understudy("run", config, "--until", "pair", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert re.match(r"pair.draft: the draft has 55\d,\d{3} parameters and the target 7\d,\d{3}; ", ended.complaint)
    assert "swap the two if they are in the wrong places" in ended.complaint


def test_prompts_with_a_token_that_the_models_cannot_read_are_left_out(
    smoke: Smoke, place: Place, tmp_path: Path
) -> None:
    """Text models of multimodal families have a token for images in the tokenizer, and no column and no embedding for it."""
    for role in ("target", "draft"):
        shutil.copytree(smoke.place.artifact("pair") / role, tmp_path / role)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / role)
        tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
        tokenizer.save_pretrained(tmp_path / role)
    rows = [*PROMPTS, {"prompt": "def of an <image> here:", "domain": "code"}]
    config = _local(smoke, tmp_path, _jsonl(rows), target=tmp_path / "target", draft=tmp_path / "draft")
    planned = place.understudy("plan", config, "--even-if-refused", store=False)
    ended = place.understudy("run", config, "--until", "generate", "--run", "image", MLFLOW_TRACKING_URI=NOBODY)
    models = ("--target", tmp_path / "target", "--draft", tmp_path / "draft")
    decoded = place.understudy("decode", *models, "an <image> here", store=False)
    rejects = (place.artifact("corpus", "image") / "rejects.jsonl").read_text()

    assert (0, 0) == (planned.code, ended.code), planned.err + ended.err
    assert "the logits of the draft have no column for 1 of the tokenizer's tokens, such as '<image>'" in ended.err
    assert "line 61: token that the models do not share: id 512, '<image>'; the row is not used" in ended.err
    assert 1 == len(rejects.splitlines())
    assert (2, True) == (decoded.code, "token that the models do not share: id 512" in decoded.complaint), decoded.err


def test_draft_of_another_family_is_refused(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """A draft with another tokenizer exits 2 in the first stage, with the token that differs."""
    shutil.copytree(smoke.place.artifact("pair") / "draft", tmp_path / "other")
    rename_token(tmp_path / "other" / "tokenizer.json")
    config = _local(smoke, tmp_path, _jsonl(PROMPTS), draft=tmp_path / "other")
    ended = place.understudy("run", config, "--until", "pair", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert ended.complaint.startswith("draft and target have different tokenizers: token ")


@pytest.mark.parametrize(
    ("spoil", "code", "complaint"),
    [
        (
            lambda path: (path / "model.safetensors").unlink(),
            1,
            "no model.safetensors and no model.safetensors.index.json; convert the checkpoint first",
        ),
        (lambda path: (path / "config.json").unlink(), 2, "is not a model directory (no config.json there)"),
        (lambda path: shutil.rmtree(path), 2, "is not a model directory (no config.json there)"),
        (lambda path: _truncate(path / "model.safetensors"), 1, "model.safetensors: truncated"),
        (lambda path: _change(path, quantization_config={"bits": 4}), 2, "quantization_config names no quant_method"),
    ],
    ids=["no weights", "no config", "no directory", "truncated weights", "quantized"],
)
def test_unusable_model_directory_is_named(
    smoke: Smoke, place: Place, tmp_path: Path, spoil: Any, code: int, complaint: str
) -> None:
    """A draft directory that is not whole ends the run with one line that names it."""
    shutil.copytree(smoke.place.artifact("pair") / "draft", tmp_path / "spoilt")
    spoil(tmp_path / "spoilt")
    config = _local(smoke, tmp_path, _jsonl(PROMPTS), draft=tmp_path / "spoilt")
    ended = place.understudy("run", config, "--until", "pair", MLFLOW_TRACKING_URI=NOBODY)
    assert code == ended.code, ended.err
    assert f"{tmp_path}/spoilt" in ended.complaint
    assert complaint in ended.complaint


def test_a_quantized_draft_is_not_trained(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Such as a variant of an earlier run."""
    config = _local(smoke, tmp_path, _jsonl(PROMPTS), draft=smoke.place.artifact("quantize/int8") / "draft")
    ended = place.understudy("run", config, "--until", "pair", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert "is quantized, so it cannot be trained; set a draft with float weights" in ended.complaint


def test_a_local_pair_is_checked_by_a_dry_run(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Server defaults that `sampling` contradicts exit 2, after the config was printed; with `ignore` the jobs are printed, with
    what the pair leaves out."""
    shutil.copytree(smoke.place.artifact("pair") / "target", tmp_path / "served")
    (tmp_path / "served" / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    config = _local(smoke, tmp_path, _jsonl(PROMPTS), target=tmp_path / "served")
    contradicted = place.understudy("run", config, "--dry-run", "--verbose", store=False)
    ignored = place.understudy(
        "run", config, "--dry-run", "--verbose", "--set", "pair.generation_config=ignore", store=False
    )

    assert 2 == contradicted.code, contradicted.err
    assert "name: smoke" in contradicted.out
    assert "temperature 0.6 (sampling.temperature is 1), top_p 0.9 (sampling.top_p is 1)" in contradicted.complaint
    assert (0, "") == (ignored.code, ignored.err)
    assert "max_prompt_tokens: 88" in ignored.out
    assert "\ncorpus: prompts have at most 88 tokens: the pair's context of 128 tokens" in ignored.out


def test_a_local_pair_is_checked_by_plan(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """What the pair leaves out is printed, and a setting that cannot work exits 2."""
    config = _local(smoke, tmp_path, _jsonl(PROMPTS))
    planned = place.understudy("plan", config, "--json", store=False)
    refused = place.understudy("plan", config, "--set", "corpus.max_prompt_tokens=1000", store=False)

    assert (0, 2) == (planned.code, refused.code), planned.err + refused.err
    assert json.loads(planned.out)["notes"][0].startswith("corpus: prompts have at most 88 tokens: ")
    assert refused.complaint.startswith("corpus.max_prompt_tokens = 1000: the pair's context of 128 tokens")


def _change(model: Path, **settings: Any) -> None:
    raw = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(raw | settings))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_ray_is_asked_for_before_anything_is_made(place: Place) -> None:
    """Not by the first job that needs it, an hour later."""
    for command in (("run", SMOKE), ("run", SMOKE, "--dry-run")):
        ended = place.understudy(*command, "--set", "execution.ray={workers: 2}")
        assert (2, "execution.ray: Ray is not installed; install understudy[ray], or use execution.local") == (
            ended.code,
            ended.complaint,
        )
    assert not (place.store / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_said_by_a_dry_run(place: Place) -> None:
    """Which may be made on a machine that runs nothing."""
    ended = place.understudy("run", SMOKE, "--dry-run", "--set", "device=cuda:3")
    assert 0 == ended.code, ended.err
    assert "warning: device = 'cuda:3' cannot be used here" in ended.err
