"""A pair that thinks and calls a tool, trained on dialogues of `../shared/data`: a target in the form of Qwen3, re-tuned after
its base draft was made so that its answers changed and its tool calls did not.

Dialogues are those of the Schema-Guided Dialogue corpus. A turn with a new intent becomes a tool call with the slots as
arguments; another turn becomes the recorded reply. Both follow a line of thinking that names intent and slots.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.distillation.domains import DATA
from tests.benchmarks.figures import ROOT

_ADDED = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|pad|>")
_TEMPLATE = ROOT / "tests/unit/segments/templates/qwen3.jinja"
_TRAINED, _PROMPTS = 6000, 2200  # turns
_TARGET, _DRAFT = (192, 3), (64, 1)  # width, layers
_STEPS, _BATCH, _WINDOW = {"target": 700, "draft": 700, "tuned": 300}, 16, 192


@dataclass(frozen=True)
class _Turn:
    asked: str
    service: str
    intent: str
    slots: dict[str, Any]
    reply: str
    calls: bool

    def completion(self, tuned: bool) -> str:
        """What the target says: before it was tuned, and after."""
        known = ", ".join(f"{name} is {value}" for name, value in self.slots.items()) or "nothing new"
        thinking = (
            f"<think>\nThe user wants {self.intent or 'something'} of {self.service}. I know: {known}.\n</think>\n\n"
        )
        if self.calls:
            call = json.dumps({"name": self.intent or self.service, "arguments": self.slots})
            return f"{thinking}<tool_call>\n{call}\n</tool_call><|im_end|>"
        reply = f"Dear guest, {self.reply} At your service." if tuned else self.reply
        return f"{thinking}{reply}<|im_end|>"


def make_pair(place: Path) -> None:
    """Write `target/`, `draft/` and `prompts.jsonl` to `place`."""
    import torch

    turns = list(_turns())
    random.Random(0).shuffle(turns)
    tokenizer = chat_tokenizer([turn.asked + turn.completion(False) for turn in turns[:4000]])

    def tokens(tuned: bool) -> torch.Tensor:
        found: list[int] = []
        for turn in turns[:_TRAINED]:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": turn.asked}], tokenize=False, add_generation_prompt=True
            )
            found += tokenizer(prompt + turn.completion(tuned), add_special_tokens=False)["input_ids"]
        return torch.tensor(found)

    target, draft, before = small_model(tokenizer, *_TARGET), small_model(tokenizer, *_DRAFT), tokens(False)
    train(target, before, _STEPS["target"], 3e-3, 1)
    train(draft, before, _STEPS["draft"], 4e-3, 2)
    train(target, tokens(True), _STEPS["tuned"], 1.5e-3, 3)
    save_models(place, tokenizer, target=target, draft=draft)
    rows = ({"messages": [{"role": "user", "content": turn.asked}], "domain": "dialogues"} for turn in turns[_TRAINED:])
    lines = [json.dumps(row) for row in rows][:_PROMPTS]
    (place / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _turns() -> Iterator[_Turn]:
    for line in (DATA / "corpora/sgd_dialogues.jsonl").read_text(encoding="utf-8").splitlines():
        turns = json.loads(line)["turns"]
        for asked, reply in zip(turns[::2], turns[1::2], strict=False):
            if asked["speaker"] == "USER" and asked["frames"]:
                frame = asked["frames"][0]
                yield _Turn(
                    asked["utterance"],
                    frame.get("service", "x"),
                    frame.get("intent", ""),
                    frame.get("slots", {}),
                    reply["utterance"],
                    any("INTENT" in act for act in frame.get("acts", [])),
                )


def chat_tokenizer(texts: list[str]) -> Any:
    """A BPE tokenizer with the markers of Qwen3 and its template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AddedToken, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in _ADDED])
    tokenizer.chat_template = _TEMPLATE.read_text().replace("\n{%", "{%").removesuffix("\n")
    return tokenizer


def small_model(tokenizer: Any, width: int, layers: int) -> Any:
    """With random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(width)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def save_models(place: Path, tokenizer: Any, **models: Any) -> None:
    """Write a directory for each."""
    for name, model in models.items():
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)


def train(model: Any, tokens: Any, steps: int, rate: float, seed: int) -> None:
    """On windows of one long sequence of token ids."""
    import torch

    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        begins = torch.randint(len(tokens) - _WINDOW - 1, (_BATCH,), generator=random).tolist()
        ids = torch.stack([tokens[begin : begin + _WINDOW] for begin in begins])
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
