"""From a YAML file and `--set` overrides to a frozen Config, or to one clear line per mistake."""

import copy
import difflib
import io
import os
import re
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.config.corpus import source_path
from pipeline.config.credentials import masked, uris_with_credentials
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.escaping.secrets import know_secret
from pipeline.store.json_text import json_kind, read_text

_MOST_BYTES = 1 << 20  # yaml reads about as many in a second
_MOST_VALUES = 20_000  # of a YAML document with its aliases expanded
_MOST_LEVELS = 50
# Beside its own errors yaml raises what Python does, such as for `!!bool x` and `!!int ''`.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)
_SECRET = re.compile("(password|token|secret|credentials?)$", re.IGNORECASE)  # keys whose values are not printed


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error; by default the last one would win silently. Aliases that expand to more
    than `_MOST_VALUES` values are an error: a few lines of nested aliases can stand for more values than fit into memory."""

    _level = _values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._level > _MOST_LEVELS:
            raise yaml.composer.ComposerError(None, None, f"nested more than {_MOST_LEVELS} levels deep")
        self._level, self._values = self._level + 1, self._values + 1
        if self._values > _MOST_VALUES:  # found while it is read, which takes time
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_VALUES:,} values")
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self._level -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _expanded_size(node, {}) > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, f"aliases expand to more than {_MOST_VALUES:,} values")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {_short(key)} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    if re.match("[-+]?0[0-7_]+$", node.value):  # 0100 would be 64
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value} begins with 0, which is octal in YAML; leave the 0 out", node.start_mark
        )
    value: int = loader.construct_yaml_int(node)
    if abs(value) >= 2**63:
        raise yaml.constructor.ConstructorError(None, None, "an integer has more than 64 bits", node.start_mark)
    return value


def _construct_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    """JSON writes an emoji as two escapes, which yaml leaves apart. ValueError for half of such a pair."""
    text: str = loader.construct_yaml_str(node)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _refuse(loader: _Loader, node: yaml.Node) -> None:
    loader.construct_undefined(node)


def _refuse_merge(loader: _Loader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(
        None, None, "merge keys (<<) are not read; write the values out", node.start_mark
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _construct_text)  # the types of JSON, and no others
_Loader.add_constructor("tag:yaml.org,2002:merge", _refuse_merge)
for _other in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_other}", _refuse)


def _expanded_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of values in `node` with every alias expanded. `sizes` remembers nodes by id; an alias inside its own anchor
    counts as too many."""
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_VALUES
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        nodes = [inner for part in parts for inner in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_expanded_size(inner, sizes) for inner in nodes)
    return sizes[id(node)]


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read `path`, apply `key.path=value` overrides, validate. Precedence: defaults < file < overrides.

    Paths inside the config are taken relative to the config file, and are absolute in what is returned.
    Raises UsageError with a line for each mistake.
    """
    raw = _read(path)
    if not isinstance(raw, dict):
        raise UsageError(
            f"{path}: a config must be a mapping of sections, not {json_kind(raw)}; `understudy init` prints one"
        )
    called = _programs(raw)
    for override in overrides:
        _apply(raw, override)
    if changed := [key for key, value in _programs(raw).items() if value != called[key]]:
        # Who may start a run may set its settings, and must not choose which program is called.
        raise UsageError(
            f"--set {changed[0]}: set it in the config file; --set does not change which program is called"
        )
    config = parse_config(raw, str(path), overrides)
    return _anchored(config, path.resolve().parent, str(path))


def parse_config(raw: Any, where: str, overrides: Sequence[str] = ()) -> Config:
    """Validate an already parsed mapping; `where` names it in messages, or the override that a mistake is in."""
    if not isinstance(raw, dict):
        raise UsageError(
            f"{where}: a config must be a mapping of sections, not {json_kind(raw)}; `understudy init` prints one"
        )
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise UsageError(
            *(masked(f"{_blamed(_location(item), overrides, where)}: {_explain(item)}") for item in _causes(error))
        ) from None
    for place, mistake in uris_with_credentials(raw):
        raise UsageError(f"{_blamed(place, overrides, where)}: {'.'.join(place)}: {mistake}")
    notices = (config.promote.notice, config.watch.notice)
    for section in (config.generate.server, config.watch, *notices):
        if section is not None and section.key_variable is not None:
            know_secret(section.key_variable)
    for notice in notices:
        if notice is not None and notice.url_variable is not None:
            know_secret(notice.url_variable)
    return config


def _programs(raw: Any) -> dict[str, Any]:
    """A copy of the settings that name what is called, as they were written; None where one is not set."""

    def found(*place: str) -> Any:
        value = raw
        for name in place:
            value = value.get(name) if isinstance(value, dict) else None
        return copy.deepcopy(value)

    places = (("promote", "notice"), ("promote", "export", "converter"), ("watch", "notice"))
    return {".".join(place): found(*place) for place in places}


def _read(path: Path) -> Any:
    try:
        # Of a string, an error would show a part: it may be a password.
        stream = io.StringIO(read_text(path, _MOST_BYTES))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such config file; `understudy init` prints one") from None
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{path}: not a YAML text file: {why}; `understudy init` prints one") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a YAML text file: {error}; `understudy init` prints one") from None
    try:
        return yaml.load(stream, _Loader)
    except _YAML_ERRORS as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}; correct that line") from None


def _apply(raw: Any, override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UsageError(
            f"--set {masked(override)}: write it as key.path=value, for example --set distill.max_steps=100"
        )
    try:
        value = yaml.load(text, _Loader)
    except _YAML_ERRORS:
        raise UsageError(
            f"--set {masked(override)}: the value is not valid YAML; "
            "quote it for the shell, and text with special characters again"
        ) from None
    node = raw
    for depth, part in enumerate(parts[:-1]):
        node = _descend(node, part, ".".join(parts[: depth + 1]), override)
    if isinstance(node, list):
        node[_index(node, parts[-1], override)] = value
    else:
        node[parts[-1]] = value


def _descend(node: Any, part: str, so_far: str, override: str) -> Any:
    if isinstance(node, list):
        item = node[_index(node, part, override)]
        if not isinstance(item, dict | list):
            raise UsageError(f"--set {masked(override)}: {so_far} is {_short(item)}, not a section")
        return item
    if part not in node or node[part] is None:
        node[part] = {}
    if not isinstance(node[part], dict | list):
        raise UsageError(f"--set {masked(override)}: {so_far} is {_short(node[part])}, not a section")
    return node[part]


def _index(node: list[Any], part: str, override: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", part) or int(part) >= len(node):
        raise UsageError(f"--set {masked(override)}: '{part}' is not a position of a list of {len(node)}")
    return int(part)


def _causes(error: ValidationError) -> list[Any]:
    """Its mistakes, without a list that is too short only because pydantic does not count items with a mistake."""
    within = {item["loc"][:depth] for item in error.errors() for depth in range(len(item["loc"]))}
    errors = [item for item in error.errors() if item["type"] != "too_short" or item["loc"] not in within]
    words = {item["loc"][:-1]: item["ctx"]["expected"] for item in errors if _is_word(item)}
    return [_with_word(item, words) for item in errors if not _is_word(item)]


def _is_word(item: Any) -> bool:
    """Whether the error is of a key that takes a number or a word, such as `auto`: pydantic reports one error for each."""
    return bool(item["loc"]) and str(item["loc"][-1]).startswith("literal[")


def _with_word(item: Any, words: Mapping[tuple[Any, ...], str]) -> Any:
    """One mistake at the key itself."""
    key = item["loc"][:-1]
    return {**item, "loc": key, "msg": f"{item['msg']}, or {words[key]}"} if key in words else item


def _location(item: Any) -> list[str]:
    return [str(part) for part in item["loc"]]


def _blamed(location: Sequence[str], overrides: Sequence[str], where: str) -> str:
    """What set the wrong key: the file, an override, or both if the mistake is between several keys."""
    keys = [override.partition("=")[0].strip().split(".") for override in overrides]
    if any(list(location[: len(key)]) == key for key in keys):
        return "--set"
    return f"{where} with --set" if any(key[: len(location)] == list(location) for key in keys) else where


def _explain(item: Any) -> str:
    """One pydantic error as: path = value: what is wrong; what is allowed."""
    location = _location(item)
    path = ".".join(location) or "config"
    if item["type"] == "extra_forbidden":
        value = "" if _SECRET.search(location[-1]) else f" = {_short(item['input'])}"
        allowed = _keys_at(location[:-1])
        nearest = difflib.get_close_matches(location[-1], allowed, n=1, cutoff=0.5)
        hint = f"; did you mean '{'.'.join([*location[:-1], nearest[0]])}'?" if nearest else ""
        return f"{path}{value}: unknown key{hint} (allowed here: {', '.join(allowed)})"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "invalid_key":  # `yes`, `on`, a number or nothing
        return f"{_short(item['input'])} as a key: keys are text; correct it, or quote it"
    if item["type"] == "missing":
        return f"{path}: required, and missing"
    if item["type"] == "value_error":
        return f"{path}: {message}"
    if item["type"] in ("tuple_type", "list_type"):
        given = item["input"]
        like = (
            f", like [{masked(str(given))}]" if isinstance(given, str | int | float) and len(str(given)) <= 40 else ""
        )
        return f"{path} = {_short(given)}: expected a list{like}"
    if item["type"] == "dict_type":
        return f"{path} = {_short(item['input'])}: expected a mapping, like {{key: value}}"
    if item["type"] in ("model_type", "model_attributes_type"):
        return f"{path} = {_short(item['input'])}: expected a section (keys: {', '.join(_keys_at(location))})"
    return f"{path} = {_short(item['input'])}: {message[0].lower()}{message[1:]}"


def _short(value: Any) -> str:
    try:
        text = masked(repr(value))
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or very deep lists
        text = f"({type(value).__name__})"
    return text if len(text) <= 80 else text[:77] + "..."


def _keys_at(location: Sequence[str]) -> list[str]:
    """The keys that the section at `location` accepts."""
    model: type[BaseModel] = Config
    for part in location:
        field = model.model_fields.get(part)
        if field is None:
            continue  # a position within a list of sections
        section = section_within(field.annotation)
        if section is not None:
            model = section
    return list(model.model_fields)


def section_within(annotation: Any) -> type[BaseModel] | None:
    """The config section that a field's annotation holds, alone, optional or in a list; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((section for part in typing.get_args(annotation) if (section := section_within(part))), None)


