"""Inputs from outside the store, pinned to digests at the start of a run. Torch-free.

Hashing a large checkpoint takes minutes, so digests of files are remembered by path, size and mtime in the store.
"""

import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config.pair import TARGET, ModelSource
from pipeline.config.quantize import Form
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.models.files import model_files
from pipeline.reference.text import library_stamp, text_digest
from pipeline.store.artifacts import Store
from pipeline.store.files import content_key, file_sha256, read_json, write_json


@dataclass(frozen=True)
class OutsideInput:
    """One outside input. `path` is None until it has been fetched."""

    digest: str
    path: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def resolve_inputs(config: Config, store: Store) -> dict[str, OutsideInput]:
    """Digests of the prompt files and models in the config. UsageError names the one that does not exist."""
    digests = _FileDigests(store)
    found = _inputs(config, digests)
    digests.save()
    return found


def require_inputs(config: Config) -> None:
    """Check that they exist: UsageError names the one that does not. Hashes nothing and writes nothing."""
    _inputs(config, _NoDigests())


def _inputs(config: Config, digests: "_FileDigests | _NoDigests") -> dict[str, OutsideInput]:
    found: dict[str, OutsideInput] = {}
    if config.pair.is_reference:
        library = Path(sysconfig.get_path("stdlib"))
        found["reference_text"] = OutsideInput(
            digests.of_text(library, config.pair.reference.text_megabytes), str(library)
        )
    else:
        for role in ("target", "draft", "target_before"):
            source = getattr(config.pair, role)
            if source is not None and source.source != TARGET:
                found[role] = _model(role, source, digests)
    for number, source in enumerate(config.corpus.sources):
        if not source.is_reference:
            found[f"prompts_{number}"] = _prompts(number, Path(source.path), digests)
    for form in config.gate.profile:
        found[f"profile_{form}"] = _profile(form, config, digests)
    return found


def _profile(form: Form, config: Config, digests: "_FileDigests | _NoDigests") -> OutsideInput:
    # Imported here because it takes a second, and most runs state no load.
    from pipeline.latency.costs.step_costs import read_step_costs

    path, gamma = Path(config.gate.profile[form]), config.evaluate.gamma
    try:
        machine = read_step_costs(path)
    except UsageError as error:
        raise UsageError(f"gate.profile.{form}: {error}") from None
    if machine.max_gamma < gamma:
        raise UsageError(
            f"gate.profile.{form}: {path} was measured up to draft length {machine.max_gamma}, and evaluate.gamma is {gamma}"
        )
    if config.gate.min_speedup is not None and not machine.plain:
        raise UsageError(
            f"gate.profile.{form}: {path} has no row without drafting to compute the speedup from; add rows with draft length 0"
        )
    return OutsideInput(digests.of(path), str(path))


def _model(role: str, source: ModelSource, digests: "_FileDigests | _NoDigests") -> OutsideInput:
    if source.is_hub:
        return OutsideInput(f"{source.source}@{source.revision}")
    path = Path(source.source)
    if not (path / "config.json").is_file():
        raise UsageError(f"pair.{role}.source: {path} is not a model directory (no config.json there)")
    return OutsideInput(digests.of_files(path, model_files(path)), str(path))


def _prompts(number: int, path: Path, digests: "_FileDigests | _NoDigests") -> OutsideInput:
    if path.is_file():
        return OutsideInput(digests.of(path), str(path))
    if path.is_dir():
        return OutsideInput(
            digests.of_files(path, sorted(item for item in path.rglob("*") if item.is_file())), str(path)
        )
    raise UsageError(f"corpus.sources.{number}.path: {path}: no such file or directory")


class _NoDigests:
    """Takes the place of _FileDigests where files are only checked for existence."""

    def of(self, path: Path) -> str:
        return ""

    def of_text(self, library: Path, megabytes: float) -> str:
        return ""

    def of_files(self, root: Path, files: list[Path]) -> str:
        return ""


class _FileDigests:
    """SHA-256 of files, stored for as long as size and mtime do not change."""

    def __init__(self, store: Store) -> None:
        self._path = store.root / "digests.json"
        self._known: dict[str, Any] = read_json(self._path) if self._path.exists() else {}
        self._changed = False

    def of(self, path: Path) -> str:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(str(path))
        if known is None or known["stamp"] != stamp:
            known = {"stamp": stamp, "sha256": file_sha256(path)}
            self._known[str(path)] = known
            self._changed = True
        return str(known["sha256"])

    def of_text(self, library: Path, megabytes: float) -> str:
        """Digest of the reference text, computed again only when a file of the library has changed."""
        name, stamp = f"{library}:{megabytes:g}", library_stamp(library)
        known = self._known.get(name)
        if known is None or known["stamp"] != stamp:
            known = {"stamp": stamp, "sha256": text_digest(library, megabytes)}
            self._known[name] = known
            self._changed = True
        return str(known["sha256"])

    def of_files(self, root: Path, files: list[Path]) -> str:
        return content_key({str(file.relative_to(root)): self.of(file) for file in files})

    def save(self) -> None:
        if self._changed:
            write_json(self._path, self._known)
