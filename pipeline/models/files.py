"""The files of a model directory and their digest. Torch-free, so that keys are computed without importing torch."""

from pathlib import Path

from pipeline.errors import UnderstudyError
from pipeline.models.model_json import CONFIG, GENERATION_CONFIG, INDEX, INDEX_FORMAT
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
WEIGHTS = "model.safetensors"
_CARD_HEADER = 1 << 16  # bytes
_CONFIG_FILES = (CONFIG, GENERATION_CONFIG, INDEX)


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer files, sorted."""
    named = [directory / name for name in _TOKENIZER_FILES]
    return sorted(path for path in (*named, *directory.glob("*.tiktoken")) if path.is_file())


def code_files(directory: Path) -> list[Path]:
    """Code shipped with a model. It is part of the model, but runs only with `trust_remote_code`."""
    return sorted(directory.glob("*.py"))


def weight_files(directory: Path) -> list[Path]:
    """The files that transformers loads: `model.safetensors`, or the shards in its index. Others, such as a copy of the weights
    in `consolidated.safetensors`, are not part of the model.

    UnderstudyError without safetensors: pickled weights can execute code and are never loaded.
    """
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        raise UnderstudyError(
            f"{directory}: no {WEIGHTS} and no {INDEX}; convert the checkpoint first (save_pretrained writes safetensors)"
        )
    shards = sorted({directory / name for name in INDEX_FORMAT.read(directory / INDEX).weight_map.values()})
    for shard in shards:
        if not shard.is_file():
            raise UnderstudyError(f"{shard}: not there, but {INDEX} lists it; download the model again")
    return shards


def model_files(directory: Path) -> list[Path]:
    """Weights (safetensors only), config, tokenizer and code files, sorted; model cards are not included.

    Raises UnderstudyError as `weight_files` does.
    """
    weights = weight_files(directory)
    configs = [directory / name for name in _CONFIG_FILES if (directory / name).is_file()]
    return sorted([*weights, *configs, *tokenizer_files(directory), *code_files(directory)])


def licence(path: Path) -> str | None:
    """The licence in the header of a model's card, where there is one."""
    for name in ("README.md", "card.md"):
        if (path / name).is_file():
            with (path / name).open("rb") as stream:
                beginning = stream.read(_CARD_HEADER).decode("utf-8", errors="replace")
            for line in beginning.splitlines()[:60]:
                if line.startswith("license:"):
                    return line.partition(":")[2].strip() or None
    return None


def model_digest(directory: Path) -> str:
    """Content digest of a model directory, independent of its path."""
    return content_key({path.name: file_sha256(path) for path in model_files(directory)})


def tokenizer_digest(directory: Path) -> str:
    """Content digest of the tokenizer files only."""
    files = tokenizer_files(directory)
    if not files:
        raise UnderstudyError(f"{directory}: no tokenizer files; copy those of the model there")
    return content_key({path.name: file_sha256(path) for path in files})
