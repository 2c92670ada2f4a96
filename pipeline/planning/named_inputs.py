"""What `init` reads of the models and prompts that it is given, without a hub: models on this machine, the server of a target,
and the rows of a file of prompts."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from pipeline.config.corpus import PromptSource, named_source, source_path
from pipeline.config.pair import TARGET
from pipeline.config.server import EndpointConfig, ServerConfig
from pipeline.corpus.columns import input_column, system_column
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.recorded_turns import rows_by_answer
from pipeline.corpus.rows import BadRow, kind_of, parse_row
from pipeline.drafts.head_config import Eagle3Config, MedusaConfig, require_target, trainable_head
from pipeline.drafts.head_tensors import require_smaller as smaller
from pipeline.drafts.kinds import KindName
from pipeline.drafts.named_pair import saved_dtype
from pipeline.errors import UsageError
from pipeline.models.files import model_digest, model_files, tokenizer_files
from pipeline.models.loading import load_tokenizer
from pipeline.models.names import layers_to_keep, local_directory, pinned_name, same_model
from pipeline.models.shape import read_shape
from pipeline.planning.log_columns import READ, LogColumns
from pipeline.progress import Progress
from pipeline.servers.connect import served_model_of
from pipeline.servers.target import SCORING_TOKENS

_COLUMNS = (
    "format",
    "prompt_field",
    "input_field",
    "messages_field",
    "domain_field",
    "request_field",
)  # keys of a source
_APIS = {"sglang": "sglang", "llamacpp": "llama.cpp"}  # by the server's name for itself


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of the pair. What is None is not known, because the model is not on this machine."""

    source: str
    revision: str | None
    dtype: str
    directory: Path | None = None
    context: int | None = None
    chat_template: bool | None = None
    asked: bool = False  # the hub was asked for the revision
    layers: int | None = None  # of the target, which the draft is made of
    head: KindName | None = None  # an untrained one on the target's hidden states, which the draft is
    published: Eagle3Config | MedusaConfig | None = None  # a head, which the draft is
    url: str | None = None  # of the server that runs it
    served_name: str | None = None
    api: str = "vllm"
    trusted: bool = False  # whether code that ships with it may run


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What is in the file of prompts."""

    path: Path
    name: str  # in a config: the path, or a data set of the hub at a commit
    rows: int
    kinds: Counter[str]  # by the column that holds the prompt
    domains: Counter[str]
    follow_ups: int  # rows with more than one user message
    sessions: int  # rows with more than one recorded answer
    log: LogColumns
    is_log: bool  # of a deployment
    chats: int  # rows that need a chat template
    layout: str  # what the file was read as
    columns: Mapping[str, str]  # keys of the source that differ from their defaults
    unused: tuple[str, ...]  # other columns
    system: str | None  # of these, one that seems to hold system messages
    further: str | None  # and one that seems to belong to the prompt
    foreign_answers: str | None  # answers of other models, which are not used
    domain_field: str


def named_model(name: str, role: str, trusted: bool) -> Model:
    """A local directory, or a model of the hub, which is asked for its commit; nothing is fetched. `role`: target or draft, named
    in errors."""
    directory = local_directory(name, role)
    if directory is None:
        source, commit = pinned_name(name, role)
        asked = not name.endswith(f"@{commit}")
        return Model(source=source, revision=commit, dtype="bfloat16", asked=asked, trusted=trusted)
    if role == "target":
        require_target(directory, f"--target {name}")
    head = trainable_head(directory) if role == "draft" else None
    source, dtype = str(directory.resolve()), saved_dtype(directory)
    if head is not None:
        return Model(source=source, revision=None, dtype=dtype, directory=directory, published=head, trusted=trusted)
    return Model(
        source=source,
        revision=None,
        dtype=dtype,
        directory=directory,
        context=read_shape(directory, trusted).context,
        chat_template=bool(load_tokenizer(directory, trusted).chat_template),
        trusted=trusted,
    )


def draft_of_target(target: Model, head: KindName | None = None) -> Model:
    """The draft that is made of the target's layers, or as a head on its hidden states."""
    layers = None if head is not None else layers_to_keep(target.directory) or 4
    return replace(target, source=TARGET, revision=None, layers=layers, head=head, asked=False)


