"""Parameters of the models of a pair that are on this machine, where no run has counted them: from headers and configs, without
weights."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError
from pipeline.models.files import weight_files
from pipeline.models.model_json import CONFIG
from pipeline.models.places import model_places
from pipeline.planning.earlier_runs import Measurements

if TYPE_CHECKING:
    from pipeline.drafts.vocabulary_size import Size


def local_models(config: Config) -> dict[str, Path]:
    """The models, by role, whose config and weights are on this machine."""
    paths = dict[str, Path]()
    for role, place in model_places(config.pair).items():
        path = place.find() if place.tokenizer is None else None  # of a served target only the tokenizer would be here
        with contextlib.suppress(UnderstudyError):
            if path is not None and (path / CONFIG).is_file() and weight_files(path):
                paths[role] = path
    return paths


def size_with_new_rows(config: Config) -> "Size | None":
    """None where the draft has the target's vocabulary, and where a model is not here."""
    if config.pair.draft.vocabulary != "target":
        return None
    places = model_places(config.pair)
    paths: dict[str, Path | None] = {role: places[role].find() for role in ("draft", "target")}
    draft, target = paths["draft"], paths["target"]
    if draft is None or target is None or not all((path / CONFIG).is_file() for path in (draft, target)):
        return None
    # Imported here because it takes torch, which plans of other drafts do without.
    from pipeline.drafts.vocabulary_size import resized

    return resized(draft, target, config.pair.trust_remote_code)


def with_local_sizes(config: Config, known: Measurements) -> Measurements:
    """With the parameters of a head, or of a draft model, and of its target. Of a model that cannot be read nothing is known:
    whoever loads it says why."""
    paths, made = local_models(config), config.pair.draft.head
    if known.draft_parameters is not None or not paths:
        return known
    # Imported here because it takes torch, which plans of models on a hub do without.
    from pipeline.drafts.fitting_head import parameters_of_untrained
    from pipeline.drafts.head_tensors import measure_draft
    from pipeline.models.shape import measure_weights

    trusted, sizes = config.pair.trust_remote_code, dict[str, int]()
    with contextlib.suppress(UnderstudyError):
        if "target" in paths:
            sizes["target"] = measure_weights(paths["target"], trusted).parameters
        if made is not None and "target" in paths:
            sizes["draft"] = parameters_of_untrained(made, paths["target"], trusted)
        elif "draft" in paths:
            if config.pair.draft.vocabulary != "target":
                sizes["draft"] = measure_draft(paths["draft"], trusted).parameters
            elif (resized := size_with_new_rows(config)) is not None:
                sizes["draft"] = resized.whole
    return replace(
        known,
        draft_parameters=sizes.get("draft"),
        target_parameters=known.target_parameters or sizes.get("target"),
        parameters_source="counted in the files on this machine",
    )
