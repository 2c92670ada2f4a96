"""Models of published shapes with random weights, made on the device: what they compute is as costly as the real ones.

Their logits are scaled so that drafts of any shape agree with targets of any shape at `AGREEMENT`. If logits have standard
deviation s about independent values, sum min(p, q) = 2 Phi(-s / sqrt 2) (log p - log q is normal with deviation s sqrt 2).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
import transformers

AGREEMENT = 0.8  # acceptance rate at temperature 1
_SPREAD = -NormalDist().inv_cdf(AGREEMENT / 2) * 2**0.5
_WEIGHT = 0.02  # standard deviation of the weights

_QWEN3: dict[str, Any] = {
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
_LLAMA3: dict[str, Any] = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072}
# By name, as their config.json says: hidden, intermediate, layers, heads, tied embeddings.
_SHAPES = {
    "Qwen3-8B": ("Qwen3", _QWEN3, (4096, 12288, 36, 32, False)),
    "Qwen3-1.7B": ("Qwen3", _QWEN3, (2048, 6144, 28, 16, True)),
    "Qwen3-0.6B": ("Qwen3", _QWEN3, (1024, 3072, 28, 16, True)),
    "Llama-3.1-8B": ("Llama", _LLAMA3, (4096, 14336, 32, 32, False)),
    "Llama-3.2-1B": ("Llama", _LLAMA3 | {"head_dim": 64}, (2048, 8192, 16, 32, True)),
}
PAIRS = (("Qwen3-8B", "Qwen3-0.6B"), ("Llama-3.1-8B", "Llama-3.2-1B"))
_TINY = {"vocab_size": 512, "head_dim": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096}


@dataclass(frozen=True)
class Setup:
    """Where and what the parts measure. `tiny`: shapes for a rehearsal, whose figures mean nothing."""

    device: torch.device
    tiny: bool
    work: Path  # for what a part keeps from one call to the next
    until: float = math.inf  # of time.monotonic(): programs that a part has started are ended then

    def size(self, whole: int, tiny: int) -> int:
        return tiny if self.tiny else whole

    def model(self, name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
        """A model of a published shape."""
        config = published(name, self.tiny)
        torch.manual_seed(len(name))
        with torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        with torch.no_grad():
            model.lm_head.weight *= _SPREAD / (
                _WEIGHT * config.hidden_size**0.5
            )  # the last norm gives states of norm sqrt(hidden)
        return model.eval()

    def vocabulary(self, name: str) -> int:
        return int(_TINY["vocab_size"] if self.tiny else _SHAPES[name][1]["vocab_size"])


def published(name: str, tiny: bool = False) -> Any:
    """The config of a shape. `tiny`: of its family, with few and narrow layers whose sizes are multiples of FP8's blocks."""
    family, common, (hidden, intermediate, layers, heads, tied) = _SHAPES[name]
    if tiny:
        common, (hidden, intermediate, layers, heads) = common | _TINY, (128, 256, 2, 4)
    return getattr(transformers, f"{family}Config")(
        **common,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=tied,
        initializer_range=_WEIGHT,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def multiplied(name: str, tiny: bool = False) -> int:
    """Parameters of a published shape that each token is multiplied with: without an embedding that only looks up rows."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(published(name, tiny))
    rows = model.get_input_embeddings().weight
    return parameters(model) - (0 if rows is model.get_output_embeddings().weight else rows.numel())
