"""A target and drafts given on the command line, loaded and checked, without a config or a store."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.models.draft_directory import NOTHING, TrainedOn, trained_on_before
from pipeline.models.hub import commit_of, fetch
from pipeline.models.loading import choose_device, load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.names import hub_name
from pipeline.models.shape import read_shape
from pipeline.models.tokenizers import check_columns, check_same_family, stop_token_ids


@dataclass(frozen=True, kw_only=True)
class NamedPair:
    """A target and any number of drafts with its tokenizer, ready to run."""

    target: Any
    drafts: dict[str, Any]  # by short name, in the order given
    tokenizer: Any
    vocabulary: int  # tokens that all models share
    context: int  # shortest maximum sequence length of all models
    stop_tokens: list[int]
    trained_on: TrainedOn  # any of the drafts


def load_named_pair(
    target: str, drafts: Sequence[str], dtype: str | None, device: str, trust_remote_code: bool = False
) -> NamedPair:
    """Load a target and drafts by name, with the target's tokenizer.

    A name is a model directory, an artifact that contains one, or org/name[@revision] on the hub. `dtype` None: each model is
    loaded in the dtype that it was saved in. `device`: auto, cpu, cuda or cuda:N. Raises UsageError for a name that is no model
    and for logits narrower than the tokenizer, UnderstudyError for a draft with another tokenizer or weights that do not load.
    """
    where = choose_device(device)  # before any download
    names = short_names(list(dict.fromkeys(drafts)))
    paths = {short: find_model(name, "draft") for name, short in names.items()}
    target_path = find_model(target, "target")
    tokenizer = load_tokenizer(target_path, trust_remote_code)
    shapes = {path: read_shape(path, trust_remote_code) for path in (target_path, *paths.values())}
    for path in paths.values():
        check_same_family(tokenizer, load_tokenizer(path, trust_remote_code), shapes[target_path].logits_width)
    for path, shape in shapes.items():
        check_columns(tokenizer, shape.logits_width, str(path))

    def load(path: Path) -> Any:
        return load_model(path, dtype or saved_dtype(path), where, trust_remote_code)

    return NamedPair(
        target=load(target_path),
        drafts={name: load(path) for name, path in paths.items()},
        tokenizer=tokenizer,
        vocabulary=min(shape.logits_width for shape in shapes.values()),
        context=min(shape.context for shape in shapes.values()),
        stop_tokens=stop_token_ids(target_path, tokenizer),
        trained_on=reduce(or_, map(trained_on_before, paths.values()), NOTHING),
    )


def short_names(names: Sequence[str]) -> dict[str, str]:
    """A short name for each of `names`: the last components of its path, as many as make all short names different.

    For example, /a/x/draft and /a/y/draft become x/draft and y/draft. Returns name -> short name.
    """
    parts = {name: Path(name).parts for name in names}
    for kept in range(1, max(map(len, parts.values()), default=0) + 1):
        short = {name: "/".join(own[-kept:]) for name, own in parts.items()}
        if len(set(short.values())) == len(names):
            return short
    return {name: name for name in names}


def find_model(name: str, role: str) -> Path:
    """The model directory that `name` stands for, fetched from the hub if need be."""
    directory = local_directory(name, role)
    return directory if directory is not None else fetch(*pinned_name(name, role))


def pinned_name(name: str, role: str) -> tuple[str, str]:
    """`name`, which is no directory, as a hub model and its commit. Raises as `hub_name` and `commit_of` do."""
    source, revision = hub_name(name, f"--{role}")
    return source, commit_of(source, revision)


def local_directory(name: str, role: str) -> Path | None:
    """The model directory that `name` stands for; None if `name` is a hub model, `org/name` or `org/name@revision`.

    `role` is target or draft. In an artifact, the model is in the folder with the name of its role. UsageError if `name` is a
    directory without a model, or neither a directory nor the name of a hub model.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / role if (path / role / "config.json").is_file() else path
        if not (path / "config.json").is_file():
            raise UsageError(
                f"--{role} {name}: not a model directory (no config.json there); name the directory of the weights"
            )
        return path
    hub_name(name, f"--{role}")
    return None


def saved_dtype(path: Path) -> str:
    """The dtype that the weights of a model directory were saved in."""
    config = read_config(path)
    saved = config.dtype or config.torch_dtype or "float32"
    return saved if saved in ("float32", "bfloat16", "float16") else "float32"
