"""A head in the layout of those who published its kind first, which some engines read and no other. The numbers are the same.

What a layout cannot state is not known here: `engines/heads.py` has refused such heads. Shapes as in `eagle3_model.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipeline.drafts.eagle3_model import named_tensors, take_targets
from pipeline.drafts.head_config import read_eagle3, read_medusa
from pipeline.drafts.head_tensors import layer_config, read_tensors
from pipeline.drafts.medusa import named_tensors as named_medusa_tensors
from pipeline.errors import UsageError

_SIZES = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ),
    *("hidden_act", "max_position_embeddings", "rms_norm_eps"),
)


class HeadFiles(NamedTuple):
    """Tensors by name, and the content of config.json."""

    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]


def eagle_layout(directory: Path, states: tuple[int, ...], embedding_VH: torch.Tensor) -> HeadFiles:
    """An EAGLE-3 head as EAGLE's authors publish it (`LlamaForCausalLMEagle3`). `embedding_VH`: of its target.

    Of the first layer the tensors are `midlayer` where it is the only one. A further layer normalises its input by what is called
    hidden_norm there. The states are counted by the layer that they leave, from 0. A head with the target's hidden size has no
    embedding: engines give it the target's. UsageError for one that has another.
    """
    head, target_hidden = read_eagle3(directory), int(embedding_VH.shape[1])
    tensors = named_tensors(read_tensors(directory))
    targets_D = take_targets(directory, head, tensors)
    layer = layer_config(head)
    if layer.hidden_size == target_hidden and (own_VH := tensors.pop("embed_tokens.weight", None)) is not None:
        rows = min(len(own_VH), len(embedding_VH))
        if not torch.equal(own_VH[:rows], embedding_VH[:rows].to(own_VH.dtype)):
            raise UsageError(
                f"{directory}: the head has an embedding of its own, and engines that read EAGLE's layout give it the target's; "
                "export it for vLLM, or take embed_tokens.weight out of the files that it was trained from and train it again, "
                "with the target's"
            )
    tensors = {_eagle_name(name, layer.num_hidden_layers): tensor for name, tensor in tensors.items()}
    if (
        targets_D is not None and head.draft_vocabulary == head.vocabulary
    ):  # another order, for which engines read no map
        tensors["lm_head.weight"] = torch.empty_like(tensors["lm_head.weight"]).index_copy_(
            0, targets_D, tensors["lm_head.weight"]
        )
    elif targets_D is not None:
        tensors["d2t"] = targets_D - torch.arange(len(targets_D))
    config = {name: getattr(layer, name) for name in _SIZES} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": head.vocabulary,
        # null: the output layer is the target's.
        "draft_vocab_size": head.draft_vocabulary if "lm_head.weight" in tensors else None,
        "target_hidden_size": target_hidden,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        **_rope(layer.rope_parameters),
        "fc_norm": head.fc_norm,
        "norm_output": head.norm_output,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [state - 1 for state in states],
            "use_aux_hidden_state": True,
            "norm_before_fc": head.norm_before_fc,
        },
    }
    return HeadFiles(tensors, config)


def _eagle_name(name: str, layers: int) -> str:
    own = name.replace("layers.0.layer.", "layers.0.")
    if layers == 1:
        return own.replace("layers.0.", "midlayer.")
    return own if own.startswith("layers.0.") else own.replace(".input_layernorm.", ".hidden_norm.")


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings as every version of transformers reads them."""
    scaling = {name: value for name, value in parameters.items() if name != "rope_theta"}
    rope: dict[str, Any] = {"rope_theta": parameters["rope_theta"]}
    return rope if scaling.get("rope_type", "default") == "default" else rope | {"rope_scaling": scaling}


def medusa_layout(directory: Path) -> HeadFiles:
    """Medusa heads as their authors publish them: an output layer for each, and a bias in every block, 0 where heads have "
    "none."""
    medusa = read_medusa(directory)
    own, tensors = named_medusa_tensors(read_tensors(directory)), dict[str, torch.Tensor]()
    for head in range(medusa.heads):
        for layer in range(medusa.layers):
            weight_HH = own[f"blocks.{head}.layers.{layer}.weight"]
            bias_H = own.get(f"blocks.{head}.layers.{layer}.bias")
            tensors[f"{head}.{layer}.linear.weight"] = weight_HH
            tensors[f"{head}.{layer}.linear.bias"] = weight_HH.new_zeros(medusa.hidden) if bias_H is None else bias_H
        # A copy for each: a file has no two names for one tensor.
        output_VH = own[f"lm_heads.{0 if medusa.one_output_layer else head}.weight"]
        tensors[f"{head}.{medusa.layers}.weight"] = output_VH.clone()
    return HeadFiles(tensors, {"medusa_num_heads": medusa.heads, "medusa_num_layers": medusa.layers})
