"""The network of an EAGLE-3 head (arXiv 2503.01840), for inference, from the checkpoints that engines read.

Row i of a text pairs token i + 1 with the target's hidden states at token i, and predicts token i + 2. The first decoder layer
reads both, concatenated; what leaves the last layer takes the place of the target's states where a round drafts further. Layers,
norms and rotary embeddings are transformers'; only the attention is ours, because an examination gives each row keys of its own.
Shapes: B rows, T tokens of a text, H hidden size, L layers that are read, V tokens of the target, D of the draft.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from pipeline.drafts.head_config import Eagle3Config
from pipeline.drafts.head_tensors import check_tensors, layer_config, layers_of, read_tensors
from pipeline.errors import UsageError
from pipeline.models.devices import upload
from pipeline.speculation.cache import RaggedCache, cache_argument, window_mask
from pipeline.speculation.hidden_states import Features

_ATTENTION = "understudy_heads"
_PARTS: dict[str, tuple[Any, Any, Any]] = {
    "llama": (LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding),
    "qwen3": (Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding),
}


class OwnAttention(Protocol):
    """Stands in the place of an attention mask: attention that is not over one text."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of queries (B, heads, T, width), and keys and values with their own number of heads: (B, T, heads, width)."""


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    if isinstance(attention_mask, torch.Tensor):
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return attended
    return attention_mask.attend(module.layer_idx, query, key, value, options["scaling"]), None


AttentionInterface.register(_ATTENTION, _attend)


class _First(nn.Module):
    """The first decoder layer: its attention reads the token's embedding and the hidden state."""

    def __init__(self, config: Any, layer_class: Any, norm_class: Any, norm_before_residual: bool) -> None:
        super().__init__()
        self._before = norm_before_residual
        self.layer = layer_class(config, 0)
        self.hidden_norm = norm_class(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.layer.self_attn, name)
            setattr(
                self.layer.self_attn, name, nn.Linear(2 * config.hidden_size, old.out_features, old.bias is not None)
            )

    def forward(self, embedded_BTH: torch.Tensor, hidden_BTH: torch.Tensor, **options: Any) -> torch.Tensor:
        layer, normed_BTH = self.layer, self.hidden_norm(hidden_BTH)
        both = torch.cat([layer.input_layernorm(embedded_BTH), normed_BTH], dim=-1)
        attended_BTH, _ = layer.self_attn(hidden_states=both, **options)
        hidden_BTH = (normed_BTH if self._before else hidden_BTH) + attended_BTH
        result: torch.Tensor = hidden_BTH + layer.mlp(layer.post_attention_layernorm(hidden_BTH))
        return result


