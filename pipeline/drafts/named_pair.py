"""A target and drafts given on the command line, loaded and checked, without a config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Protocol

from pipeline.drafts.directory import NOTHING, TrainedOn, trained_on_before
from pipeline.drafts.head_config import find_target, kind_of
from pipeline.drafts.loading import load_head
from pipeline.drafts.plain import PlainDraft
from pipeline.models.devices import choose_device
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.rope_choice import choice_in, with_factors
from pipeline.models.shape import read_shape
from pipeline.models.step_shape import step_shape
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


def load_named_pair(
    target: str, drafts: Mapping[str, Located], dtype: str | None, device: str, trust_remote_code: bool = False
) -> NamedPair:
    """Load a target and drafts, by short name, with the target's tokenizer.

    The target is a model directory, an artifact that contains one, or org/name[@revision] on the hub. `dtype` None: each model is
    loaded in the dtype that it was saved in. `device`: auto, cpu, cuda or cuda:N. Raises UsageError for a target that is no
    model, logits narrower than the tokenizer and a draft with another tokenizer, UnderstudyError for weights that do not load.
    """
    where = choose_device(device)  # before any download
    paths = {name: draft.directory for name, draft in drafts.items()}
    target_path = find_target(target)
    defaults = sampling_defaults(target_path)
    choices = [choice_in(path) for path in paths.values()]
    if chosen := next(
        (one for one in choices if one is not None), None
    ):  # with which the draft was trained, and its target examined
        target_path, *others = (with_factors(path, chosen) for path in (target_path, *paths.values()))
        paths = dict(zip(paths, others, strict=True))
    tokenizer = load_tokenizer(target_path, trust_remote_code)
    kinds = {name: kind_of(path) for name, path in paths.items()}
    plain = [path for name, path in paths.items() if not kinds[name].reads_states]
    shapes = {path: read_shape(path, trust_remote_code) for path in (target_path, *plain)}
    for path in plain:
        check_same_family(tokenizer, load_tokenizer(path, trust_remote_code), shapes[target_path].logits_width)
    for path, shape in shapes.items():
        check_columns(tokenizer, shape.logits_width, str(path))

    def load(path: Path) -> Any:
        return load_model(path, dtype or saved_dtype(path), where, trust_remote_code)

    vocabulary, model = min(shape.logits_width for shape in shapes.values()), load(target_path)
    states = TargetStates(model)
    loaded: dict[str, LoadedDraft] = {
        name: load_head(kinds[name], path, states, vocabulary)
        if kinds[name].reads_states
        else PlainDraft(load(path), vocabulary)
        for name, path in paths.items()
    }
    return NamedPair(
        target=model,
        drafts=loaded,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=min(shape.context for shape in shapes.values()),
        stop_tokens=stop_token_ids(target_path, tokenizer),
        trained_on=reduce(or_, map(trained_on_before, paths.values()), NOTHING),
        sampling_defaults=defaults,
        shapes={name: f"{step_shape(path) or name} {loaded[name].models[0].dtype}" for name, path in paths.items()},
    )


def saved_dtype(path: Path) -> str:
    """The dtype that the weights of a model directory were saved in."""
    config = read_config(path)
    saved = config.dtype or config.torch_dtype or "float32"
    return saved if saved in ("float32", "bfloat16", "float16") else "float32"
