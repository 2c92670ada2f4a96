"""RoPE with two sets of factors: which of them are used is chosen in the config, for everything that loads the model, and for
what is made out of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.pair import PairConfig
from pipeline.drafts.named_pair import load_named_pair
from pipeline.models.files import model_digest
from pipeline.models.fixed_rope import note_on_rope
from pipeline.models.loading import load_model
from pipeline.models.places import model_places
from pipeline.models.saving import save_model
from pipeline.models.shape import read_shape
from pipeline.models.stored_pair import role_directory
from tests.architectures import tiny_model
from tests.fakes import tiny_tokenizer

FACTORS = {"short_factor": [1.0] * 4, "long_factor": [9.0] * 4}
CPU = torch.device("cpu")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, family in (("phi", "Phi 3"), ("llama", "Llama")):
        settings: dict[str, Any] = {"max_position_embeddings": 96}
        if name == "phi":
            scaling = {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 32,
                **FACTORS,
            }
            settings |= {"original_max_position_embeddings": 32, "sliding_window": None, "rope_parameters": scaling}
        tiny_model(family, **settings).save_pretrained(tmp_path / name)
        tiny_tokenizer().save_pretrained(tmp_path / name)

    def found(choice: str | None) -> dict[str, Path]:
        config = {role: {"source": str(tmp_path / name)} for role, name in (("target", "phi"), ("draft", "llama"))}
        of_pair = model_places(PairConfig.model_validate(config | {"rope_factors": choice}))
        return {role: role_directory(tmp_path / "artifact", role, of_pair) for role in of_pair}

    return found


def _factor(path: Path) -> float:
    """Of the first frequency, which is 1 without any."""
    return round(1 / float(load_model(path, "float32", CPU).model.rotary_emb.inv_freq[0]), 3)


def test_the_config_chooses_the_factors(places: Any, tmp_path: Path) -> None:
    """By default those of the model's context, as the engine does; short ones bound the text. Another choice is another model."""
    expected = {None: (9.0, 96), "long": (9.0, 96), "short": (1.0, 32)}
    found = {choice: places(choice)["target"] for choice in expected}
    assert expected == {choice: (_factor(path), read_shape(path).context) for choice, path in found.items()}
    assert tmp_path / "phi" == found[None]
    assert 3 == len({model_digest(path) for path in found.values()})
    assert model_digest(found["short"]) == model_digest(places("short")["target"])
    notes = {choice: str(note_on_rope(load_model(path, "float32", CPU).config, "x")) for choice, path in found.items()}
    assert "set pair.rope_factors to short" in notes[None]
    assert "the short ones are used" in notes["short"]


def test_other_models_and_their_files_are_as_they_were(places: Any, tmp_path: Path) -> None:
    """Nothing stands for a model without such factors; what stands for one has all its files, later ones too."""
    assert tmp_path / "llama" == places("short")["draft"]
    (tmp_path / "phi" / "chat_template.jinja").write_text("x")
    stands = places("short")["target"]
    assert {file.name for file in (tmp_path / "phi").iterdir()} == {file.name for file in stands.iterdir()}
    assert CHOSEN not in (tmp_path / "phi" / "config.json").read_text()


def test_what_is_made_of_a_model_keeps_the_choice(places: Any, tmp_path: Path) -> None:
    """A trained draft is loaded without the config of the run."""
    out = tmp_path / "made"
    save_model(load_model(places("short")["target"], "float32", CPU), out)
    assert 1.0 == _factor(out)
    tiny_tokenizer().save_pretrained(out)

    @dataclass
    class Given:
        directory: Path

    pair = load_named_pair(str(tmp_path / "phi"), {"draft": Given(out)}, None, "cpu")
    assert 32 == pair.context
    assert 1.0 == round(1 / float(pair.target.model.rotary_emb.inv_freq[0]), 3)


CHOSEN = '"rope_factors"'
