"""A target and drafts given on the command line, loaded and checked, without a config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.drafts.base_draft import has_other_vocabulary, transplanted
from pipeline.drafts.directory import NOTHING, TrainedOn, trained_on_before
from pipeline.drafts.head_config import find_target, kind_of
from pipeline.drafts.loading import load_head, load_mapped
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft
from pipeline.models.devices import choose_device
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.rope_choice import choice_in, with_factors
from pipeline.models.shape import read_shape
from pipeline.models.step_shape import step_shape
from pipeline.models.stored_embedding import stored_embedding
from pipeline.models.tokenizers import check_columns, check_same_family, stop_token_ids
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.target_states import TargetStates


class Located(Protocol):
    """A model that is downloaded, if need be, when its directory is asked for."""

    @property
    def directory(self) -> Path: ...


@dataclass(frozen=True, kw_only=True)
class NamedPair:
    """A target and any number of drafts with its tokenizer, ready to run."""

    target: Any
    drafts: dict[str, LoadedDraft]  # by short name, in the order given
    tokenizer: Any
    vocabulary: int  # tokens that all models share
    context: int  # shortest maximum sequence length of all models
    stop_tokens: list[int]
    trained_on: TrainedOn  # any of the drafts
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # of the target's generation_config.json
    shapes: Mapping[str, str] = field(default_factory=dict)  # of the drafts: those of equal ones take equal seconds
    notes: Sequence[str] = ()  # on drafts with another tokenizer


def load_named_pair(
    target: str,
    drafts: Mapping[str, Located],
    dtype: str | None,
    device: str,
    trust_remote_code: bool = False,
    other_tokenizers: bool = False,
) -> NamedPair:
    """Load a target and drafts, by short name, with the target's tokenizer. With `other_tokenizers` a draft that has another is
    loaded in the two forms in which it can be used: as a transplant, and as an engine maps its tokens.

    The target is a model directory, an artifact that contains one, or org/name[@revision] on the hub. `dtype` None: each model is
    loaded in the dtype that it was saved in. `device`: auto, cpu, cuda or cuda:N. Raises UsageError for a target that is no
    model, logits narrower than the tokenizer and a draft with another tokenizer, UnderstudyError for weights that do not load.
    """
    loading = _Loading(dtype, choose_device(device), trust_remote_code)  # before any download
    paths = {name: draft.directory for name, draft in drafts.items()}
    target_path = find_target(target)
    defaults = sampling_defaults(target_path)
    target_path, paths = _with_trained_factors(target_path, paths)
    tokenizer = load_tokenizer(target_path, trust_remote_code)
    kinds = {name: kind_of(path) for name, path in paths.items()}
    plain = [path for name, path in paths.items() if not kinds[name].reads_states]
    shapes = {path: read_shape(path, trust_remote_code) for path in (target_path, *plain)}
    width = shapes[target_path].logits_width
    tokenizers = {path: load_tokenizer(path, trust_remote_code) for path in plain}
    others = [path for path in plain if other_tokenizers and has_other_vocabulary(tokenizer, tokenizers[path], width)]
    widths = {path: shape.logits_width for path, shape in shapes.items() if path not in others}
    _check_tokenizers(tokenizer, tokenizers, widths, width)
    vocabulary = min(widths.values())
    model = loading.model(target_path)
    states, of_target = (
        TargetStates(model),
        _Target(target_path, tokenizer, width, stop_token_ids(target_path, tokenizer)),
    )
    loaded, notes, shape_of = dict[str, LoadedDraft](), list[str](), dict[str, str]()
    for name, path in paths.items():
        if path in others:
            forms, further_notes = _other_tokenizer(name, path, of_target, loading)
            loaded, notes = loaded | forms, notes + further_notes
            continue
        if kinds[name].reads_states:
            loaded[name] = load_head(kinds[name], path, states, vocabulary)
        else:
            loaded[name] = PlainDraft(loading.model(path), vocabulary)
        shape_of[name] = step_shape(path) or name
    return NamedPair(
        target=model,
        drafts=loaded,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=min(shape.context for shape in shapes.values()),
        stop_tokens=of_target.stops,
        trained_on=reduce(or_, map(trained_on_before, paths.values()), NOTHING),
        sampling_defaults=defaults,
        shapes={name: f"{shape_of.get(name, name)} {draft.models[0].dtype}" for name, draft in loaded.items()},
        notes=notes,
    )


def _check_tokenizers(tokenizer: Any, own: Mapping[Path, Any], widths: Mapping[Path, int], width: int) -> None:
    """UsageError for a draft whose tokenizer is not the target's, or logits that lack tokens. `own`: the drafts' tokenizers;
    `widths`: columns of logits of the models that have to fit; `width`: those of the target."""
    for path, other in own.items():
        if path in widths:
            check_same_family(tokenizer, other, width)
    for path, columns in widths.items():
        check_columns(tokenizer, columns, str(path))


def _with_trained_factors(target: Path, drafts: Mapping[str, Path]) -> tuple[Path, dict[str, Path]]:
    """The models with the rope factors with which a draft was trained, and its target examined."""
    chosen = next((choice for path in drafts.values() if (choice := choice_in(path)) is not None), None)
    if chosen is None:
        return target, dict(drafts)
    return with_factors(target, chosen), {name: with_factors(path, chosen) for name, path in drafts.items()}


@dataclass(frozen=True)
class _Loading:
    """How the models are loaded."""

    dtype: str | None  # None: each in the dtype that it was saved in
    device: torch.device
    trusted: bool

    def dtype_of(self, path: Path) -> str:
        """The dtype of one model."""
        return self.dtype or saved_dtype(path)

    def model(self, path: Path) -> Any:
        """The model in a directory."""
        return load_model(path, self.dtype_of(path), self.device, self.trusted)


@dataclass(frozen=True)
class _Target:
    """What a draft with another tokenizer needs of its target."""

    path: Path
    tokenizer: Any
    width: int
    stops: list[int]


def _other_tokenizer(
    name: str, path: Path, target: _Target, loading: _Loading
) -> tuple[dict[str, LoadedDraft], list[str]]:
    """The forms of a draft with another tokenizer, by name, and what they are."""
    transplant, mapped = f"{name} (transplant)", f"{name} (TLI)"
    model, facts, _ = transplanted(
        path,
        target.tokenizer,
        target.width,
        {},
        target.stops,
        lambda: stored_embedding(target.path, loading.trusted),
        loading.dtype_of(path),
        loading.trusted,
    )
    forms: dict[str, LoadedDraft] = {transplant: PlainDraft(model.to(loading.device), target.width)}
    notes = [f"{transplant}: the base draft of pair.draft.vocabulary = target, before any training: {facts.note()}"]
    notes += [f"{name}: {warning}" for warning in facts.warnings()]
    try:
        forms[mapped] = draft = load_mapped(
            path, target.tokenizer, target.width, loading.dtype_of(path), loading.device, loading.trusted
        )
        notes.append(f"{mapped}: {draft.note}")
    except BrokenDraft as error:
        notes.append(f"{mapped}: vLLM's use_heterogeneous_vocab does not serve it: {error}")
    notes.append(
        f"{name}: methods that draft text (transformers' assistant with another tokenizer, SLEM) are not predicted: what they "
        "draft depends on where each round began"
    )
    return forms, notes


def saved_dtype(path: Path) -> str:
    """The dtype that the weights of a model directory were saved in."""
    config = read_config(path)
    saved = config.dtype or config.torch_dtype or "float32"
    return saved if saved in ("float32", "bfloat16", "float16") else "float32"
