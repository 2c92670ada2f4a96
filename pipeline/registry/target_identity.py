"""Which target a registered draft is a draft of: where that target was found, its content, its tokenizer. Pure.

The name of a draft in the registry decides which champion a run is compared with. A name that was chosen (`promote.target_name`)
is the user's word that the target is the same one, changed. A name that was only derived from a path is no such word: many
directories are called `target`.
"""

from collections.abc import Mapping

from pipeline.config.root import Config
from pipeline.models.places import model_places
from pipeline.registry.drafts import TargetIdentity
from pipeline.store.runs import OutsideInput

PLACE_TAG, CONTENT_TAG, TOKENIZER_TAG = (
    f"understudy.{name}" for name in ("target_place", "target_digest", "tokenizer_digest")
)
_SOURCE_TAG = "target"  # as the config had it: all that versions of earlier releases have


def identity_of(config: Config, outside: Mapping[str, OutsideInput]) -> TargetIdentity:
    """The identity of the target of a run, by its pinned inputs."""
    source, pinned = config.pair.target.source, outside.get("target")
    if config.pair.target.is_served:
        root = "" if pinned is None else str(pinned.facts.get("model", {}).get("root") or "")
        return TargetIdentity(place=root, content="" if pinned is None else pinned.digest, source=root)
    content = "" if pinned is None else str(pinned.facts.get("content", ""))
    place = model_places(config.pair)["target"].place if not config.pair.is_reference else source
    return TargetIdentity(place=place, content=content, source=source)


def identity_in(tags: Mapping[str, str]) -> TargetIdentity:
    """The identity of the target that a registered version is a draft of, by its tags."""
    return TargetIdentity(
        place=tags.get(PLACE_TAG, ""),
        content=tags.get(CONTENT_TAG, ""),
        tokenizer=tags.get(TOKENIZER_TAG, ""),
        source=tags.get(_SOURCE_TAG, ""),
    )


def same_target(own: TargetIdentity, held: TargetIdentity) -> bool:
    """Whether a registered version may be of this target: of the same content, or found in the same place. Where nothing is known
    of one of them, it may."""
    if not own.place or (own.content and own.content == held.content):
        return True
    if held.place:
        return own.place == held.place
    return not held.source or held.source in (own.place, own.source)


def is_chosen(config: Config) -> bool:
    """Whether the registered name was chosen for this target, by `promote.target_name` or as the name under which servers serve
    it, and not derived from a path or a hub id."""
    served = config.generate.server.model if config.pair.target.is_served else None
    return config.promote.target_name is not None or (served is not None and "/" not in served)
