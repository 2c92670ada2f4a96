"""Base drafts made from existing models: some layers of the target, or a draft extended by the target's added tokens."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.errors import UsageError
from pipeline.models.built import decoder_layers
from pipeline.models.tokenizers import check_same_family, split_difference, tokens_below


def prune_layers(model: Any, layers: int | Sequence[int]) -> tuple[Any, list[int]]:
    """A copy of `model` with only some of its decoder layers (numbered from 0), and the numbers of these layers.

    A count keeps the first and the last layer and others evenly spaced between them: neighbouring layers are similar, the
    first and last are not. UsageError for layers that do not exist or cannot be renumbered.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        raise UsageError(
            "pair.draft.source = target: the target is quantized, so its layers cannot be trained; set a draft model"
        )
    name, stack = _layers(model)
    chosen = _spread(len(stack), layers) if isinstance(layers, int) else list(layers)
    if not chosen or len(chosen) > len(stack) or not set(chosen) <= set(range(len(stack))):
        raise UsageError(
            f"pair.draft.layers = {layers}: the target has {len(stack)} layers, 0 to {len(stack) - 1}; name some of them"
        )
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    for key, value in list(vars(text).items()):  # such as layer_types
        if isinstance(value, list) and len(value) == len(stack):
            setattr(text, key, [value[layer] for layer in chosen])
    text.num_hidden_layers = len(chosen)
    smaller = type(model)(config).to(model.dtype)
    try:
        smaller.load_state_dict(_renamed(model.state_dict(), list(smaller.state_dict()), name, chosen))
    except (KeyError, RuntimeError) as error:  # layers of different types, such as dense layers before expert layers
        reason = " ".join(str(error).split())[:160]
        raise UsageError(
            f"pair.draft.layers = {layers}: layers of a {type(model).__name__} cannot be renumbered ({reason}); "
            "set a draft model instead"
        ) from None
    smaller.generation_config = copy.deepcopy(model.generation_config)
    _check_outside_layers(model, smaller, name)
    return smaller.eval(), chosen


def _check_outside_layers(model: Any, smaller: Any, stack: str) -> None:
    """UsageError where a weight outside the layers was overwritten, as of two that a config ties and that differ."""
    theirs = model.state_dict()
    for name, weight in smaller.state_dict().items():
        if not name.startswith(f"{stack}.") and not torch.equal(weight, theirs[name].to(weight)):
            raise UsageError(
                f"pair.draft.source = target: a {type(model).__name__} made anew from its config.json has another {name}; set a "
                "draft model instead"
            )


def _renamed(weights: dict[str, Any], wanted: Sequence[str], stack: str, chosen: Sequence[int]) -> dict[str, Any]:
    """The weights of a model with the layers `chosen`, under their new names."""
    renamed = {}
    for key in wanted:
        source = key
        if key.startswith(f"{stack}."):
            layer, _, rest = key.removeprefix(f"{stack}.").partition(".")
            source = f"{stack}.{chosen[int(layer)]}.{rest}"
        renamed[key] = weights[source]
    return renamed


def _layers(model: Any) -> tuple[str, torch.nn.ModuleList]:
    """The list of the model's decoder layers, and its name in the model. UsageError if there is no such list."""
    if (layers := decoder_layers(model)) is None:
        raise UsageError(
            f"pair.draft.source = target: the layers of a {type(model).__name__} are not one list; set a draft model instead"
        )
    return layers


def _spread(count: int, kept: int) -> list[int]:
    """`kept` layer numbers evenly spaced over 0 .. count - 1, the first and the last included; empty if there are too few."""
    if kept == 1:
        return [0]
    return [round(place * (count - 1) / (kept - 1)) for place in range(min(kept, count))] if kept <= count else []


def gained_tokens(target: Any, draft: Any, width: int | None = None) -> list[int]:
    """What `added_tokens` gives; UsageError for tokenizers of different families, which differ in another way."""
    gained = added_tokens(target, draft, width)
    if not gained:
        check_same_family(target, draft, width)
    return gained


def added_tokens(target: Any, draft: Any, width: int | None = None) -> list[int]:
    """The ids of tokens that only the target's tokenizer has, ascending. `target` and `draft` are tokenizers; `width`: columns of
    the target's logits, None if it is not known. It has no tokens beyond them.

    Empty if the tokenizers are equal, if they also differ in another way (such as how text is split into tokens), or if an added
    id is below one of the draft's ids.
    """
    theirs, ours = tokens_below(target, width), tokens_below(draft, width)
    if not ours.items() < theirs.items() or split_difference(target, draft) is not None:
        return []
    added = sorted(theirs[token] for token in theirs.keys() - ours.keys())
    return added if added[0] > max(ours.values()) else []


@torch.no_grad()
def extend_vocabulary(model: Any, added: Sequence[int]) -> None:
    """Initialise the rows of added tokens in embedding and head, in place, with the mean of the existing rows. `added` are ids
    above all tokens of the model."""
    known, wanted = added[0], added[-1] + 1
    if model.get_input_embeddings().weight.shape[0] < wanted:
        model.resize_token_embeddings(wanted, mean_resizing=False)
    tensors = [model.get_input_embeddings().weight]
    if (head := model.get_output_embeddings()) is not None:
        tensors += [tensor for tensor in (head.weight, head.bias) if tensor is not None]
    for tensor in tensors:
        tensor[list(added)] = tensor[:known].float().mean(0).to(tensor.dtype)
