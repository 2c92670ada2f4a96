"""A draft with another tokenizer than the quickstart's target: written as by SentencePiece (a dummy prefix, `<0x67>` for bytes),
with single digits and more tokens. It is trained as the quickstart's base draft is, on the same text."""

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipeline.config.loading import load_config
from pipeline.models.saving import save_model, save_tokenizer
from pipeline.progress import Progress
from pipeline.reference.recipe import ModelTraining, new_model, train_model
from pipeline.reference.text import read_text

_TOKENS = 1500
_NAMES = ("<unk>", "<s>", "</s>")
_QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def write_other_draft(out: Path, steps: int) -> None:
    """Train it and write its model directory."""
    recipe = load_config(_QUICKSTART).pair.reference
    recipe = recipe.model_copy(update={"vocabulary": _TOKENS})
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [one.text for one in read_text(library, recipe.text_megabytes).modules if not one.held_out]
    tokenizer = _tokenizer(texts)
    ids = [[*one, tokenizer.eos_token_id] for one in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    tokens = torch.tensor([token for row in ids for token in row])
    model = new_model(recipe.draft, recipe, tokenizer, 1)
    training = ModelTraining("draft of another tokenizer", tokens, steps, recipe.draft.learning_rate, 1)
    train_model(model, training, recipe, torch.device("cpu"), Progress())
    save_model(model, out)
    save_tokenizer(tokenizer, out)


def _tokenizer(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.Split(Regex("\u2581*[^\u2581\n]+|\n+|\u2581+"), "isolated")  # no token goes over words
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, digits])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    first = [*_NAMES, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=_TOKENS, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [one for one in spec["added_tokens"] if one["content"] in _NAMES]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


if __name__ == "__main__":
    write_other_draft(Path(sys.argv[1]), int(sys.argv[2]))
