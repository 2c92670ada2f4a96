"""What `init` prints of a head in a directory: its kind, and what its config.json states. Torch-free."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.drafts.head_config import kind_of, longest_block, read_eagle3, read_medusa, require_trainable
from pipeline.drafts.kinds import MEDUSA, Kind


@dataclass(frozen=True, kw_only=True)
class PublishedHead:
    """A head that a run trains further."""

    kind: Kind
    longest: int | None  # tokens that it proposes in a round; None: no limit
    found: str  # a sentence


def published_head(directory: Path) -> PublishedHead | None:
    """None for a plain draft. UsageError for a head that is not trained further here."""
    kind = kind_of(directory)
    if not kind.reads_states:
        return None
    require_trainable(kind, directory)
    finding = _medusa(directory) if kind == MEDUSA else _eagle3(directory)
    return PublishedHead(kind=kind, longest=longest_block(directory), found=finding)


def _eagle3(directory: Path) -> str:
    head = read_eagle3(directory)
    count, kind = head.layer.get("num_hidden_layers"), head.layer["model_type"]
    layers = f"{kind} layers" if count is None else f"{count} {kind} layer{'s' if count != 1 else ''}"
    reads = (
        "does not state which hidden states it reads (engines then take an early, a middle and a late one)"
        if head.layer_ids is None
        else f"reads hidden states {', '.join(map(str, head.layer_ids))} of the target"
    )
    some = f"{head.draft_vocabulary:,} of " if head.draft_vocabulary < head.vocabulary else ""
    return f"{layers}, {reads}, drafts {some}{head.vocabulary:,} tokens"


def _medusa(directory: Path) -> str:
    heads = read_medusa(directory)
    blocks = f"{heads.layers} block{'s' if heads.layers != 1 else ''}"
    return f"{heads.heads} places of {blocks}, {heads.vocabulary:,} tokens; engines draft greedily with it"
