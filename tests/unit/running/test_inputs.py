"""What is in the digest of an input from outside the store."""

from pathlib import Path

from pipeline.config.pair import ModelSource
from pipeline.running.inputs import _FileDigests, _model


def test_the_licence_of_a_card_is_in_the_models_digest(tmp_path: Path) -> None:
    """A card that is corrected makes the pair anew, because the draft's card and tags say its licence; other text does not."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    source, card = ModelSource(source=str(tmp_path)), tmp_path / "README.md"

    def digest() -> str:
        return _model("draft", source, _FileDigests({})).digest

    without = digest()
    card.write_text("---\nlicense: mit\n---\n")
    mit = digest()
    card.write_text("---\nlicense: mit\n---\nMore text.\n")
    longer = digest()
    card.write_text("---\nlicense: apache-2.0\n---\n")

    assert mit == longer
    assert 3 == len({without, mit, digest()})
