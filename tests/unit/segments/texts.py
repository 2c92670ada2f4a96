"""A byte-level tokenizer with added tokens and a chat template."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
QWEN3 = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")  # tokens of its own


def template_of(family: str) -> str:
    """The chat template of a family, as it is published: without line breaks before its statements."""
    return (TEMPLATES / f"{family}.jinja").read_text().replace("\n{%", "{%").removesuffix("\n")


@cache
def _trained() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = [
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        "It rains there. Look it up. I ask twice.",
        "<tool_call>\n",
    ]
    tokenizer.train_from_iterator(text * 9, trainer)
    return str(tokenizer.to_str())


def bpe_tokenizer(added: Sequence[str] = (), template: str | None = None) -> Any:
    """Merges across `"` and `{`, so that markers that are no tokens begin and end within tokens of others."""
    from tokenizers import Tokenizer
    from transformers import AddedToken, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()), bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    tokenizer.chat_template = template
    return tokenizer
