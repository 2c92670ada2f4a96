"""The base draft of a pair, and what its tokenizers must have in common. A draft is made here where the config asks for layers
of the target, where the target has gained tokens since the draft was made, and where it is to have the target's tokenizer."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.drafts.directory import TRAINED_ON
from pipeline.drafts.kinds import Kind
from pipeline.drafts.shared_tokens import Vocabularies
from pipeline.drafts.surgery import added_tokens, extend_vocabulary, gained_tokens, prune_layers
from pipeline.drafts.token_rows import TokenRows, write_token_rows
from pipeline.drafts.transplant import TransplantFacts, transplant
from pipeline.errors import UsageError
from pipeline.models.derived import check_derived, computed
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.saving import save_model, save_tokenizer
from pipeline.models.shape import find_width
from pipeline.models.tokenizers import check_columns, check_same_family, columns_for, legal_differences

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
    require_float_weights(given)
    own = load_tokenizer(given, trust_remote_code)
    gained = lacking_rows(tokenizer, own, width)
    if not gained:
        return given, check_same_family(tokenizer, own, width)
    model = load_model(given, dtype, _CPU, trust_remote_code)
    before = computed(model)
    extend_vocabulary(model, gained)
    _copy_trained_on(given, out)
    save_model(model, out)
    save_tokenizer(tokenizer, out)
    what = f"pair.draft with rows for {len(gained)} more tokens"
    check_derived(before, out, dtype, _CPU, trust_remote_code, what, columns=gained[0])
    return out, [
        f"the draft lacked {len(gained)} tokens of the target, such as {_token(tokenizer, gained)}: rows for them were "
        "added, which the draft can use only after training",
        *legal_differences(tokenizer, own),
    ]


def lacking_rows(
    target: Any, own: Any, width: int | None, text: Callable[[], Mapping[int, int]] = dict[int, int]
) -> list[int]:
    """What `gained_tokens` gives; the UsageError for tokenizers of different families states what `pair.draft.vocabulary` would
    do. `text`: gives how often prompts have each token."""
    try:
        return gained_tokens(target, own, width)
    except UsageError as error:
        try:
            shared = Vocabularies(target, own, width, None).shared({}, ())
        except UsageError:  # nothing is known of its bytes
            raise error from None
        raise UsageError(f"{error}, or set pair.draft.vocabulary to target: {shared.in_words(text())}") from None


def has_other_vocabulary(target: Any, own: Any, width: int | None) -> bool:
    """Whether a draft with the tokenizer `own` has to be given the target's."""
    try:
        gained_tokens(target, own, width)
    except UsageError:
        return True
    return False


def require_no_head(kind: Kind) -> None:
    """UsageError for a head, where `pair.draft.vocabulary` is the target's."""
    if kind.reads_states:
        raise UsageError(
            f"pair.draft.vocabulary = target: {kind.name} is a head on the target's hidden states, which has the target's "
            "tokenizer; leave the key out"
        )


def draft_of_other_vocabulary(
    given: Path,
    tokenizer: Any,
    width: int | None,
    tokens: Mapping[str, str],
    stops: Sequence[int],
    embedding: Callable[[], torch.Tensor | str],
    dtype: str,
    out: Path,
    trust_remote_code: bool,
) -> TransplantFacts:
    """Write the draft in `given`, which has another tokenizer, to `out` with the target's `tokenizer` and rows for its tokens,
    and beside `out` how each row was made. Returns what became of the tokens.

    `width`: as in `fitting_draft`; `tokens`: `pair.draft.tokens`; `stops`: the target's stop tokens; `embedding`: gives that of
    the target (V, E), or why it is not at hand. UsageError for a draft whose tokens cannot be compared with the target's.
    """
    model, facts, made = transplanted(given, tokenizer, width, tokens, stops, embedding, dtype, trust_remote_code)
    for config in (model.config, model.config.get_text_config()):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, list(stops) or None
        config.pad_token_id = None  # the row of a padding token is not trained, and often it is the token of the end
    model.generation_config.bos_token_id, model.generation_config.pad_token_id = tokenizer.bos_token_id, None
    _copy_trained_on(given, out)
    write_token_rows(out.parent, made)
    save_model(model, out, list(stops))
    save_tokenizer(tokenizer, out)
    check_derived(computed(model), out, dtype, _CPU, trust_remote_code, "pair.draft with the target's vocabulary")
    return facts


def transplanted(
    given: Path,
    tokenizer: Any,
    width: int | None,
    tokens: Mapping[str, str],
    stops: Sequence[int],
    embedding: Callable[[], torch.Tensor | str],
    dtype: str,
    trust_remote_code: bool,
) -> tuple[Any, TransplantFacts, TokenRows]:
    """What `draft_of_other_vocabulary` saves: the model in host memory, and how each row was made."""
    require_float_weights(given)
    own = load_tokenizer(given, trust_remote_code)
    own_width = find_width(given, trust_remote_code)
    assert own_width is not None  # a model directory
    check_columns(own, own_width, "pair.draft")
    vocabularies = Vocabularies(tokenizer, own, width, own_width)
    shared = vocabularies.shared(tokens, stops)
    model = load_model(given, dtype, _CPU, trust_remote_code)
    columns = columns_for(tokenizer) if width is None else width
    facts, made = transplant(model, vocabularies, shared, columns, embedding())
    return model, facts, made


def require_float_weights(given: Path) -> None:
    """UsageError for a quantized draft."""
    if read_config(given).is_quantized:
        raise UsageError(
            f"pair.draft: {given} is quantized, so it cannot be trained; set a draft with float weights "
            "(quantize makes the variants)"
        )


def _copy_trained_on(given: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if (trained_on := given / TRAINED_ON).exists():
        shutil.copyfile(trained_on, out / TRAINED_ON)


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
