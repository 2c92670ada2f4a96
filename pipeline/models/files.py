"""The files of a model directory and their digest. Torch-free, so that keys are computed without importing torch."""

from pathlib import Path

from pipeline.errors import UnderstudyError
from pipeline.store.files import content_key, file_sha256

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
)
_CONFIG_FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer files, sorted."""
    named = [directory / name for name in _TOKENIZER_FILES]
    return sorted(path for path in (*named, *directory.glob("*.tiktoken")) if path.is_file())


def code_files(directory: Path) -> list[Path]:
    """Code shipped with a model. It is part of the model, but runs only with `trust_remote_code`."""
    return sorted(directory.glob("*.py"))


def model_files(directory: Path) -> list[Path]:
    """Weights (safetensors only), config, tokenizer and code files, sorted; model cards are not included.

    UnderstudyError without safetensors: pickled weights can execute code and are never loaded.
    """
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise UnderstudyError(
            f"{directory}: no .safetensors weights; convert the checkpoint first (save_pretrained writes safetensors)"
        )
    configs = [directory / name for name in _CONFIG_FILES if (directory / name).is_file()]
    return sorted([*weights, *configs, *tokenizer_files(directory), *code_files(directory)])


def model_digest(directory: Path) -> str:
    """Content digest of a model directory, independent of its path."""
    return content_key({path.name: file_sha256(path) for path in model_files(directory)})


def tokenizer_digest(directory: Path) -> str:
    """Content digest of the tokenizer files only."""
    files = tokenizer_files(directory)
    if not files:
        raise UnderstudyError(f"{directory}: no tokenizer files")
    return content_key({path.name: file_sha256(path) for path in files})
