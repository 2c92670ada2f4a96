"""Small random heads on the hidden states of a small target, as drafts and as files in the layouts of other people's programs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.eagle3_model import Eagle3Model
from pipeline.drafts.head_config import Eagle3Config, MedusaConfig
from pipeline.drafts.medusa import MedusaDraft, MedusaModel
from pipeline.speculation.target_states import TargetStates

LAYERS = (1, 3, 4)
WIDTH = 32  # of an attention head: the least that vLLM computes on a CPU


def eagle3_layer(target: Any, kind: str = "llama", layers: int = 1, **more: Any) -> dict[str, Any]:
    """Sizes of the decoder layers of a head for `target`, other than its own where they may be."""
    hidden = target.config.hidden_size
    return {
        "model_type": kind,
        "vocab_size": target.config.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": WIDTH,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",  # vLLM has no defaults for these
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        **more,
    }


def eagle3_draft(
    target: Any,
    kind: str = "llama",
    layers: int = 1,
    kept: int | None = None,
    window: int | None = None,
    read: tuple[int, ...] = LAYERS,
    settings: dict[str, Any] | None = None,
    **flags: bool,
) -> Eagle3Draft:
    """`kept`: tokens of the draft's vocabulary; `window`: of all its layers; `read`: layers of the target; `settings`: of its
    layers' config, beside `eagle3_layer`."""
    vocabulary, more = target.config.vocab_size, dict(settings or {})
    if window is not None:
        more |= {"layer_types": ["sliding_attention"] * layers, "sliding_window": window, "use_sliding_window": True}
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config = Eagle3Config(
        layer=eagle3_layer(target, kind, layers, **more),
        layer_ids=read,
        draft_vocabulary=kept or vocabulary,
        vocabulary=vocabulary,
        **{name: flags.get(name, False) for name in names},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Eagle3Model(config, read, target.config.hidden_size)
        _make_random(model)
        if kept is not None:
            model.targets_D = torch.randperm(vocabulary)[:kept].sort().values
    # With random ones almost nothing would be accepted.
    model.fc.weight.data[:, -model.config.hidden_size :] += torch.eye(model.config.hidden_size)
    rows = slice(None) if model.targets_D is None else model.targets_D
    model.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)
    model.lm_head.weight.data.copy_(target.get_output_embeddings().weight[rows])
    model = model.to(target.dtype).eval()
    model.rotary_emb = type(model.rotary_emb)(model.config)  # in fp32, as of a model that was loaded
    return Eagle3Draft(model, vocabulary, TargetStates(target))


def medusa_draft(target: Any, heads: int = 3, layers: int = 1) -> MedusaDraft:
    hidden, vocabulary = target.config.hidden_size, target.config.vocab_size
    config = MedusaConfig(
        heads=heads,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        kept=vocabulary,
        bias=False,
        one_output_layer=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = MedusaModel(config)
        _make_random(model)
    for head in model.lm_heads:
        head.weight.data.copy_(target.get_output_embeddings().weight)  # type: ignore[operator, union-attr]
    return MedusaDraft(model.to(target.dtype).eval(), vocabulary, TargetStates(target))


def _make_random(model: nn.Module) -> None:
    """Of about the size of a trained head's."""
    for weight in model.parameters():
        nn.init.normal_(weight, *((0.0, 1.2 / weight.shape[1] ** 0.5) if weight.dim() == 2 else (0.9, 0.2)))


def write_eagle3(directory: Path, draft: Eagle3Draft, layout: str = "speculators", **changes: Any) -> Path:
    """The files of a head, by speculators or in EAGLE's own `layout`. `changes`: of config.json; None: without the key."""
    directory.mkdir(parents=True)
    model = draft.model
    head = eagle3_layer(draft.states.target, model.config.model_type, len(model.layers))
    tensors = {
        name.replace("layers.0.layer.", "layers.0."): weight.contiguous() for name, weight in model.state_dict().items()
    }
    kept = model.lm_head.out_features
    config: dict[str, Any] = {"draft_vocab_size": kept, "eagle_aux_hidden_state_layer_ids": list(model.layer_ids)}
    if layout == "speculators":
        config |= {
            "model_type": "speculators",
            "architectures": ["Eagle3Speculator"],
            "speculators_version": "0.9.0",
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
            },
            "norm_before_residual": False,
            "transformer_layer_config": head,
        }
    else:
        config |= {"architectures": ["LlamaForCausalLMEagle3"], **head}
        tensors = {name.replace("layers.0.", "midlayer."): weight for name, weight in tensors.items()}
        del tensors["embed_tokens.weight"]  # the target's
    if model.targets_D is not None:
        tensors["d2t"] = model.targets_D - torch.arange(kept)
        tensors["t2d"] = torch.zeros(model.vocabulary, dtype=torch.bool).scatter(0, model.targets_D, True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    _write_config(directory, config | changes)
    return directory


def write_medusa(directory: Path, draft: MedusaDraft, **changes: Any) -> Path:
    """In the layout of Medusa's own repository."""
    directory.mkdir(parents=True)
    model = draft.model
    tensors = {}
    for number, (block, head) in enumerate(zip(model.blocks, model.lm_heads, strict=True)):
        for place, layer in enumerate(block.layers):  # type: ignore[arg-type, union-attr]
            tensors[f"medusa_heads.{number}.{place}.linear.weight"] = layer.weight
        tensors[f"medusa_heads.{number}.{len(block.layers)}.weight"] = head.weight  # type: ignore[arg-type, union-attr]
    save_file({name: one.detach().contiguous() for name, one in tensors.items()}, directory / "model.safetensors")  # type: ignore[union-attr, operator]
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": model.hidden,
        "vocab_size": model.vocabulary,
        "num_heads": len(model.blocks),
        "num_hidden_layers": len(model.blocks[0].layers),  # type: ignore[arg-type]
    }
    _write_config(directory, config | changes)
    return directory


def _write_config(directory: Path, config: dict[str, Any]) -> None:
    kept = {name: value for name, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
