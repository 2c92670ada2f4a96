"""A directory with the files of a model that are in its digest, and no others: transformers gets it in place of the model's own.

transformers looks for more files than it is told of: adapters beside the weights, weights under names that config.json states,
checkpoints of distributed trainings, code of other repositories. They would change the model, and no key would know. Torch-free.
"""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.models.files import code_files, config_files, weight_files
from pipeline.models.model_json import ADAPTER, CONFIG, code_named_in, config_values, names_nothing
from pipeline.store.atomic import temporary_directory

# Keys of config.json that state how a model was computed, not what it computes, or name further files.
_LEFT_OUT = frozenset(
    (
        *("_attn_implementation", "_attn_implementation_internal", "attn_implementation"),
        *("_experts_implementation", "_experts_implementation_internal", "experts_implementation"),
        *("transformers_weights", "fusion_config", "distributed_config", "use_kernels"),
    )
)
_DTYPES = ("dtype", "torch_dtype")
_FLOATS = ("float32", "bfloat16", "float16", "float64")
_OTHER_NAMES = {("type", "su"): "longrope", ("rope_type", "su"): "longrope"}  # of RoPE in the first releases of Phi 3


class ListedFiles:
    """Links to a model's listed files; without `weights`, to those that a config needs. A context manager; who loads a model that
    goes on reading its files (layers on disk) calls `close` at its end."""

    def __init__(self, model: Path, weights: bool, trust_remote_code: bool) -> None:
        config = config_values(model)
        if trust_remote_code:
            check_own_code(model)
        self._open = ExitStack()
        # What a killed process left there, which may be layers on disk, is removed with it.
        self.scratch = self._open.enter_context(temporary_directory(Path(tempfile.gettempdir(), "understudy-model")))
        # transformers names the module of a model's code after the directory.
        self.directory = self.scratch / (model.resolve().name or "model")
        self.directory.mkdir()
        for file in (*config_files(model), *code_files(model), *(weight_files(model) if weights else ())):
            (self.directory / file.name).symlink_to(file.resolve())
        if (wanted := _as_read(config)) != config:
            (self.directory / CONFIG).unlink()
            (self.directory / CONFIG).write_text(json.dumps(wanted))

    def __enter__(self) -> Path:
        return self.directory

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()


def not_applied(model: Path) -> list[str]:
    """Notes on files in a model's directory that would change it in other programs, and are not used here."""
    if not (model / ADAPTER).is_file():
        return []
    return [
        f"{model}: {ADAPTER} lies beside the weights of a whole model; the adapter is not applied, as in engines; to use it, "
        "merge it into the weights (peft: merge_and_unload, then save_pretrained)"
    ]


def check_own_code(directory: Path) -> None:
    """UsageError where the code of a model or of its tokenizer lies in another repository."""
    for file, names in code_named_in(directory).items():
        if other := [name for name in names if "--" in name]:
            raise UsageError(
                f"{file}: auto_map names code of another repository ({other[0]}), which no digest covers; copy its *.py files "
                "into the directory and write their names without the repository"
            )


def _as_read(section: dict[str, Any]) -> dict[str, Any]:
    """A section of config.json without what has no part in what a model computes, and for which transformers fails."""
    return {
        key: _as_read(value)
        if isinstance(value, dict) and key != "quantization_config"
        else _OTHER_NAMES.get((key, str(value)), value)
        for key, value in section.items()
        if key not in _LEFT_OUT and not _has_no_meaning(key, value, section.get("vocab_size"))
    }


def _has_no_meaning(key: str, value: Any, vocabulary: Any) -> bool:
    if key in _DTYPES:  # in which it was saved; such as `auto`, or float8 beside quantized weights
        return isinstance(value, str) and value not in _FLOATS
    if key == "quantization_config":
        return isinstance(value, dict) and names_nothing(value)
    return (
        key == "pad_token_id" and isinstance(value, int) and isinstance(vocabulary, int) and not 0 <= value < vocabulary
    )
