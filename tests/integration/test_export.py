"""`understudy champion export` and `promote.export`, from the command line, on the smoke run's champion."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.export.schema import read_expected
from pipeline.models.files import model_digest
from tests.integration.conftest import RUN, SMOKE, Place, Smoke

CHAMPION = "reference-draft@champion"


def _export(smoke: Smoke, out: Path, engine: str, *more: object, draft: object = CHAMPION) -> Any:
    named = [] if draft is None else [draft]
    return smoke.place.understudy("champion", "export", *named, "--engine", engine, "--out", out, *more)


@pytest.mark.parametrize("draft", [SMOKE, None])
def test_the_champion_is_exported_for_vllm(smoke: Smoke, tmp_path: Path, draft: object) -> None:
    """Named by config, or that of the latest run (`test_naming.py` has all names): the files as they were promoted, a start
    command, and what the counters should show."""
    out = tmp_path / "served"
    ended = _export(smoke, out, "vllm", draft=draft)
    assert 0 == ended.code, ended.err
    names = [
        "README.md",
        "draft",
        "expected.json",
        "launch.sh",
        "speculative-config-synthetic.json",
        "speculative-config.json",
    ]
    assert names == sorted(path.name for path in out.iterdir())
    promoted = smoke.place.artifact("distill") / "draft"
    assert model_digest(promoted) == model_digest(out / "draft")
    expected = read_expected(out)
    examined = json.loads((smoke.place.artifact("evaluate/candidate") / "acceptance.json").read_text())
    assert examined["headline"]["acceptance_rate"]["value"] == pytest.approx(
        expected.deployed.acceptance_rate, abs=1e-4
    )
    assert ("vllm", "probabilistic", 5) == (expected.convention, expected.draft_sampling, expected.gamma)
    config = json.loads((out / "speculative-config.json").read_text())
    assert ("probabilistic", 5, str(out / "draft")) == (
        config["draft_sample_method"],
        config["num_speculative_tokens"],
        config["model"],
    )
    assert [] == [path for path in tmp_path.iterdir() if path != out]


def test_a_draft_length_of_ones_own_is_exported(smoke: Smoke, tmp_path: Path) -> None:
    """A config with another evaluate.gamma than the run is said to be so, and --gamma takes it; the counters of every examined
    length are there, with the interval for other prompts outside of that for all."""
    config = yaml.safe_load(SMOKE.read_text())
    config.setdefault("evaluate", {})["gamma"] = 3
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(config))
    unasked = _export(smoke, tmp_path / "unasked", "vllm", draft=tmp_path / "changed.yaml")
    asked = _export(smoke, tmp_path / "asked", "vllm", "--gamma", "3", draft=tmp_path / "changed.yaml")
    found = [read_expected(tmp_path / name) for name in ("unasked", "asked")]
    started = json.loads((tmp_path / "asked" / "speculative-config.json").read_text())["num_speculative_tokens"]
    figures = found[1].deployed.by_draft_length

    assert (
        "changed.yaml has evaluate.gamma 3, and the run that trained the draft had 5, which is exported" in unasked.err
    )
    assert "evaluate.gamma" not in asked.err
    beyond = _export(smoke, tmp_path / "beyond", "vllm", "--gamma", "17")
    assert (2, False) == (beyond.code, (tmp_path / "beyond").exists())
    assert (
        "--gamma 17: the run that trained the draft examined draft lengths up to 16 (evaluate.max_gamma)" in beyond.err
    )
    assert ([5, 3], 3) == ([one.gamma for one in found], started)
    assert found[0].deployed == found[1].deployed
    assert list(range(1, max(figures) + 1)) == list(figures)
    assert max(figures) > 5
    for one in figures.values():
        few, mean = one.fresh_prompts[100], one.mean_acceptance_length
        assert few.low < mean.low < mean.high < few.high  # type: ignore[operator]


def test_engines_that_draft_greedily_are_expected_to(smoke: Smoke, tmp_path: Path) -> None:
    """SGLang: examined with greedy drafting, which is said; TensorRT-LLM: the same figures."""
    figures = []
    for engine in ("sglang", "tensorrt-llm"):
        ended = _export(smoke, tmp_path / engine, engine)
        assert "drafts greedily" in ended.err
        expected = read_expected(tmp_path / engine)
        figures.append((expected.draft_sampling, expected.deployed.acceptance_rate))
    assert figures[0] == figures[1]
    assert "greedy" == figures[0][0]


def test_a_quantized_variant_is_exported_as_it_was_made(smoke: Smoke, tmp_path: Path) -> None:
    """transformers loads INT8; the draft's generation config holds the draft length that it reads."""
    ended = _export(smoke, tmp_path / "out", "transformers", "--variant", "int8")
    assert 0 == ended.code, ended.err
    config = json.loads((tmp_path / "out" / "draft" / "config.json").read_text())
    settings = json.loads((tmp_path / "out" / "draft" / "generation_config.json").read_text())
    assert config["quantization_config"]["load_in_8bit"]
    assert (5, "constant", 0.0) == (
        settings["num_assistant_tokens"],
        settings["num_assistant_tokens_schedule"],
        settings["assistant_confidence_threshold"],
    )


