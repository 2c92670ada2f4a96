"""Heads that are made and written here: an untrained one for a target, and a trained one, in the layouts that engines read.

An untrained EAGLE-3 head has the target's embedding, output layer and final norm; the rest is random, as small as transformers
begins a model. Its layer has the sizes of the target's layers. Untrained Medusa heads give the target's own next token again:
their blocks are 0 and their output layers the target's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.config.pair import HeadShape
from pipeline.drafts.eagle3_model import Eagle3Model, check_layer_ids
from pipeline.drafts.head_config import Eagle3Config, MedusaConfig
from pipeline.drafts.kinds import EAGLE3, MEDUSA
from pipeline.drafts.medusa import MedusaModel
from pipeline.errors import UsageError
from pipeline.models.model_json import CONFIG
from pipeline.store.files import write_json

_STD = 0.02
_USUAL_STATES = (
    3  # that a head reads: vLLM does not count `eagle_aux_hidden_state_layer_ids` where the layers are Llama's
)
_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("max_position_embeddings", "rms_norm_eps", "vocab_size"),
)
_WITH_QK_NORM = ("qwen3", "qwen3_moe")


def new_head(target: Any, shape: HeadShape, seed: int) -> Eagle3Model | MedusaModel:
    """An untrained head of the given shape for a loaded target. UsageError for a target that has none."""
    return _NEW[shape.kind](target, shape, seed)


def default_layers(target: Any) -> tuple[int, ...]:
    """An early, a middle and a late hidden state, as EAGLE-3's authors and engines take them; of a shallow target others, which
    are distinct."""
    count = int(target.config.get_text_config().num_hidden_layers)
    usual = (2, count // 2, count - 3)
    return (
        usual
        if 0 < usual[0] < usual[1] < usual[2]
        else tuple(sorted({max(1, count // 3), max(1, 2 * count // 3), count}))
    )


def new_eagle3(target: Any, layer_ids: Sequence[int] | None, seed: int, as_eagle: bool = True) -> Eagle3Model:
    """An untrained head for a loaded target, with the layer of EAGLE-3's authors, or else speculators'. UsageError for a target
    whose layers are not like Llama's."""
    text, ids = target.config.get_text_config(), tuple(layer_ids or default_layers(target))
    missing = [name for name in _SIZES if getattr(text, name, None) is None and name != "head_dim"]
    if missing:
        raise UsageError(
            f"pair.draft.head.kind = eagle3: the config of the target has no {missing[0]}, which a layer of the head takes from "
            "it; take a head that was made for this target (pair.draft.source), or a draft of its layers"
        )
    remedy = "correct it, or leave it out for an early, a middle and a late one"
    check_layer_ids(ids, int(text.num_hidden_layers), "the head of head.layer_ids", remedy)
    layer = {name: getattr(text, name) for name in _SIZES if getattr(text, name, None) is not None}
    layer |= {
        "model_type": "qwen3" if text.model_type in _WITH_QK_NORM and not as_eagle else "llama",
        "num_hidden_layers": 1,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": _theta(text)},
    }
    layer.setdefault("head_dim", text.hidden_size // text.num_attention_heads)
    head = Eagle3Config(
        layer=layer,
        layer_ids=ids,
        draft_vocabulary=int(text.vocab_size),
        vocabulary=int(text.vocab_size),
        norm_before_residual=not as_eagle,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Eagle3Model(head, ids, int(text.hidden_size))
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, _STD)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.get_input_embeddings().weight[: head.vocabulary])
        model.lm_head.weight.copy_(target.get_output_embeddings().weight[: head.vocabulary])
    return model.eval()


def _theta(text: Any) -> float:
    given = getattr(text, "rope_parameters", None) or {}
    return float(given.get("rope_theta", 10_000.0))


def new_medusa(target: Any, places: int) -> MedusaModel:
    """Untrained heads for a loaded target."""
    text = target.config.get_text_config()
    model = MedusaModel(
        MedusaConfig(
            heads=places,
            layers=1,
            hidden=int(text.hidden_size),
            vocabulary=int(text.vocab_size),
            kept=int(text.vocab_size),
            bias=False,
            one_output_layer=False,
        )
    )
    with torch.no_grad():
        for block, head in zip(model.blocks, model.lm_heads, strict=True):
            for layer in block.layers:  # type: ignore[union-attr]
                layer.weight.zero_()
            head.weight.copy_(target.get_output_embeddings().weight[: model.vocabulary])  # type: ignore[operator]
    return model.eval()


def save_head(model: Eagle3Model | MedusaModel, out: Path) -> None:
    """Write the head: speculators' layout for EAGLE-3, vLLM's for Medusa. Nothing in it depends on the machine."""
    out.mkdir(parents=True, exist_ok=True)
    tensors, config = _FILES[type(model)](model)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    write_json(out / CONFIG, config | {"dtype": str(model.dtype).removeprefix("torch.")})


def _eagle3_files(model: Eagle3Model) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    head, layer = model.head, dict(model.head.layer)
    if len(model.layer_ids) != _USUAL_STATES:
        layer["num_aux_hidden_states"] = len(model.layer_ids)
    tensors = {name.replace("layers.0.layer.", "layers.0."): tensor for name, tensor in model.state_dict().items()}
    if model.targets_D is not None:
        tensors["d2t"] = model.targets_D - torch.arange(len(model.targets_D), device=model.targets_D.device)
        tensors["t2d"] = torch.zeros(head.vocabulary, dtype=torch.bool).scatter(0, model.targets_D.cpu(), True)
    return tensors, {
        "model_type": "speculators",
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": head.draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(model.layer_ids),
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": head.norm_before_fc,
        "fc_norm": head.fc_norm,
        "norm_output": head.norm_output,
        "transformer_layer_config": layer,
    }


def _medusa_files(model: MedusaModel) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors: dict[str, torch.Tensor] = {}
    for number, (block, head) in enumerate(zip(model.blocks, model.lm_heads, strict=True)):
        for place, layer in enumerate(block.layers):  # type: ignore[arg-type]
            tensors[f"medusa_heads.{number}.{place}.linear.weight"] = layer.weight
            if layer.bias is not None:
                tensors[f"medusa_heads.{number}.{place}.linear.bias"] = layer.bias
        tensors[f"medusa_heads.{number}.{len(block.layers)}.weight"] = head.weight  # type: ignore[arg-type, assignment]
    return tensors, {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": model.hidden,
        "vocab_size": model.vocabulary,
        "num_heads": len(model.blocks),
        "num_hidden_layers": len(model.blocks[0].layers),  # type: ignore[arg-type]
        "medusa_fc_bias": any(name.endswith(".bias") for name in tensors),
    }


_NEW: dict[str, Callable[[Any, HeadShape, int], Eagle3Model | MedusaModel]] = {
    EAGLE3.name: lambda target, shape, seed: new_eagle3(target, shape.layer_ids, seed, shape.layer == "eagle"),
    MEDUSA.name: lambda target, shape, seed: new_medusa(target, shape.places),
}
_FILES: dict[type, Callable[[Any], tuple[dict[str, torch.Tensor], dict[str, Any]]]] = {
    Eagle3Model: _eagle3_files,
    MedusaModel: _medusa_files,
}
