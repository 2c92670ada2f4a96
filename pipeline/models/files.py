"""The files of a model directory and their digest. Torch-free, so that keys are computed without importing torch."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.model_json import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    INDEX_FORMAT,
    MOST_BYTES,
    PROCESSOR_TEMPLATE,
    TOKENIZER_CONFIG,
    code_named_in,
)
from pipeline.store.files import content_key, file_sha256

_TOKENIZERS = (  # one of them makes a tokenizer
    *("tokenizer.json", TOKENIZER_CONFIG, "tokenizer.model", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
_PACKAGES = {
    **dict.fromkeys(("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"), "sentencepiece"),
    "tekken.json": "mistral-common",
}
_TOKENIZER_FILES = (
    *_TOKENIZERS,
    *("special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja", PROCESSOR_TEMPLATE),
)
_TOKENIZER_GLOBS = ("*.tiktoken", "additional_chat_templates/*.jinja")
WEIGHTS = "model.safetensors"
_CARD_HEADER = 1 << 16  # bytes
_CONFIG_FILES = (CONFIG, GENERATION_CONFIG, INDEX)


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer files, sorted. Chat templates beside the default one are in a directory of their own. Code, if the tokenizer
    names any."""
    named = [directory / name for name in _TOKENIZER_FILES]
    globbed = [path for pattern in _TOKENIZER_GLOBS for path in directory.glob(pattern)]
    if directory / TOKENIZER_CONFIG in code_named_in(directory):
        globbed += code_files(directory)
    return sorted(path for path in (*named, *globbed) if path.is_file())


def require_regular(directory: Path) -> None:
    """UsageError for a pipe, a device, a directory or a link to nothing with the name of a file of a model: whoever lists files
    takes it for one that is not there. Also for one beside the weights that is larger than any is: libraries read it whole, many
    times over."""
    for name in (*_CONFIG_FILES, WEIGHTS, *_TOKENIZER_FILES):
        path = directory / name
        if os.path.lexists(path) and not path.is_file():
            raise UsageError(f"{path}: not a regular file, nor a link to one; put the file itself there")
        if name != WEIGHTS and path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
            raise UsageError(
                f"{path}: {size:,} bytes, and such a file has at most {MOST_BYTES:,}: damaged; take it again from where "
                "the model was published"
            )


def needed_package(directory: Path) -> tuple[str, str] | None:
    """The file that the tokenizer is made of where there is no tokenizer.json, and the package that reads it."""
    if (directory / "tokenizer.json").is_file():
        return None
    return next((entry for entry in _PACKAGES.items() if (directory / entry[0]).is_file()), None)


def has_tokenizer(directory: Path) -> bool:
    """Whether a tokenizer can be made of the files in `directory`."""
    return any((directory / name).is_file() for name in _TOKENIZERS)


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
        for file in (directory / WEIGHTS, directory / INDEX):
            if file.is_symlink():
                raise UnderstudyError(
                    f"{file}: a link to {file.readlink()}, which is not there; download the model again"
                )
        raise UnderstudyError(
            f"{directory}: no {WEIGHTS} and no {INDEX}; convert the checkpoint first (save_pretrained writes safetensors)"
        )
    shards = sorted({directory / name for name in INDEX_FORMAT.read(directory / INDEX).weight_map.values()})
    for shard in shards:
        if not shard.is_file():
            raise UnderstudyError(f"{shard}: not there, but {INDEX} lists it; download the model again")
    return shards


def other_weight_files(directory: Path) -> list[Path]:
    """Shards beside a `model.safetensors`. transformers reads the file, and vLLM and SGLang read the shards of the index."""
    if not ((directory / WEIGHTS).is_file() and (directory / INDEX).is_file()):
        return []
    listed = {directory / name for name in INDEX_FORMAT.read(directory / INDEX).weight_map.values()}
    return sorted(file for file in listed - {directory / WEIGHTS} if file.is_file())


def config_files(directory: Path) -> list[Path]:
    """The config of a model, its generation config and the index of its weights, as far as they are there."""
    return [directory / name for name in _CONFIG_FILES if (directory / name).is_file()]


def model_files(directory: Path) -> list[Path]:
    """Weights (safetensors only), config, tokenizer and code files, sorted; model cards are not included.

    Raises UnderstudyError as `weight_files` does.
    """
    weights = weight_files(directory)
    return sorted({*weights, *config_files(directory), *tokenizer_files(directory), *code_files(directory)})


def copy_files(files: Iterable[Path], source: Path, out: Path) -> None:
    """Copy `files` of the model in `source` to the same places in `out`."""
    for path in files:
        place = out / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, place)


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
    return _content(directory, model_files(directory))


def tokenizer_digest(directory: Path) -> str:
    """Content digest of the tokenizer files only."""
    files = tokenizer_files(directory)
    if not files:
        raise UnderstudyError(f"{directory}: no tokenizer files; copy those of the model there")
    return _content(directory, files)


def _content(directory: Path, files: list[Path]) -> str:
    return content_key({path.relative_to(directory).as_posix(): file_sha256(path) for path in files})
