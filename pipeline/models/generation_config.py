"""The sampling defaults in a model's `generation_config.json`, which servers use for requests that set none."""

from pathlib import Path
from typing import Any

from pipeline.models.model_json import find_generation_config

# The keys that vLLM 0.32 reads (ModelConfig.get_diff_sampling_param), with values that change nothing. It ignores `do_sample`.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_k": (0, -1),
    "top_p": (1,),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "max_new_tokens": (),
}


def sampling_defaults(directory: Path) -> dict[str, Any]:
    """The defaults, by key, that a server takes over from the model in `directory`; empty without the file."""
    saved = vars(find_generation_config(directory))
    return {
        key: saved[key] for key, neutral in _NEUTRAL.items() if saved[key] is not None and saved[key] not in neutral
    }