class Eagle3Model(nn.Module):
    """`layer_ids`: of the target's hidden states."""

    targets_D: torch.Tensor | None

    def __init__(self, head: Eagle3Config, layer_ids: tuple[int, ...], target_hidden: int) -> None:
        super().__init__()
        self.config = config = layer_config(head)
        config._attn_implementation = _ATTENTION
        layer_class, norm_class, rotary_class = _PARTS[head.layer["model_type"]]
        hidden, eps, count = config.hidden_size, config.rms_norm_eps, len(layer_ids)
        self.head, self.layer_ids, self.norm_output = head, layer_ids, head.norm_output
        self.embed_tokens = nn.Embedding(head.vocabulary, hidden)
        self.fc = nn.Linear(count * target_hidden, hidden, bias=False)
        self.layers = nn.ModuleList(
            [
                _First(config, layer_class, norm_class, head.norm_before_residual),
                *(layer_class(config, number) for number in range(1, config.num_hidden_layers)),
            ]
        )
        self.norm = norm_class(hidden, eps=eps)
        self.lm_head = nn.Linear(hidden, head.draft_vocabulary, bias=False)
        self.input_norm = norm_class(count * target_hidden, eps=eps) if head.norm_before_fc else None
        self.fc_norm = nn.ModuleList(norm_class(target_hidden, eps=eps) for _ in range(count)) if head.fc_norm else None
        self.rotary_emb = rotary_class(config)
        self._cache_argument = cache_argument(self.layers[0].layer.self_attn)  # type: ignore[union-attr]
        self.vocabulary = head.vocabulary
        # The target's number of each of the draft's tokens; None: the same.
        self.register_buffer("targets_D", None, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulate operations of a draft token; the target's states are combined once a round, and left out."""
        others = (self.embed_tokens.weight, self.fc.weight)
        return sum(
            weight.numel()
            for weight in self.parameters()
            if weight.dim() == 2 and all(weight is not other for other in others)
        )

    @property
    def windows(self) -> list[int | None]:
        """How many tokens each layer attends to; None: all."""
        types = getattr(self.config, "layer_types", None) or ["full_attention"] * len(self.layers)
        size = getattr(self.config, "sliding_window", None)
        return [size if types[number] == "sliding_attention" else None for number in range(len(self.layers))]

    def combine(self, features: Features) -> torch.Tensor:
        """The target's states of all layers as one, (B, T, H)."""
        states = [features[layer].to(self.device, self.dtype) for layer in self.layer_ids]
        if self.fc_norm is not None:
            states = [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)]
        joined = torch.cat(states, dim=-1)
        combined: torch.Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return combined

    def forward(
        self, ids_BT: torch.Tensor, hidden_BTH: torch.Tensor, positions_BT: torch.Tensor, masks: Any, cache: Any = None
    ) -> torch.Tensor:
        """What takes the place of hidden states where a round drafts on, (B, T, H). `masks`: by layer, a boolean attention mask
        (B, 1, T, S) or an `OwnAttention`."""
        position_embeddings = self.rotary_emb(hidden_BTH, positions_BT)
        options = {"position_embeddings": position_embeddings, self._cache_argument: cache}
        embedded_BTH = self.embed_tokens(ids_BT)
        for number, layer in enumerate(self.layers):
            options["attention_mask"] = masks[number]
            hidden_BTH = layer(*((embedded_BTH, hidden_BTH) if number == 0 else (hidden_BTH,)), **options)
        return self.norm(hidden_BTH) if self.norm_output else hidden_BTH

    def logits(self, hidden_xH: torch.Tensor) -> torch.Tensor:
        """The logits of what `forward` gave: (..., D)."""
        logits: torch.Tensor = self.lm_head(hidden_xH if self.norm_output else self.norm(hidden_xH))
        return logits

    def as_forward(self, vocabulary: int) -> "_Alone":
        """The head as `speculation.forward.Forward`, for measurements."""
        return _Alone(self, vocabulary)

    def over_target(self, logits_xD: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """Logits of all tokens of the target, (..., V): minus infinity for those that the draft does not have."""
        if self.targets_D is None:
            return logits_xD[..., :vocabulary]
        whole = logits_xD.new_full((*logits_xD.shape[:-1], self.vocabulary), -torch.inf)
        whole[..., self.targets_D] = logits_xD
        return whole[..., :vocabulary]


class _Alone:
    """`forward.Forward` with hidden states of 0: what a pass costs does not depend on them."""

    def __init__(self, model: Eagle3Model, vocabulary: int) -> None:
        self._model, self._vocabulary, self.device = model, vocabulary, model.device

    def allocate(self, rows: int, capacity: int) -> RaggedCache:
        return RaggedCache(rows, capacity)

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: RaggedCache, keep: int) -> torch.Tensor:
        hidden_BTH = torch.zeros(
            *ids_BT.shape, self._model.config.hidden_size, dtype=self._model.dtype, device=self.device
        )
        hidden_BTH = cached_pass(self._model, caches, ids_BT, hidden_BTH, first)
        return self._model.over_target(self._model.logits(hidden_BTH[:, -keep:]), self._vocabulary)

    def select(self, caches: RaggedCache, rows: Sequence[int]) -> None:
        caches.select(rows)


def cached_pass(
    model: Eagle3Model, cache: RaggedCache, ids_BT: torch.Tensor, hidden_BTH: torch.Tensor, first: Sequence[int]
) -> torch.Tensor:
    """Slots first[b] .. first[b] + T - 1 of each row b."""
    slots_BT = upload(first, model.device).unsqueeze(1) + torch.arange(ids_BT.shape[1], device=model.device)
    causal = cache.set_slots(slots_BT, max(first) + ids_BT.shape[1])
    masks = [
        causal if size is None else window_mask(causal, slots_BT, "sliding_attention", size) for size in model.windows
    ]
    passed: torch.Tensor = model(ids_BT, hidden_BTH, slots_BT, masks, cache)
    return passed


