"""Names of models: directories, names of the hub, and what a mistyped one is told."""

import json
from pathlib import Path

import pytest

from pipeline.config.pair import PairConfig
from pipeline.errors import UsageError
from pipeline.models.names import layers_to_keep, local_directory

COMMIT = "0123456789" * 4


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in ("models/llama-8b", "models/llama-1b"):
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("./modles/llama-8b", "no such directory; did you mean models/llama-8b?; a model of the hub is org/name"),
        ("models/llama-8", "no such directory; did you mean models/llama-8b?; if you mean a model of the hub, write models/"),
        ("modles/llama-8b", "no such directory; did you mean models/llama-8b?; if you mean a model of the hub"),
        ("models/qwen", "no such directory (models holds llama-1b, llama-8b); if you mean a model of the hub"),
        ("models/llama-8b/x", "no such directory; a model of the hub"),
        ("/no/such", "no such directory; a model of the hub"),
        ("llama", "no such directory; a model of the hub"),
        ("-x/y", "no such directory; a model of the hub"),
        ("models", "not a model directory (no config.json there)"),
        ("", "is empty: name a model"),
    ],
)  # fmt: skip
def test_a_mistyped_path_is_told_as_such(name: str, complaint: str) -> None:
    """Also one that looks like org/name, where a similar directory is there; the hub is not asked."""
    with pytest.raises(UsageError) as caught:
        local_directory(name, "target")

    assert str(caught.value).startswith(f"--target {name}: {complaint}" if name else f"--target {complaint}")


def test_names_of_the_hub_are_left_to_the_hub() -> None:
    """Where nothing here is called so, or a revision is given."""
    for name in ("org/name", f"org/name@{COMMIT}", "models/llama-8@main", "meta-llama/Llama-3.1-8B"):
        assert local_directory(name, "target") is None
    assert Path("models/llama-8b") == local_directory("models/llama-8b", "target")


def test_a_draft_keeps_an_eighth_of_the_layers(tmp_path: Path) -> None:
    """At least one; of a multimodal model those of its text decoder. Unknown where the config does not say, or of one layer."""
    for config, kept in (
        ({"num_hidden_layers": 32}, 4),
        ({"num_hidden_layers": 2}, 1),
        ({"text_config": {"num_hidden_layers": 80}}, 10),
        ({"num_hidden_layers": 1}, None),
        ({"num_hidden_layers": "a"}, None),
        ({}, None),
        ([], None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert kept == layers_to_keep(tmp_path), config
    assert layers_to_keep(None) is None


def test_a_draft_that_is_the_target_is_refused_by_its_name() -> None:
    """The same source at another revision is another model."""
    hub = {"source": "org/name", "revision": COMMIT}
    for target in ({"source": "./m"}, hub):
        with pytest.raises(ValueError, match=r"draft\.source is the target itself.*draft: {source: target, layers: 4}"):
            PairConfig.model_validate({"target": target, "draft": target})
    PairConfig.model_validate({"target": hub, "draft": hub | {"revision": "0" * 40}})