def require_two_models(target: Model, draft: Model, name: str) -> None:
    """UsageError if the draft, called `name`, is the target: the same directory, commit, or content."""
    if target.url is not None or draft.source == TARGET:
        return
    same = (target.source, target.revision) == (draft.source, draft.revision)
    if not same and target.directory and draft.directory:
        same = _sizes(target.directory) == _sizes(draft.directory) and (
            model_digest(target.directory) == model_digest(draft.directory)
        )
    if same:
        raise same_model(f"--draft {name}", target.directory)


def require_smaller(target: Model, draft: Model) -> None:
    """UsageError for a draft that is larger than its target, if both are here: as the pair stage does."""
    if target.url is None and target.directory and draft.directory and draft.source != TARGET:
        smaller(target.directory, draft.directory, draft.trusted)


def _sizes(directory: Path) -> list[int]:
    """The sizes of the files of a model, which differ for most models: those need not be hashed."""
    return sorted(file.stat().st_size for file in model_files(directory))


def served_model(url: str, tokenizer: str, trusted: bool) -> Model:
    """The target that the server at `url` runs, with the tokenizer in a directory or on the hub."""
    settings = _server_config(url)
    model = asyncio.run(served_model_of(settings, Progress()))
    given = Path(os.path.expanduser(tokenizer))
    directory = given if given.is_dir() else None
    if directory is None:
        tokenizer = "@".join(pinned_name(tokenizer, "tokenizer"))
    elif not tokenizer_files(directory):
        raise UsageError(
            f"--tokenizer {tokenizer}: not a directory with a tokenizer (no tokenizer.json there); name another"
        )
    return Model(
        source=str(directory.resolve()) if directory else tokenizer,
        revision=None,
        dtype=saved_dtype(directory) if directory and (directory / "config.json").is_file() else "bfloat16",
        directory=directory,
        context=None if model.context is None else model.context - SCORING_TOKENS,
        chat_template=bool(load_tokenizer(directory, trusted).chat_template) if directory else None,
        trusted=trusted,
        url=settings.endpoints[0].url,
        served_name=model.name,
        api=_APIS.get(model.owner or "", "vllm"),
    )


def _server_config(url: str) -> ServerConfig:
    try:
        return ServerConfig(endpoints=(EndpointConfig(url=url),))
    except ValidationError as error:
        raise UsageError(f"--target: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}") from None


def read_prompts(path: Path, columns: Mapping[str, str | None], name: str | None = None) -> Prompts:
    """Every row is parsed as a run would parse it. `columns`: keys of a source, None for what is recognised. `name`: as a config
    names the prompts; None: by their path. UsageError where no row is a prompt, and where no row has the domain that was asked
    for."""
    reader = SourceReader(0, named_source(path, {**columns}), path, option="--prompts", also=READ)
    source = reader.source.model_copy(update={"every_turn": True})
    kinds, domains, log, bad = Counter[str](), Counter[str](), LogColumns(source.messages_field), list[str]()
    by_answer = source.model_copy(update={"every_turn": False, "every_answer": True})
    follow_ups = sessions = chats = 0
    for row in reader:
        try:
            request = parse_row(row.value, source)
        except BadRow as reason:
            bad.append(f"{reader.unit} {row.number}: {reason}")
            continue
        kinds[kind_of(row.value, source)] += 1
        chats += not request.plain
        domains[request.domain] += 1
        follow_ups += bool(request.follow_ups)
        sessions += len(rows_by_answer(row.value, by_answer)) > 1
        if reader.columns.foreign_answers is None:
            log.add(row.value, request)
    rows = sum(kinds.values())
    if not rows:
        raise UsageError(f"--prompts {path}: no row contains a prompt{'; ' + bad[0] if bad else ''}")
    reader.require_named()
    return Prompts(
        path=source_path(path),
        name=name or str(source_path(path)),
        rows=rows,
        kinds=kinds,
        domains=domains,
        follow_ups=follow_ups,
        sessions=sessions,
        log=log,
        is_log=reader.is_log,
        chats=chats,
        layout=reader.layout,
        columns={key: getattr(source, key) for key in _COLUMNS if getattr(source, key) != _default(key)},
        unused=reader.columns.unused,
        system=system_column(reader.columns),
        further=input_column(reader.columns),
        foreign_answers=reader.columns.foreign_answers,
        domain_field=source.domain_field,
    )


def _default(key: str) -> str | None:
    value: str | None = PromptSource.model_fields[key].default
    return value