def load_eagle3(
    directory: Path, head: Eagle3Config, target: Any, dtype: torch.dtype, device: torch.device
) -> Eagle3Model:
    """The head in `directory`, for a loaded target, whose embedding or output layer it uses where it has none of its own.
    UsageError for a head of another target, and for tensors that are missing or would not be used."""
    text = target.config.get_text_config()
    if (
        head.vocabulary != (rows := int(target.get_input_embeddings().weight.shape[0]))
        and head.vocabulary < text.vocab_size
    ):
        raise UsageError(
            f"{directory}: the head was made for a target of {head.vocabulary:,} tokens, and this one has {rows:,}; name the "
            "target that it was trained on"
        )
    ids = head.layer_ids or unstated_layers(text.num_hidden_layers)
    stated = (
        "its config.json names others than it was trained on (eagle_aux_hidden_state_layer_ids), or it is the head of another "
        "target"
        if head.layer_ids is not None
        else "state those that it was trained on in its config.json (eagle_aux_hidden_state_layer_ids)"
    )
    check_layer_ids(ids, text.num_hidden_layers, f"{directory}: the head", stated)
    tensors = named_tensors(read_tensors(directory, device))
    targets_D = take_targets(directory, head, tensors, rows)
    with torch.device("meta"), layers_of(directory):
        model = Eagle3Model(head, ids, int(text.hidden_size))
    for name, of_target in (
        ("embed_tokens.weight", target.get_input_embeddings()),
        ("lm_head.weight", target.get_output_embeddings()),
    ):
        if name not in tensors and of_target is not None and model.state_dict()[name].shape == of_target.weight.shape:
            tensors[name] = of_target.weight.detach().clone()  # a training must not change the target
    check_tensors(directory, model.state_dict(), tensors)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    model.rotary_emb = type(model.rotary_emb)(model.config)  # its buffers are not stored
    model.targets_D = targets_D
    return model.to(device).eval()


def check_layer_ids(ids: Sequence[int], layers: int, what: str, remedy: str) -> None:
    """UsageError where a head (`what`) reads hidden states that a target of so many layers does not have."""
    if list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] > layers:
        raise UsageError(
            f"{what} reads hidden states {list(ids)} of a target of {layers} layers, which has states 0 to {layers}: {remedy}"
        )


def unstated_layers(layers: int) -> tuple[int, ...]:
    """The hidden states that engines and EAGLE give a head that states none, of a target with so many layers."""
    return (2, layers // 2, layers - 3)


def named_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with the names of the modules here."""
    named = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        own = name.removeprefix("model.").replace("midlayer.", "layers.0.")
        if own.startswith("layers.0.") and not own.startswith("layers.0.hidden_norm."):
            own = own.replace("layers.0.", "layers.0.layer.", 1)
        named[own] = tensor
    return named


def take_targets(
    directory: Path, head: Eagle3Config, tensors: dict[str, torch.Tensor], tokens: int | None = None
) -> torch.Tensor | None:
    """`targets_D` of the head, from its maps `d2t` (differences) and `t2d` (which tokens it has), which are taken out. `tokens`:
    of its target. UsageError for maps that are missing or damaged, and for tokens that the target does not have."""
    differences, has_V = tensors.pop("d2t", None), tensors.pop("t2d", None)
    own = torch.arange(head.draft_vocabulary)
    if differences is None:
        if head.draft_vocabulary != head.vocabulary:
            raise UsageError(
                f"{directory}: the head has {head.draft_vocabulary:,} of {head.vocabulary:,} tokens, and no file has d2t, the "
                "list of them; save it with its vocabulary maps"
            )
        return None
    targets_D = own + differences.long() if differences.shape == own.shape else own - 1
    sound = (
        int(targets_D.min()) >= 0
        and int(targets_D.max()) < head.vocabulary
        and len(set(targets_D.tolist())) == len(own)
    )
    if sound and has_V is not None:
        sound = torch.equal(targets_D.sort().values, has_V.bool().nonzero().squeeze(1))
    if not sound:
        raise UsageError(
            f"{directory}: d2t and t2d do not name {head.draft_vocabulary:,} different tokens of {head.vocabulary:,}: the map of "
            "the head's vocabulary is damaged; take the head again from where it was published"
        )
    if tokens is not None and (highest := int(targets_D.max())) >= tokens:
        raise UsageError(
            f"{directory}: the head drafts token {highest:,} (d2t), and the target has {tokens:,} tokens; name the target that "
            "it was trained on"
        )
    return None if torch.equal(targets_D, own) and head.draft_vocabulary == head.vocabulary else targets_D