def _anchored(config: Config, base: Path, where: str) -> Config:
    """The same config with local paths made absolute, relative ones starting at the config file."""

    def anchor(text: str, is_watched: bool = False, is_prompts: bool = False) -> str:
        """`is_watched`: the path may be a link that is moved while the process runs, so it stays one."""
        try:
            path = base / Path(text).expanduser()
            if is_prompts:
                return str(source_path(path))
            return os.path.abspath(path) if is_watched else str(path.resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a link to itself, the home of an unknown user, a NUL
            raise UsageError(f"{where}: {text} is not a path: {error}") from None

    raw = config.model_dump()
    for role in ("target", "draft", "target_before"):
        source = getattr(config.pair, role)
        if source is not None and source.is_local:
            raw["pair"][role]["source"] = anchor(source.source)
    if (tokenizer := config.pair.target.tokenizer) is not None and "@" not in tokenizer:
        raw["pair"]["target"]["tokenizer"] = anchor(tokenizer)
    for source, entry in zip(config.corpus.sources, raw["corpus"]["sources"], strict=True):
        if not source.is_reference and not (source.is_hub and not os.path.lexists(base / source.path)):
            entry["path"] = anchor(source.path, is_prompts=True)
    if config.promote.export is not None:
        raw["promote"]["export"]["out"] = anchor(config.promote.export.out)
        if config.promote.export.converter is not None:
            raw["promote"]["export"]["converter"] = anchor(config.promote.export.converter)
    for key in ("log", "expected"):
        if (path := getattr(config.watch, key)) is not None:
            raw["watch"][key] = anchor(path, is_watched=True)
    raw["gate"]["profile"] = {variant: anchor(path) for variant, path in config.gate.profile.items()}
    if config.gate.champion_profile is not None:
        raw["gate"]["champion_profile"] = anchor(config.gate.champion_profile)
    return Config.model_validate(raw)
