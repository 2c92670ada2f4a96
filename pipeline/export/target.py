"""What an export needs of the target that a draft belongs to. Loads torch only for what a served target's files have."""

from typing import TYPE_CHECKING, Any

from pipeline.drafts.kinds import Trait
from pipeline.models.model_json import config_values
from pipeline.registry.named import Draft

if TYPE_CHECKING:
    from pipeline.models.shape import Shape


def needs_code(draft: Draft) -> bool:
    """Whether target or draft is computed by code that ships with it."""
    return draft.config.pair.trust_remote_code


def target_config(draft: Draft) -> dict[str, Any] | None:
    """config.json of the target; None for a served target without one."""
    path = draft.pair.path("target")
    return config_values(path) if (path / "config.json").is_file() else None


def target_width(draft: Draft) -> int | None:
    """Columns of the target's logits; None if they are not known."""
    if not draft.config.pair.target.is_served:
        return int(draft.pair.facts["target"]["logits_width"])
    shape = find_shape(draft)  # a served target's config.json may have been put beside its tokenizer after the run
    return None if shape is None else shape.logits_width


def find_shape(draft: Draft) -> "Shape | None":
    """Sizes of the target, by its config; None for a served target without one."""
    path = draft.pair.path("target")
    if not (path / "config.json").is_file():
        return None
    from pipeline.models.shape import read_shape  # loads torch

    return read_shape(path, needs_code(draft))


def head_traits(draft: Draft) -> tuple[Trait, ...]:
    """What of a head not every engine computes."""
    from pipeline.drafts.head_tensors import serving_facts  # loads torch

    return tuple(serving_facts(draft.directory, draft.pair.path("target"), needs_code(draft))["traits"])


def states_read(draft: Draft) -> tuple[int, ...]:
    """The target's hidden states that an EAGLE-3 head reads: 0 is the embedding, i the output of i layers."""
    from pipeline.drafts.eagle3_model import unstated_layers  # loads torch
    from pipeline.drafts.head_config import read_eagle3
    from pipeline.models.built import load_config

    config = load_config(draft.pair.path("target"), needs_code(draft))
    return read_eagle3(draft.directory).layer_ids or unstated_layers(int(config.get_text_config().num_hidden_layers))


def target_name(draft: Draft) -> str:
    """The target as a server takes it: a directory, a hub id, or the name under which it is served."""
    source = draft.config.pair.target
    if source.is_hub and not source.is_served:
        return source.source
    if source.is_served:
        return str(draft.pair.facts["target"]["source"])
    return str(draft.pair.path("target").absolute())
