"""Models on the hub: a pinned revision as a local directory. Torch-free."""

from pathlib import Path

from pipeline.errors import UnderstudyError

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "README.md"]
_UNUSED = ["consolidated*.safetensors", "original/*"]  # a second copy of the weights, in the format of another library


_WEIGHTS = ["*.safetensors"]


def fetch_tokenizer(name: str) -> Path:
    """The local path of the files of `org/name@revision` that are not weights: tokenizer, config and card. Raises as `fetch`."""
    source, _, revision = name.partition("@")
    return _snapshot(source, revision, _WEIGHTS, "give a local directory")


def fetch(source: str, revision: str) -> Path:
    """The local path of the snapshot of `source` at `revision`, downloaded if it is not cached.

    Raises UnderstudyError if it is not cached and cannot be downloaded.
    """
    return _snapshot(source, revision, _UNUSED, "point pair.*.source at a local directory")


def _snapshot(source: str, revision: str, ignored: list[str], otherwise: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=_PATTERNS, ignore_patterns=ignored))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnderstudyError(
            f"{source}@{revision}: cannot be fetched from the hub ({reason}); "
            f"check the network and HF_TOKEN, or {otherwise}"
        ) from error
