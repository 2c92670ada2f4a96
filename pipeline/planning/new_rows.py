"""The size of a draft that will be given the target's vocabulary, as far as both models are on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.root import Config
from pipeline.models.model_json import CONFIG
from pipeline.models.places import model_places

if TYPE_CHECKING:
    from pipeline.drafts.vocabulary_size import Size


def size_with_new_rows(config: Config) -> "Size | None":
    """None where the draft has the target's vocabulary, and where a model is not here."""
    if config.pair.draft.vocabulary != "target":
        return None
    places = model_places(config.pair)
    found: dict[str, Path | None] = {role: places[role].find() for role in ("draft", "target")}
    draft, target = found["draft"], found["target"]
    if draft is None or target is None or not all((path / CONFIG).is_file() for path in (draft, target)):
        return None
    # Imported here because it takes torch, which plans of other drafts do without.
    from pipeline.drafts.vocabulary_size import resized

    return resized(draft, target, config.pair.trust_remote_code)
