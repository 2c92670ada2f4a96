"""The base draft of a pair, and what its tokenizers must have in common. A draft is made here where the config asks for layers
of the target, and where the target has gained tokens since the draft was made."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.drafts.directory import TRAINED_ON
from pipeline.drafts.surgery import added_tokens, extend_vocabulary, prune_layers
from pipeline.errors import UsageError
from pipeline.models.derived import check_derived, computed
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.saving import save_model, save_tokenizer
from pipeline.models.tokenizers import check_same_family, legal_differences

_CPU = torch.device("cpu")


def draft_of_layers(
    target: Path, layers: int | Sequence[int], tokenizer: Any, dtype: str, out: Path, trust_remote_code: bool
) -> list[str]:
    """Write a draft made of some of the target's layers to `out`; returns notes about it. Raises as `prune_layers`."""
    whole = load_model(target, dtype, _CPU, trust_remote_code)
    model, chosen = prune_layers(whole, layers)
    save_model(model, out)
    save_tokenizer(tokenizer, out)
    check_derived(computed(model), out, dtype, _CPU, trust_remote_code, f"pair.draft.layers of {target}")
    return [
        f"the draft is the target's layers {', '.join(map(str, chosen))} of {whole.config.get_text_config().num_hidden_layers}"
    ]


def fitting_draft(
    given: Path, tokenizer: Any, width: int | None, dtype: str, out: Path, trust_remote_code: bool
) -> tuple[Path, list[str]]:
    """The directory of a draft with every token of the target's `tokenizer`, and notes about it. `width`: columns of the target's
    logits, None if it is not known.

    It is `given` itself, or a copy in `out` with rows for the tokens that the target has gained. UsageError for a quantized
    draft, or for one of another model family.
    """
    if read_config(given).is_quantized:
        raise UsageError(
            f"pair.draft: {given} is quantized, so it cannot be trained; set a draft with float weights "
            "(quantize makes the variants)"
        )
    own = load_tokenizer(given, trust_remote_code)
    gained = added_tokens(tokenizer, own, width)
    if not gained:
        return given, check_same_family(tokenizer, own, width)
    model = load_model(given, dtype, _CPU, trust_remote_code)
    before = computed(model)
    extend_vocabulary(model, gained)
    out.mkdir(parents=True, exist_ok=True)
    if (trained_on := given / TRAINED_ON).exists():
        shutil.copyfile(trained_on, out / TRAINED_ON)
    save_model(model, out)
    save_tokenizer(tokenizer, out)
    what = f"pair.draft with rows for {len(gained)} more tokens"
    check_derived(before, out, dtype, _CPU, trust_remote_code, what, columns=gained[0])
    return out, [
        f"the draft lacked {len(gained)} tokens of the target, such as {_token(tokenizer, gained)}: rows for them were "
        "added, which the draft can use only after training",
        *legal_differences(tokenizer, own),
    ]


def check_earlier_target(target: Any, before: Any, width: int | None) -> None:
    """`width`: columns of the target's logits, None if it is not known. UsageError or UnderstudyError
    unless `before`, the tokenizer of the earlier target, reads the target's prompts."""
    if gained := added_tokens(target, before, width):
        raise UsageError(
            f"pair.target_before: has no token {_token(target, gained)} ({len(gained)} in all), which the target gained; it "
            "cannot read the target's prompts; remove pair.target_before"
        )
    check_same_family(target, before, width)


def _token(tokenizer: Any, ids: list[int]) -> str:
    return repr(tokenizer.convert_ids_to_tokens(ids[0]))
