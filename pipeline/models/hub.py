"""Models on the hub: the commit of a name, and a pinned revision as a local directory. Torch-free."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pipeline.config.credentials import credentials_in, masked
from pipeline.errors import UnderstudyError, UsageError

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py", "README.md"]
_UNUSED = ["consolidated*.safetensors", "original/*"]  # a second copy of the weights, in the format of another library


_WEIGHTS = ["*.safetensors"]


_COMMIT = re.compile("[0-9a-f]{40}")
_ASK_SECONDS = 15.0


def commit_of(source: str, revision: str | None, kind: Literal["model", "data set"] = "model") -> str:
    """The commit of a branch or tag of `source` (None: the main branch), as the hub has it now. A commit is returned as it is.

    UsageError for a model, data set or revision that the hub does not have; UnderstudyError if the hub does not answer. Both
    state how to go on without it.
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    _check_address()
    from huggingface_hub import HfApi, errors
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    network: type[Exception] = getattr(errors, "HTTPError", OSError)  # of the HTTP client, which depends on the version
    otherwise = f"write {source}@ and the commit's 40 hex digits, or give a local directory"
    cached = _cached(source) if kind == "model" else ""
    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        commit = ask(source, revision=revision, timeout=_ASK_SECONDS).sha
    except GatedRepoError:
        raise UsageError(f"{source}: its owners give access to it on the hub; ask for it, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"{source}: neither a directory here nor a {kind} of the hub (a private one needs HF_TOKEN); check the name"
        ) from None
    except RevisionNotFoundError:
        raise UsageError(f"{source}: the hub has no revision {revision} of it") from None
    except (network, OSError, ValueError) as error:
        reason = masked(" ".join(str(error).split()))[:160]
        raise UnderstudyError(f"{source}: the hub does not report its commit ({reason}); {otherwise}{cached}") from None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise UnderstudyError(f"{source}: the hub does not report its commit; {otherwise}{cached}")
    return commit


def _check_address() -> None:
    """UsageError where the address of a mirror holds credentials: errors quote it."""
    if mistake := credentials_in(os.environ.get("HF_ENDPOINT", ""), "set HF_TOKEN"):
        raise UsageError(f"HF_ENDPOINT: {mistake}")


def _cached(source: str) -> str:
    """A hint at the commit of `source` that this machine's cache has."""
    cached = find_cached(source, None)
    return f" (this machine has {source}@{cached.name})" if cached is not None else ""


def find_cached(source: str, revision: str | None) -> Path | None:
    """The local path of a snapshot that is in this machine's cache, of the main branch where no revision is given."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def fetch_tokenizer(name: str) -> Path:
    """The local path of the files of `org/name@revision` that are not weights: tokenizer, config and card. Raises as `fetch`."""
    source, _, revision = name.partition("@")
    return _snapshot(source, revision, _WEIGHTS, "give a local directory")


def fetch(source: str, revision: str) -> Path:
    """The local path of the snapshot of `source` at `revision`, downloaded if it is not cached.

    Raises UnderstudyError if it is not cached and cannot be downloaded.
    """
    return _snapshot(source, revision, _UNUSED, "point pair.*.source at a local directory")


def list_data(source: str, revision: str) -> list[str]:
    """The files of a data set at `revision`, from its root; nothing is fetched. UnderstudyError if the hub does not answer."""
    otherwise = "name its files with :PATTERN if they are in this machine's cache, or give them as a local directory"
    with _one_line(f"{source}@{revision}: the files of the data set cannot be listed by the hub", otherwise):
        from huggingface_hub import HfApi

        return HfApi().list_repo_files(source, repo_type="dataset", revision=revision)


def fetch_data(source: str, revision: str, patterns: list[str]) -> Path:
    """The local path of a data set at `revision`, of which files that match one of `patterns` (fnmatch, `*` also matches `/`)
    are fetched. Raises as `fetch`."""
    otherwise = "give its files as a local directory"
    with _one_line(f"{source}@{revision}: the data set cannot be fetched from the hub", otherwise):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source, repo_type="dataset", revision=revision, allow_patterns=patterns))


def _snapshot(source: str, revision: str, ignored: list[str], otherwise: str) -> Path:
    with _one_line(f"{source}@{revision}: cannot be fetched from the hub", otherwise):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source, revision=revision, allow_patterns=_PATTERNS, ignore_patterns=ignored))


@contextmanager
def _one_line(what: str, otherwise: str) -> Iterator[None]:
    """UnderstudyError where the hub does not do it, with the reason and how to go on without it."""
    _check_address()
    from huggingface_hub import errors

    network: type[Exception] = getattr(errors, "HTTPError", OSError)  # of the HTTP client, which depends on the version
    try:
        yield
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, network, OSError) as error:
        reason = masked(" ".join(str(error).split()))[:200]  # it may quote a signed address
        raise UnderstudyError(f"{what} ({reason}); check the network and HF_TOKEN, or {otherwise}") from error
