"""The settings of a request that stand in an object of their own, such as Ollama's `options` or `model_parameters` of exports, as
fields of the request. Pure.

What a request was sampled with decides whether its answer is a sample of the target. A setting is read by its name, in whatever
spelling, wherever it stands; a value that a table holds as text is the value.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipeline.corpus.json_values import decoded
from pipeline.store.json_text import parse_json

HOLDERS = (
    *("options", "parameters", "sampling_params", "extra_body"),  # Ollama, TGI, SGLang, clients of OpenAI's API
    *("model_parameters", "modelParameters", "optional_params", "invocation_params"),  # LiteLLM, Langfuse, LangSmith
    *("generation_config", "generationConfig", "inferenceConfig"),  # Gemini, Bedrock
)
_ONLY_HERE = "options"  # of Ollama, which ignores settings beside it
_OTHER_NAMES = {"num_predict": "max_tokens", "max_new_tokens": "max_tokens", "stop_words": "stop"}
_UPPER = re.compile(r"(?<=[a-z])[A-Z]")
_PLAIN = re.compile(r"-?\d{1,12}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?|true|false|null")


def with_settings(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """`fields` with those of `names` that stand in an object within them. A field of the request itself goes before one of an
    object, but for Ollama."""
    settings = {name: item for name, item in fields.items() if name not in names or item is not None}
    settings |= {name: _plain(settings[name]) for name in names if isinstance(settings.get(name), str)}
    for holder in HOLDERS:
        inner = decoded(fields.get(holder))
        if not isinstance(inner, Mapping):
            continue
        for key, item in inner.items():
            name = setting_name(str(key))
            if name in names and item is not None and (name not in settings or holder == _ONLY_HERE):
                settings[name] = _plain(item)
    return settings


def holders_of(rows: Iterable[Mapping[str, Any]], names: Collection[str]) -> list[str]:
    """The objects in which `rows` have fields of `names`."""
    inner = [(holder, decoded(row.get(holder))) for row in rows for holder in HOLDERS]
    holders = {
        holder
        for holder, value in inner
        if isinstance(value, Mapping) and any(setting_name(str(key)) in names for key in value)
    }
    return [holder for holder in HOLDERS if holder in holders]


def setting_name(key: str) -> str:
    """`stopSequences` as stop_sequences, `num_predict` as max_tokens."""
    name = _UPPER.sub(lambda upper: "_" + upper.group().lower(), key)
    return _OTHER_NAMES.get(name, name)


def _plain(value: Any) -> Any:
    """A number, true, false, null, a list or an object that is written as text."""
    if not isinstance(value, str):
        return value
    if not _PLAIN.fullmatch(value):
        return decoded(value)
    try:
        return parse_json(value, foreign=True)
    except ValueError:  # such as `007`
        return value
