"""Which files of a directory are the model, and their digest. Torch-free, so that a key can be computed without torch."""

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
    """Files that decide how text becomes tokens, sorted."""
    named = [directory / name for name in _TOKENIZER_FILES]
    return sorted(path for path in (*named, *directory.glob("*.tiktoken")) if path.is_file())


def code_files(directory: Path) -> list[Path]:
    """Code shipped with a model: run only where the user trusts it, part of the model in any case."""
    return sorted(directory.glob("*.py"))


def model_files(directory: Path) -> list[Path]:
    """Weights (safetensors only), configs, tokenizer and code files, sorted; provenance and cards are not the model.

    UnderstudyError where there are no safetensors: pickled weights can run code and are never loaded.
    """
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise UnderstudyError(
            f"{directory}: no .safetensors weights; convert the checkpoint first (save_pretrained writes safetensors)"
        )
    configs = [directory / name for name in _CONFIG_FILES if (directory / name).is_file()]
    return sorted([*weights, *configs, *tokenizer_files(directory), *code_files(directory)])


def model_digest(directory: Path) -> str:
    """Content digest of a model directory: equal for equal bytes, wherever it lies."""
    return content_key({path.name: file_sha256(path) for path in model_files(directory)})


def tokenizer_digest(directory: Path) -> str:
    """Content digest of the tokenizer files alone."""
    files = tokenizer_files(directory)
    if not files:
        raise UnderstudyError(f"{directory}: no tokenizer files")
    return content_key({path.name: file_sha256(path) for path in files})
