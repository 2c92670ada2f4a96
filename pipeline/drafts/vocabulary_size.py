"""How large a draft is with the target's vocabulary, beside a draft of the target's own layers. Of models as transformers builds
them: no tensor is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drafts.transplant import row_tables
from pipeline.models.built import decoder_layers, is_tied, read_only_empty_model
from pipeline.models.model_json import read_config


@dataclass(frozen=True)
class Size:
    """A size in parameters. `read`: by a pass, so all but an embedding of its own, of which a pass reads the rows of its
    tokens."""

    whole: int
    read: int


def resized(draft: Path, target: Path, trust_remote_code: bool = False) -> Size:
    """The size of the draft with as many rows as the target has."""
    model = read_only_empty_model(draft, trust_remote_code)
    return _size(model, read_only_empty_model(target, trust_remote_code).get_input_embeddings().num_embeddings)


def size_note(draft: Path, target: Path, trust_remote_code: bool = False) -> str:
    """One line: the draft's size before and after, and whether layers of the target are cheaper."""
    model, other = read_only_empty_model(draft, trust_remote_code), read_only_empty_model(target, trust_remote_code)
    width = other.get_input_embeddings().num_embeddings
    before, after = _size(model), _size(model, width)
    said = (
        f"with rows for the {width:,} columns of the target's logits the draft has {_millions(after.whole)} parameters in place "
        f"of {_millions(before.whole)}, and a pass reads {_millions(after.read)} of them"
    )
    stack = decoder_layers(other)
    # No draft is made of these; and of a mixture of experts a pass reads a part of each layer.
    if (
        stack is None
        or read_config(target).is_quantized
        or getattr(other.config.get_text_config(), "num_experts_per_tok", None)
    ):
        return said
    layer = sum(weight.numel() for weight in stack[1].parameters()) // len(stack[1])
    rest = _size(other).read - len(stack[1]) * layer
    layers = min((after.read - rest) // layer, len(stack[1]) - 1)
    if layers < 1:
        return f"{said}; one of the target's layers as a draft would read {_millions(rest + layer)}"
    return (
        f"{said}; cheaper is pair.draft: {{source: target, layers: {layers}}}, of which a pass reads "
        f"{_millions(rest + layers * layer)}, and no row is new"
    )


def _size(model: Any, width: int | None = None) -> Size:
    tables, embedding = row_tables(model), model.get_input_embeddings()
    more = 0 if width is None else width - embedding.num_embeddings
    whole = sum(weight.numel() for weight in model.parameters()) + more * sum(table.shape[1] for table in tables)
    beside = 0 if is_tied(model) else (embedding.num_embeddings + more) * embedding.weight.shape[1]
    return Size(whole, whole - beside)


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count >= 1e6 else f"{count:,}"
