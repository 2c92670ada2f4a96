"""The recipe of the reference pair: sizes, prompts, and the earlier recipe that benchmarks use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.config.loading import load_config
from pipeline.config.pair import DraftShape, ReferenceRecipe, TargetShape
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.reference.recipe import (
    ModelTraining,
    make_reference_pair,
    new_model,
    train_model,
    train_tokenizer,
    write_prompts,
)
from pipeline.reference.text import Document, ReferenceText

EARLIER = Path(__file__).parents[2] / "benchmarks" / "reference_pair.yaml"
QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
TEXTS = [f"def function_{n}(value):\n    return value + {n}\n" * 60 for n in range(40)]
SHAPE = {"hidden": 32, "layers": 1, "heads": 1, "intermediate": 32, "steps": 30, "learning_rate": 0.01}
SMALL = ReferenceRecipe.model_validate(
    {"vocabulary": 512, "context": 64, "batch": 4, "target": SHAPE, "draft": SHAPE, "prompts": 8, "prompt_tokens": 16}
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer of 300 words of made-up code, enough for 512 tokens."""
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmno" for c in "pqrstu"]
    return train_tokenizer([*TEXTS, " ".join(words * 3)], 512)


def _documents(domain: str) -> list[Document]:
    return [Document(f"{domain}/{n}.py", text) for n, text in enumerate(TEXTS)]


@pytest.mark.parametrize(
    "recipe",
    [ReferenceRecipe(), *(load_config(path).pair.reference for path in (QUICKSTART, EARLIER))],
    ids=["default", "quickstart", "earlier"],
)
def test_the_draft_has_at_most_a_sixth_of_the_parameters(recipe: ReferenceRecipe, tokenizer: Any) -> None:
    """Of the default, of the quickstart's recipe and of its earlier one, which benchmarks use."""
    target, draft = (new_model(shape, recipe, tokenizer, 0).num_parameters() for shape in (recipe.target, recipe.draft))

    assert 6 * draft <= target


def test_the_earlier_recipe_depends_on_no_default() -> None:
    """Benchmarks stay reproducible when a default changes: every key of the recipe is written out."""
    written = yaml.safe_load(EARLIER.read_text())["pair"]["reference"]

    assert set(ReferenceRecipe.model_fields) == set(written)
    assert set(TargetShape.model_fields) == set(written["target"])
    assert set(DraftShape.model_fields) == set(written["draft"])


def test_a_model_learns_its_text_and_the_seed_decides_it(tokenizer: Any) -> None:
    """The same seed gives the same weights, and the loss on the text falls below that of the untrained model."""
    ids = torch.tensor(tokenizer("".join(TEXTS))["input_ids"])
    training = ModelTraining("target", ids, SMALL.target.steps, SMALL.target.learning_rate, seed=3)
    models = [
        train_model(new_model(SMALL.target, SMALL, tokenizer, 3), training, SMALL, torch.device("cpu"), Progress())
        for _ in range(2)
    ]
    untrained = new_model(SMALL.target, SMALL, tokenizer, 3)
    before, after = (model(input_ids=ids[None, :64], labels=ids[None, :64]).loss for model in (untrained, models[0]))

    assert after < before - 1
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_training_of_the_pair_is_told_part_by_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each model that is trained has its line; one that an earlier run finished has none."""
    monkeypatch.setattr("pipeline.reference.recipe.perplexity", lambda model, tokens, context: 1.0)
    words = " ".join(f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmno" for c in "pqrstu")
    documents = [Document(f"{n}.py", f"{words} {text}") for n, text in enumerate(TEXTS[:8])]
    text = ReferenceText(tuple(documents), tuple(documents))
    shape = SMALL.target.model_copy(update={"steps": 1})
    recipe = SMALL.model_copy(update={"target": shape, "draft": shape, "fine_tune_steps": 2})

    def told() -> list[str]:
        make_reference_pair(tmp_path, recipe, text, 0, torch.device("cpu"), Progress(terminal=False))
        return [line.partition("reference pair: ")[2] for line in capsys.readouterr().err.splitlines()]

    assert ["target (1 steps)", "base draft (1 steps)", "fine-tuned target (2 steps)"] == told()
    shutil.rmtree(tmp_path / "target")
    assert ["fine-tuned target (2 steps)"] == told()


def test_prompts_are_of_both_domains_and_their_lengths(tokenizer: Any, tmp_path: Path) -> None:
    """As many of each domain, in groups by document, each of 8 to 16 tokens before decoding."""
    held_out = {domain: _documents(domain) for domain in ("modules", "tests")}
    write_prompts(tmp_path / "prompts.jsonl", held_out, tokenizer, SMALL, 0)
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]

    assert ["modules"] * 4 + ["tests"] * 4 == [row["domain"] for row in rows]
    assert all(row["group"].startswith(row["domain"]) and row["prompt"] in "".join(TEXTS) for row in rows)


def test_a_domain_without_held_out_documents_is_named(tokenizer: Any, tmp_path: Path) -> None:
    """And the key that helps."""
    with pytest.raises(UnderstudyError, match=r"no held-out document in the domain 'tests'.*text_megabytes"):
        write_prompts(tmp_path / "p", {"modules": _documents("modules"), "tests": []}, tokenizer, SMALL, 0)
