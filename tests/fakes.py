"""Test doubles: models with an exactly known distribution, tiny random Llamas, and builders of stored rows."""

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import ArrayLike
from torch import nn

from pipeline.acceptance.profile import PromptCounts
from pipeline.corpus.prompt_store import Prompt
from pipeline.drafts.plain import PlainDraft
from pipeline.generation import distributions
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import Selection
from pipeline.generation.generate import GenerationSettings
from pipeline.progress import Progress
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.forward import CachedModel
from pipeline.speculation.settings import GREEDY, Sampling

if "PYTEST_VERSION" in os.environ:  # benchmarks import this too, and time all cores
    torch.set_num_threads(1)  # tensors of a few hundred numbers: threads only wait for each other


class TableModel:
    """A language model that is a table: logits (positions, V, W) by position (modulo the table's) and last token.

    It has the call signature that the decoder and the examination use of a Hugging Face model. It needs no cache, and
    its law depends on the position, so a token fed at a wrong one shows.
    """

    def __init__(self, table_PVW: torch.Tensor) -> None:
        self.table_PVW = table_PVW
        self.device, self.dtype = torch.device("cpu"), table_PVW.dtype

    def __call__(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> Any:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        logits_BTW = self.table_PVW[position_ids % len(self.table_PVW), input_ids]
        return SimpleNamespace(logits=logits_BTW[:, -logits_to_keep:])


def table_model(vocabulary: int, seed: int, *, positions: int = 2, scale: float = 1.5, padding: int = 0) -> TableModel:
    """A TableModel with random logits; `padding` more columns than tokens, whose logits are the largest of all."""
    generator = torch.Generator().manual_seed(seed)
    table_PVW = torch.full((positions, vocabulary, vocabulary + padding), 50.0, dtype=torch.float64)
    table_PVW[..., :vocabulary] = scale * torch.randn(
        positions, vocabulary, vocabulary, generator=generator, dtype=torch.float64
    )
    return TableModel(table_PVW)


def tiny_llama(
    seed: int = 0,
    *,
    vocabulary: int = 32,
    hidden: int = 16,
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    spread: float = 0.3,
    attention: str = "sdpa",
) -> Any:
    """A random LlamaForCausalLM. `spread` is the standard deviation of its weights: large enough for non-uniform logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation=attention,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()


_COMMON = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def family_model(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """A small random model of one of transformers' families, with random norms and biases."""
    config = getattr(transformers, f"{family}Config")(**_COMMON | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():  # which begin as ones and zeros, and hide mistakes
            if "norm" in name or name.endswith("bias"):
                nn.init.normal_(parameter, 0.8, 0.2)
    return model.to(dtype).eval()


@torch.inference_mode()
def largest_gap(model: Any, forward: Any, vocabulary: int) -> float:
    """The largest logit difference between the model's full passes and `forward` on ragged rows in blocks, some repeated."""
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(vocabulary, (30,), generator=generator).tolist() for _ in range(3)]
    side, gap = CachedModel(forward, 3, 36), 0.0
    fed = [7, 1, 12]
    side.logits(torch.tensor([text[:12] for text in texts]), [0, 0, 0], keep=1)
    expected = [full_logits(model, text)[:, :vocabulary] for text in texts]
    for width, stood in ((1, 1), (4, 2), (1, 1), (3, 0), (6, 6), (2, 1)):
        block_BT = torch.tensor([text[at : at + width] for text, at in zip(texts, fed, strict=True)])
        keep = max(1, width - 1)
        logits_BTV = side.logits(block_BT, fed, keep)
        assert (3, keep, vocabulary) == logits_BTV.shape
        for row, at in enumerate(fed):
            own_TV = expected[row][at + width - keep : at + width]
            assert torch.isfinite(logits_BTV).all()
            gap = max(gap, float((own_TV - logits_BTV[row]).abs().max()))
        fed = [at + stood + (row == 1) * (stood == 6) for row, at in enumerate(fed)]
    return gap


def change_json(file: Path, *dropped: str, **fields: Any) -> None:
    """Leave out fields of a JSON object in a file, and set others."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({name: value for name, value in known.items() if name not in dropped} | fields))


def add_tensors(model: Path, *dropped: str, **tensors: torch.Tensor) -> None:
    """Leave out tensors of a saved model, and store others."""
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in dropped}
    save_file(kept | tensors, file, {"format": "pt"})


def quantize_in_name(directory: Path) -> None:
    """Let a saved model say that it is quantized, with one tensor of integers beside its floats."""
    add_tensors(directory, **{"model.layers.0.qweight": torch.ones(2, dtype=torch.int32)})
    change_json(directory / "config.json", quantization_config={"quant_method": "gptq"})


def tiny_pair(seed: int, noise: float) -> tuple[Any, Any]:
    """A target in fp64 and a draft with noise on the output head, so that tokens are both accepted and rejected."""
    target, draft = tiny_llama(seed, layers=1), tiny_llama(seed, layers=1)
    with torch.no_grad():
        weight = draft.lm_head.weight
        weight += noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    return target, draft


def decoder_of(
    target: Any,
    draft: Any,
    gamma: Any,
    sampling: Sampling = GREEDY,
    *,
    vocabulary: int = 32,
    llama_forward: bool = True,
    **options: Any,
) -> Decoder:
    """A decoder of a target and a plain draft."""
    own = PlainDraft(draft, vocabulary, llama_forward)
    options |= {"sampling": sampling, "vocabulary": vocabulary, "gamma": gamma, "llama_forward": llama_forward}
    return Decoder(target, own, **options)


def ragged_requests(count: int) -> list[Request]:
    """Prompts of 1 to 11 tokens of a vocabulary of 32, and limits of 1 to 14; seeds are their numbers."""
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(32, (1 + 4 * n % 11,), generator=generator).tolist() for n in range(count)]
    return [Request(prompt, 1 + (10 + 5 * n) % 14, n) for n, prompt in enumerate(prompts)]


def tiny_tokenizer(tokens: int = 32, **special: str) -> Any:
    """A word-level tokenizer of `tokens` words w0, w1, ..., with w0 as EOS and w1 as padding unless `special` differs."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(tokens)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"eos_token": "w0", "pad_token": "w1", "unk_token": "w2"} | special
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def saved_tiny_llama(place: Path, dtype: torch.dtype = torch.float32) -> Path:
    """`place`, with a random model and its tokenizer as they are saved."""
    tiny_llama(1, dtype=dtype).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


@torch.inference_mode()
def full_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits (T, V) of one sequence by one pass, without a cache, a mask or a batch."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


def greedy_text(model: Any, prompt: Sequence[int], count: int, vocabulary: int, guess: Sequence[int] = ()) -> list[int]:
    """`count` greedy tokens after `prompt`, each by a full pass over all that precedes it. What stands in `guess` as far as it is
    right, and the token after it, take one pass together: its length and its tokens do not change the result."""
    ids, end = list(prompt), len(prompt) + count
    for token in greedy_along(model, prompt, guess, vocabulary):
        ids.append(token)
        if len(ids) == end or token != guess[len(ids) - len(prompt) - 1]:
            break
    while len(ids) < end:
        ids.append(int(full_logits(model, ids)[-1, :vocabulary].argmax()))
    return ids[len(prompt) :]


def greedy_along(model: Any, prompt: Sequence[int], text: Sequence[int], vocabulary: int) -> list[int]:
    """In place of each token of `text` after `prompt` the greedy one, by one pass."""
    if not text:
        return []
    found: list[int] = full_logits(model, [*prompt, *text])[len(prompt) - 1 : -1, :vocabulary].argmax(-1).tolist()
    return found


def stored_completion(
    prompt: ArrayLike,
    tokens: ArrayLike,
    *,
    name: str = "p0",
    domain: str = "code",
    split: str = "train",
    greedy: bool = False,
    sampling: Sampling = Sampling(),  # noqa: B008
    length: int | None = None,
    log_p: ArrayLike | None = None,
    vocabulary: int = 32,
    kept: int = 3,
    keep: Selection = "top_k",
    seed: int = 0,
) -> StoredCompletion:
    """A stored completion with random distributions."""
    tokens_N, generator = np.array(tokens, dtype=np.int32), np.random.default_rng(seed)
    count = len(tokens_N)
    p_NV = generator.dirichlet(np.ones(vocabulary), count)
    stored = distributions.sparsify(torch.from_numpy(p_NV).log(), kept, keep, generator.random(count))
    return StoredCompletion(
        id=name,
        text_id=f"text of {name}",
        conversation=f"conversation of {name}",
        split=split,
        domain=domain,
        sampling=GREEDY if greedy else sampling,
        prompt=np.array(prompt, dtype=np.int32),
        length=count if length is None else length,
        stopped=False,
        tokens=tokens_N,
        log_p=np.log(np.full(count, 0.5)).astype(np.float32) if log_p is None else np.array(log_p, dtype=np.float32),
        entries=distributions.pack(stored, vocabulary),
        certain=stored.certain_N,
        rest_log_p=stored.rest_log_p_N,
        vocabulary=vocabulary,
    )


def numbered_prompt(number: int, tokens: Sequence[int], split: str = "train", **more: Any) -> Prompt:
    """A prompt whose id, cluster, text and conversation are of its number, unless `more` has others."""
    name = f"{number:016x}"
    usual = {"domain": "code", "cluster": number, "text_id": name, "conversation": name}
    return Prompt(id=name, split=split, tokens=tuple(tokens), **{**usual, **more})


def plain_values(item: StoredCompletion) -> dict[str, Any]:
    """Every field of a stored completion, of arrays their type and their values: what `==` compares."""
    return {
        field.name: (value.dtype.name, value.tolist()) if isinstance(value, np.ndarray) else value
        for field in fields(item)
        for value in [getattr(item, field.name)]
    }


def counted(
    name: str,
    accepted: float,
    *,
    domain: str = "code",
    tokens: int = 100,
    calls: float = 50.0,
    gammas: int = 5,
    conversation: str | None = None,
) -> PromptCounts:
    """Counts of one prompt: `accepted` of `tokens`, and the same calls at every gamma. It is a conversation of its own unless one
    is named."""
    return PromptCounts(
        id=name,
        conversation=conversation or name,
        domain=domain,
        tokens=tokens,
        accepted=accepted,
        examined=float(tokens),
        rounds=[calls] * gammas,
        calls=[calls] * gammas,
        rounds_variance=[1.0] * gammas,
        accepted_drafts=[accepted / 2] * gammas,
        per_position=[accepted / 4] * gammas,
    )


def quiet() -> Progress:
    """Progress without a bar."""
    return Progress(terminal=False)


def generation_settings(**changes: Any) -> GenerationSettings:
    """Settings of a small generation, with `changes`."""
    usual = {"max_new_tokens": 9, "lookahead": 0, "distribution_tokens": 4, "distribution_selection": "sampled"}
    return GenerationSettings(**{**usual, "batch": 4, "shard": 4, "seed": 3, **changes})