def test_llama_cpp_gets_what_its_converter_writes(smoke: Smoke, tmp_path: Path) -> None:
    """The converter is called with the promoted draft; the directory has no other weights. That llama.cpp counts otherwise at the
    end of a completion is said."""
    converter, out = tmp_path / "convert.py", tmp_path / "out"
    converter.write_text("import sys; open(sys.argv[3], 'w').write(sys.argv[1])")
    ended = _export(smoke, out, "llama.cpp", "--converter", converter)
    assert 0 == ended.code, ended.err
    assert ["README.md", "draft.gguf", "expected.json", "launch.sh"] == sorted(path.name for path in out.iterdir())
    assert (Path((out / "draft.gguf").read_text()) / "model.safetensors").is_file()
    (note,) = read_expected(out).notes
    assert "llama.cpp counts rounds at the end of a completion in its own way (docs/engines.md)" in note


@pytest.mark.parametrize(
    ("engine", "more", "complaint"),
    [
        ("tgi", (), "n-grams"),
        ("specinfer", (), "format of its own"),
        ("llama.cpp", (), "convert_hf_to_gguf.py"),
        ("vllm", ("--tensor-parallel", "2"), "the draft has 1 attention heads"),
        ("vllm", ("--variant", "fp8"), f"run {RUN} has not made it"),
        ("tensorrt-llm", ("--variant", "int4"), "does not load a draft in int4"),
    ],
)
def test_what_is_refused_writes_nothing(
    smoke: Smoke, tmp_path: Path, engine: str, more: tuple[str, ...], complaint: str
) -> None:
    """Exit 2 with the reason, and no directory."""
    ended = _export(smoke, tmp_path / "out", engine, *more)
    assert 2 == ended.code
    assert complaint in ended.err
    assert [] == list(tmp_path.iterdir())


def test_a_directory_with_files_is_left_alone(smoke: Smoke, tmp_path: Path) -> None:
    """Exit 2 before anything is read."""
    (tmp_path / "mine").touch()
    ended = _export(smoke, tmp_path, "vllm")
    assert (2, ["mine"]) == (ended.code, [path.name for path in tmp_path.iterdir()])


@pytest.mark.parametrize("draft", ["nowhere.yaml", "reference-draft/1", "reference-draft@9", "other-draft@champion"])
def test_a_draft_that_is_not_there_is_one_line(smoke: Smoke, tmp_path: Path, draft: str) -> None:
    """Exit 2."""
    ended = _export(smoke, tmp_path / "out", "vllm", draft=draft)
    assert (2, 1) == (ended.code, len(ended.err.splitlines()))


def test_promote_exports_and_tags_the_version(loop: Place, tmp_path: Path) -> None:
    """The run finds its draft is champion already and exports it; the version's tag and the record of the run that trained it say
    where to; the next run leaves the directory as it is."""
    given = ("--set", f"promote.export={{engine: vllm, out: {tmp_path / 'served'}}}")
    for run in ("again", "and-again"):
        ended = loop.understudy("run", SMOKE, *given, "--run", run)
        assert 0 == ended.code, ended.err
    out = tmp_path / "served" / "version-1"
    assert out == (tmp_path / "served" / "champion").resolve()
    assert (out / "launch.sh").is_file()
    assert f"vllm: {out}" == loop.registry()["reference-draft"]["versions"]["1"]["export"]
    assert str(out) == loop.record(RUN)["jobs"]["promote"]["notes"]["export"]
    assert RUN == loop.registry()["reference-draft"]["versions"]["1"]["understudy.run"]


def test_an_approved_draft_is_exported(loop: Place, tmp_path: Path) -> None:
    """With promote.by_hand, when a person makes it champion and not before."""
    given = (
        f"promote.export={{engine: sglang, out: {tmp_path / 'served'}}}",
        "promote.by_hand=true",
        "promote.target_name=other",
    )
    ended = loop.understudy("run", SMOKE, *(part for one in given for part in ("--set", one)), "--run", "waits")
    assert 0 == ended.code, ended.err
    assert not (tmp_path / "served").exists()
    approved = loop.understudy("champion", "promote", "waits")
    assert 0 == approved.code, approved.err
    assert (tmp_path / "served" / "champion" / "launch.sh").is_file()


def test_a_draft_that_cannot_be_exported_is_not_promoted(loop: Place, tmp_path: Path) -> None:
    """Heads that do not divide are found before the registry is touched."""
    settings = f"promote.export={{engine: vllm, out: {tmp_path / 'served'}, tensor_parallel: 2}}"
    ended = loop.understudy("run", SMOKE, "--set", settings, "--set", "promote.target_name=other", "--run", "refused")
    assert 2 == ended.code
    assert "attention heads" in ended.err
    assert "other-draft" not in loop.registry()
    assert not (tmp_path / "served").exists()
