"""Trains the reference pair: tokenizer, target, base draft, then fine-tunes the target on text of another domain.

Does not depend on stages. Each finished model is a directory renamed into place, so a run that was killed repeats only the
training in which it was killed.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline.config.pair import ReferenceRecipe, ReferenceShape
from pipeline.distillation.muon import MuonWithAdamW
from pipeline.errors import UnderstudyError
from pipeline.models.devices import supports_bf16
from pipeline.models.saving import save_model
from pipeline.progress import Progress
from pipeline.reference.text import Document, ReferenceText
from pipeline.store.atomic import replacing, replacing_directory
from pipeline.store.own_files import reads_own_files

END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TOKENIZER_TEXT = 3_000_000  # characters; a vocabulary of 1,024 tokens changes little beyond
_PERPLEXITY_WINDOWS = 48


@dataclass(frozen=True)
class ModelTraining:
    """Text, steps and learning rate of one training."""

    label: str
    tokens: torch.Tensor  # 1-D, int64
    steps: int
    peak: float  # peak learning rate
    seed: int


def make_reference_pair(
    out: Path, recipe: ReferenceRecipe, text: ReferenceText, seed: int, device: torch.device, progress: Progress
) -> dict[str, float]:
    """Write `target_before/`, `draft/`, `target/` and `prompts.jsonl` under `out`.

    Returns the target's perplexities on held-out text, before and after fine-tuning, in both domains.
    """
    train = {name: _split(documents, held_out=False) for name, documents in _domains(text)}
    held_out = {name: _split(documents, held_out=True) for name, documents in _domains(text)}
    tokenizer = train_tokenizer(
        (document.text for documents in train.values() for document in documents), recipe.vocabulary
    )
    tokens = {name: _tokens(tokenizer, documents) for name, documents in train.items()}
    unseen = {name: _tokens(tokenizer, documents) for name, documents in held_out.items()}

    def part(name: str, model: Callable[[], LlamaForCausalLM], training: ModelTraining) -> LlamaForCausalLM:
        def train() -> LlamaForCausalLM:
            progress.line(f"pair: training the reference pair: {training.label} ({training.steps} steps)")
            return train_model(model(), training, recipe, device, progress)

        return _part(out / name, train, tokenizer, device)

    def perplexities(model: LlamaForCausalLM, when: str) -> dict[str, float]:
        return {f"perplexity_{name}_{when}": perplexity(model, row, recipe.context) for name, row in unseen.items()}

    first, base = recipe.target, recipe.draft
    before = part(
        "target_before",
        lambda: new_model(first, recipe, tokenizer, seed),
        ModelTraining("target", tokens["modules"], first.steps, first.learning_rate, seed),
    )
    part(
        "draft",
        lambda: new_model(base, recipe, tokenizer, seed + 1),
        ModelTraining("base draft", tokens["modules"], base.steps, base.learning_rate, seed + 1),
    )
    figures = perplexities(before, "before")  # before fine-tuning, which changes this model in place
    fine_tuning = ModelTraining(
        "fine-tuned target", tokens["tests"], recipe.fine_tune_steps, recipe.fine_tune_learning_rate, seed + 2
    )
    figures |= perplexities(part("target", lambda: before, fine_tuning), "after")
    write_prompts(out / "prompts.jsonl", held_out, tokenizer, recipe, seed)
    return figures


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` tokens with a minimal chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, PAD, *_ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, _TOKENIZER_TEXT), trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise UnderstudyError(
            f"the reference text yields only {tokenizer.get_vocab_size()} tokens; "
            f"lower pair.reference.vocabulary from {vocabulary}"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(
    shape: ReferenceShape, recipe: ReferenceRecipe, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    """A Llama-shaped decoder with random weights that depend on `seed` alone; embedding and head are tied."""
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=2 * recipe.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def train_model(
    model: LlamaForCausalLM, training: ModelTraining, recipe: ReferenceRecipe, device: torch.device, progress: Progress
) -> LlamaForCausalLM:
    """Next-token training on random windows: a short warm-up, then a cosine to a tenth of the peak learning rate.

    Muon for the matrices, AdamW for embedding and norms. In 40 seconds a target of 5.6 M parameters reached perplexity 115
    with Muon, and 218 at best with AdamW alone.
    """
    model.to(device).train()
    iterations, steps = recipe.newton_schulz_steps, training.steps
    optimizer = MuonWithAdamW(model, training.peak, weight_decay=0.1, betas=(0.9, 0.95), newton_schulz_steps=iterations)
    generator = torch.Generator().manual_seed(training.seed)
    warmup = max(1, steps // 20)
    with progress.track(training.label, steps, "steps") as track:
        for step in range(steps):
            rate = training.peak * min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch_BT = _windows(training.tokens, recipe.batch, recipe.context + 1, generator).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=supports_bf16(device)):
                logits_BTV = model(input_ids=batch_BT[:, :-1], use_cache=False).logits
                loss = functional.cross_entropy(logits_BTV.flatten(0, 1).float(), batch_BT[:, 1:].flatten())
            if not torch.isfinite(loss):
                raise UnderstudyError(
                    f"reference pair: the loss of the {training.label} is {loss.item()} at step {step}; lower its learning rate"
                )
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            track.advance(1, f"loss {loss.item():.2f}")
    return model.eval()


@torch.inference_mode()
def perplexity(model: LlamaForCausalLM, tokens: torch.Tensor, context: int) -> float:
    """exp of the mean negative log-likelihood over evenly spaced windows of `tokens`."""
    starts = np.linspace(0, max(len(tokens) - context - 1, 0), _PERPLEXITY_WINDOWS).astype(int)
    batch_BT = torch.stack([tokens[start : start + context + 1] for start in starts]).to(model.device)
    total = 0.0
    for rows_BT in torch.split(batch_BT, 16):
        logits_BTV = model(input_ids=rows_BT[:, :-1], use_cache=False).logits
        total += functional.cross_entropy(logits_BTV.flatten(0, 1), rows_BT[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / batch_BT[:, 1:].numel())


def write_prompts(
    path: Path,
    held_out: dict[str, list[Document]],
    tokenizer: PreTrainedTokenizerFast,
    recipe: ReferenceRecipe,
    seed: int,
) -> None:
    """Prompts cut at random places of held-out documents, as many of each domain. Each document is a group."""
    rows = []
    for name, documents in held_out.items():
        generator = random.Random(f"{seed}-{name}")
        wanted = recipe.prompts // len(held_out)
        encoded = [(document, tokenizer(document.text)["input_ids"]) for document in documents]
        encoded = [(document, ids) for document, ids in encoded if len(ids) > 2 * recipe.prompt_tokens]
        if not encoded:
            raise UnderstudyError(
                f"the reference text has no held-out document in the domain '{name}'; raise pair.reference.text_megabytes"
            )
        for number in range(wanted):
            document, ids = encoded[number % len(encoded)]
            length = generator.randint(recipe.prompt_tokens // 2, recipe.prompt_tokens)
            start = generator.randrange(len(ids) - length)
            rows.append(
                {"prompt": tokenizer.decode(ids[start : start + length]), "domain": name, "group": document.name}
            )
    with replacing(path) as partial:
        partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@reads_own_files("written by the same process")
def _part(
    directory: Path, build: Callable[[], LlamaForCausalLM], tokenizer: PreTrainedTokenizerFast, device: torch.device
) -> LlamaForCausalLM:
    """Load the model if an earlier, killed run finished it; else train it and rename it into place."""
    if not directory.exists():
        model = build()
        with replacing_directory(directory) as partial:
            save_model(model, partial)
            tokenizer.save_pretrained(partial)
            (partial / "README.md").write_text(
                "---\nlicense: psf-2.0\n---\nTrained by Understudy on Python's standard library.\n"
            )
    loaded: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    return loaded


def _domains(text: ReferenceText) -> tuple[tuple[str, Sequence[Document]], ...]:
    return ("modules", text.modules), ("tests", text.tests)


def _split(documents: Sequence[Document], held_out: bool) -> list[Document]:
    return [document for document in documents if document.held_out == held_out]


def _tokens(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]) -> torch.Tensor:
    """All documents as one row of ids, each followed by end-of-text."""
    encoded = tokenizer([document.text for document in documents])["input_ids"]
    return torch.tensor([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)])


def _windows(tokens: torch.Tensor, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
    starts_B = torch.randint(len(tokens) - length, (batch,), generator=generator)
    return tokens[starts_B[:, None] + torch.arange(length)]


def _first(texts: Iterable[str], characters: int) -> Iterable[str]:
    for text in texts:
        if characters <= 0:
            return
        yield text
        characters -= len(text)
