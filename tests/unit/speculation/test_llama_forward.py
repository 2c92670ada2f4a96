"""The Llama forward: its logits equal those of the model's own forward; unsupported architectures use their own forward."""

import math
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.drafts.plain import PlainDraft
from pipeline.speculation import llama_forward
from pipeline.speculation.batch import Request
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.model_forward import ModelForward
from pipeline.speculation.settings import GREEDY
from tests.fakes import family_model, full_logits, greedy_text, largest_gap, ragged_requests, tiny_llama

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, one key a head": ("Llama", {"num_key_value_heads": 4}),
    "llama, one key for all": ("Llama", {"num_key_value_heads": 1}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("Llama", {"head_dim": 10}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "llama, llama3": ("Llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e3} | LLAMA3}),
    "llama, yarn": ("Llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 64}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
}


SEPARATE = ("llama", "llama, biases", "llama, wide heads")  # what is packed: weights, biases, heads of other sizes


@pytest.mark.parametrize(
    ("shape", "packed"), [*((shape, True) for shape in SHAPES), *((shape, False) for shape in SEPARATE)]
)
def test_logits_are_the_models_own(shape: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp64 to 1e-9, for ragged rows, single tokens and blocks, overwritten rejected tokens, a padded vocabulary, and
    packed and unpacked matrices."""
    if not packed:
        monkeypatch.setattr(llama_forward, "_PACKED_BYTES", 0)
    family, settings = SHAPES[shape]
    model = family_model(family, **settings)
    body = choose_forward(model, 37)

    assert isinstance(body, LlamaForward)
    assert packed == (len(body.layers[0].qkv.weights_OI) == 1)
    assert largest_gap(model, body, 37) < 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_lower_precision_is_within_its_rounding(shape: str, dtype: torch.dtype, tolerance: float) -> None:
    """fp32 and bf16 models are supported, and differ from their own forward by rounding, relative to the largest logit."""
    model = family_model(SHAPES[shape][0], dtype, **SHAPES[shape][1])
    body = choose_forward(model, 40)
    largest = float(full_logits(model, range(1, 30)).abs().max())

    assert isinstance(body, LlamaForward)
    assert largest_gap(model, body, 40) < tolerance * largest


def test_both_forwards_give_the_same_logits() -> None:
    """The comparison above also holds for the model's own forward with the ragged cache."""
    model = family_model("Llama")

    assert largest_gap(model, ModelForward(model, 37), 37) < 1e-9


UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "another family": ("GPTNeoX", {"hidden_act": "gelu"}),
    "learned positions": ("GPT2", {}),
    "another activation": ("Llama", {"hidden_act": "gelu"}),
    "cosines that change with the length": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
}


@pytest.mark.parametrize("shape", UNKNOWN)
def test_an_unknown_shape_keeps_its_own_forward(shape: str) -> None:
    """It is decoded correctly with its own forward."""
    family, settings = UNKNOWN[shape]
    model = family_model(family, **settings)
    body = choose_forward(model, 40)
    requests = ragged_requests(3)
    completions = Decoder(model, PlainDraft(model, 40), sampling=GREEDY, vocabulary=40, gamma=2).decode(requests)

    assert isinstance(body, ModelForward)
    said = [completion.tokens for completion in completions]
    pairs = zip(requests, said, strict=True)
    assert [greedy_text(model, r.prompt, r.limit, 40, guess=tokens) for r, tokens in pairs] == said


class _Doubled(nn.Module):
    """A layer that says twice what another says."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return self.inner(x, **kwargs) * 2


def test_a_model_whose_logits_differ_keeps_its_own_forward() -> None:
    """The model type alone is not trusted: replaced layers, scaled logits and scaled inputs are detected by comparing
    logits; a replaced layer that the Llama forward calls is used."""
    scaled = family_model("Llama")
    own = scaled.forward

    def forward(**kwargs: Any) -> Any:
        output = own(**kwargs)
        output.logits = output.logits * 1.01
        return output

    scaled.forward = forward
    hooked = family_model("Llama")
    hooked.model.embed_tokens.register_forward_hook(lambda module, inputs, output: output * 1.1)
    late = family_model("Llama")
    late.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 1.1)
    replaced = family_model("Llama")
    replaced.model.layers[1].mlp.down_proj = _Doubled(replaced.model.layers[1].mlp.down_proj)

    assert [ModelForward] * 3 + [LlamaForward] == [
        type(choose_forward(m, 40)) for m in (scaled, hooked, late, replaced)
    ]
    assert isinstance(choose_forward(family_model("Llama"), 40, llama_forward=False), ModelForward)


def test_a_wrapped_model_keeps_its_own_forward() -> None:
    """A peft wrapper keeps the model's own forward; after the adapters are merged the Llama forward is used."""
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        wrapped = peft.get_peft_model(family_model("Llama"), config).eval()
    completions = Decoder(wrapped, None, sampling=GREEDY, vocabulary=40).decode([Request([1, 2], 6, 0)])

    assert isinstance(choose_forward(wrapped, 40), ModelForward)
    assert greedy_text(wrapped, [1, 2], 6, 40) == completions[0].tokens
    assert isinstance(choose_forward(wrapped.merge_and_unload(), 40), LlamaForward)


def test_a_model_spread_over_devices_keeps_its_own_forward() -> None:
    """Several devices need the own forward; a device map with one device does not."""
    model = family_model("Llama")
    model.hf_device_map = {"model": "cpu", "lm_head": "cpu"}
    assert isinstance(choose_forward(model, 40), LlamaForward)
    model.hf_device_map = {"model": "cpu", "lm_head": "disk"}
    assert isinstance(choose_forward(model, 40), ModelForward)


def test_damaged_weights_go_through_to_be_reported() -> None:
    """NaN logits cannot be compared: the Llama forward is used, and the decoder reports them."""
    model = tiny_llama(1)
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan

    assert isinstance(choose_forward(model, 32), LlamaForward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_int8_model_goes_through(dtype: torch.dtype) -> None:
    """bitsandbytes layers are called, not copied; greedy speculation with the model as its own draft accepts all tokens,
    and in fp32 the text equals that of full passes."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = family_model("Llama", dtype, hidden_size=32, intermediate_size=64)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    small = bitsandbytes.nn.Linear8bitLt(
                        linear.in_features, linear.out_features, bias=False, has_fp16_weights=False, threshold=0.0
                    )
                    small.load_state_dict({"weight": linear.weight.detach()})
                    setattr(part, name, small.to("cpu"))
    body = choose_forward(model, 40)
    requests = ragged_requests(4)
    completions = Decoder(model, PlainDraft(model, 40), sampling=GREEDY, vocabulary=40, gamma=3).decode(requests)
    drafted, accepted = (sum(sum(getattr(c, name)) for c in completions) for name in ("drafted", "accepted"))

    assert isinstance(body, LlamaForward)
    assert isinstance(body.layers[0].qkv, llama_forward._ModuleGroup)
    assert [request.limit for request in requests] == [completion.length for completion in completions]
    assert accepted > 0.7 * drafted
    if dtype == torch.float32:
        said = [completion.tokens for completion in completions]
        pairs = zip(requests, said, strict=True)
        assert [greedy_text(model, r.prompt, r.limit, 40, guess=tokens) for r, tokens in pairs] == said


def test_rows_are_selected_layer_by_layer() -> None:
    """A layer's old cache is freed before the next one is copied: a copy of all would take half as much memory again."""
    model = tiny_llama(3)
    body = choose_forward(model, 32)
    caches = body.allocate(4, 16)
    old = [weakref.ref(layer) for layer in caches.layers]
    alive = list[int]()

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.index.Tensor:
                alive.append(sum(layer() is not None for layer in old))
            return func(*args, **(kwargs or {}))

    with Watched():
        body.select(caches, [2, 0])

    assert list(range(len(old), 0, -1)) == alive
    assert [2] * len(old) == [len(layer) for layer in caches.layers]
