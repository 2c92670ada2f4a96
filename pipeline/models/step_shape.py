"""What of a model decides the seconds of a step: architecture, sizes and the form of its weights, not their values.

Read from config.json and from the headers of the weights. Torch-free: it is in keys, also of artifacts that are only looked for.
"""

from collections import Counter
from pathlib import Path

from pipeline.errors import UnderstudyError
from pipeline.models.files import weight_files
from pipeline.models.model_json import CONFIG, read_config
from pipeline.models.safetensors_header import FLOATS, read_header
from pipeline.store.files import content_key

# Of config.json: what shapes of tensors do not show. Other values are left out, because a config that was saved by another
# version of transformers spells them otherwise.
_OF_CONFIG = (
    "model_type",
    "hidden_act",
    "hidden_activation",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "layer_types",
    "sliding_window",
    "num_experts_per_tok",
)


def step_shape(directory: Path) -> str | None:
    """A digest, equal for models whose passes cost the same; None where there is no model, or a damaged one: whoever loads it
    states what is wrong."""
    try:
        return _digest(directory) if (directory / CONFIG).is_file() else None
    except UnderstudyError:
        return None


def _digest(directory: Path) -> str:
    config = read_config(directory)
    values = config.decoder.model_dump(exclude_unset=True, exclude_none=True)
    entries = [entry for file in weight_files(directory) for entry in read_header(file).values()]
    tensors = Counter((tuple(entry.shape), "" if entry.dtype in FLOATS else entry.dtype) for entry in entries)
    quantized = config.quantization
    return content_key(
        {
            "config": {name: values[name] for name in _OF_CONFIG if name in values},
            "code": sorted(map(str, (config.auto_map or {}).items())),
            "quantization": quantized.model_dump(mode="json", exclude_unset=True) if quantized else {},
            "tensors": sorted([[*shape], form, count] for (shape, form), count in tensors.items()),
        }
    )
