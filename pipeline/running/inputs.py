"""Inputs from outside the store: pinned to digests at the start of a run, and checked when a job reads them. Torch-free.

Hashing a large checkpoint takes minutes, so a digest is remembered for as long as the file's inode, size, mtime and ctime stay
the same. No program can set ctime: a file that was replaced, or written and given its old mtime, is hashed again.
"""

import contextlib
import sysconfig
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import StrictInt

from pipeline.config.corpus import PromptSource
from pipeline.config.pair import TARGET, ModelSource
from pipeline.config.root import Config
from pipeline.config.tasks import CHAMPION_PROFILE, profile_input
from pipeline.corpus.hub_data import source_files
from pipeline.corpus.sources import digested_files, find_files
from pipeline.drafts.directory import TRAINED_ON, trained_on_before
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.files import licence, model_files, tokenizer_files
from pipeline.models.names import same_model
from pipeline.models.places import ModelPlace
from pipeline.models.step_shape import step_shape
from pipeline.reference.text import library_stamp, text_digest
from pipeline.running.jobs import measures_speed
from pipeline.running.speed_inputs import machine_input
from pipeline.store.artifacts import Store
from pipeline.store.files import content_key, file_sha256, file_stamp
from pipeline.store.parsing import Format, Text, stored
from pipeline.store.runs import OutsideInput
from pipeline.store.state_files import StateFile


@stored(kw_only=False)
class Remembered:
    """A digest, and the stamp of what had it: of a file, or of the library."""

    stamp: list[StrictInt] | Text
    sha256: Text


DIGESTS = StateFile(Format(name="list of digests", content=dict[Text, Remembered]), "digests")


MACHINE = "machine"
_PROMPTS = "prompts_"  # and the number of the source
_MODELS = ("target", "draft", "tokenizer", "reference_text")


def is_prompts(name: str) -> bool:
    """Whether this input is a source of prompts."""
    return name.startswith(_PROMPTS)


def prompts_here(config: Config, name: str) -> Path:
    """Where the files of this input, a source of prompts, are on this machine; those of the hub may be elsewhere on another."""
    number = int(name.removeprefix(_PROMPTS))
    return source_files(number, config.corpus.sources[number])


def resolve_inputs(config: Config, store: Store, verify: bool = False) -> dict[str, OutsideInput]:
    """Digests of the prompt files, models and profiles in the config. UsageError names the one that does not exist.

    With `verify` every file is hashed, whatever the store remembers.
    """
    known = None if verify else DIGESTS.find(store)
    digests = _FileDigests(dict(known or {}))
    inputs = _inputs(config, digests)
    if {"target", "draft"} <= inputs.keys() and inputs["target"].digest == inputs["draft"].digest:
        raise same_model(f"pair.draft.source = {config.pair.draft.source}", Path(config.pair.target.source))
    if digests.known != known:
        new = {name: digest for name, digest in digests.known.items() if digest != (known or {}).get(name)}
        with DIGESTS.changing(store):
            DIGESTS.write(store, {**(DIGESTS.find(store) or {}), **new})
    if any(source.needs_time for source in config.corpus.sources):
        today = datetime.now(UTC).date().isoformat()
        inputs["today"] = OutsideInput(today, facts={"date": today})
    if config.generate.is_served:
        inputs["target"] = _served(config, store)
    return inputs


def known_inputs(config: Config, store: Store) -> dict[str, OutsideInput]:
    """The inputs, as by `resolve_inputs`, from what the store remembers: nothing is hashed and nothing is written. A file that is
    new or has changed gets a digest that no artifact has."""
    inputs = _inputs(config, _RememberedDigests(DIGESTS.find(store) or {}))
    if any(source.needs_time for source in config.corpus.sources):
        today = datetime.now(UTC).date().isoformat()
        inputs["today"] = OutsideInput(today, facts={"date": today})
    if config.generate.is_served:
        from pipeline.running.served_input import SERVED, identify_target

        known = SERVED.find(store) or []
        inputs["target"] = OutsideInput(identify_target(config, known).digest if known else "")
    return inputs


def known_files(config: Config, store: Store) -> dict[str, OutsideInput]:
    """The inputs, as by `known_inputs`, of models and prompts alone: no server is asked, and what is not there is left out."""
    digests, inputs = _RememberedDigests(DIGESTS.find(store) or {}), dict[str, OutsideInput]()
    for name, resolve in _resolvers(config).items():
        if name in _MODELS or is_prompts(name):
            with contextlib.suppress(UnderstudyError):
                inputs[name] = resolve(digests)
    return inputs


def _served(config: Config, store: Store) -> OutsideInput:
    """The served target. The store remembers the first answers of each, because later ones differ by rounding. If another process
    adds a target while this one asks its servers, they are asked again: it may be the same target."""
    # Imported here because the HTTP client takes a third of a second, and most runs load their target.
    from pipeline.running.served_input import SERVED, identify_target

    while True:
        known = SERVED.find(store) or []
        identity = identify_target(config, known)
        if identity in known:
            break
        with SERVED.changing(store):
            if (SERVED.find(store) or []) == known:
                SERVED.write(store, [*known, identity])
                break
    return OutsideInput(identity.digest, facts=identity.facts())


def require_inputs(config: Config) -> None:
    """Check that prompt files and models exist, and that a server answers; UsageError names what does not. Hashes nothing and
    writes nothing."""
    _inputs(config, _NoDigests())
    if config.generate.is_served:
        from pipeline.running.served_input import require_answer

        require_answer(config)


class PinnedInputs:
    """The outside inputs of a run whose digests are in its keys."""

    def __init__(self, config: Config, pinned: Mapping[str, OutsideInput]) -> None:
        self._config, self._resolvers, self._pinned = config, _resolvers(config), pinned
        self._digests = _FileDigests({})  # empty: every file is hashed when this process reads it first

    def check(self, name: str) -> None:
        """UsageError unless the input's files still have the pinned digest. Other inputs than files are not checked: a hub
        revision does not change, and the registry checks its own drafts."""
        pinned = self._pinned.get(name)
        if name == "target" and self._config.generate.is_served:
            from pipeline.running.served_input import require_identity

            assert pinned is not None  # resolved at the start of the run
            require_identity(self._config, pinned.facts)
        if name not in self._resolvers:
            return
        assert pinned is not None  # as above
        if self._resolvers[name](self._digests).digest != pinned.digest:
            raise UsageError(f"{name} ({pinned.path}) has changed since this run began; start a new run")


class _Digests(Protocol):
    def of(self, path: Path) -> str: ...

    def of_text(self, library: Path, megabytes: float) -> str: ...

    def of_files(self, root: Path, files: list[Path]) -> str: ...


def _inputs(config: Config, digests: _Digests) -> dict[str, OutsideInput]:
    return {name: resolve(digests) for name, resolve in _resolvers(config).items()}


def _resolvers(config: Config) -> dict[str, Callable[[_Digests], OutsideInput]]:
    """The function that computes each outside input of the config."""
    readers: dict[str, Callable[[_Digests], OutsideInput]] = {}
    if config.pair.is_reference:
        readers["reference_text"] = partial(_text, config.pair.reference.text_megabytes)
    else:
        for role in ("target", "draft", "target_before"):
            source = getattr(config.pair, role)
            if role == "target" and config.pair.target.is_served:
                readers["tokenizer"] = partial(_tokenizer, str(source.tokenizer))
            elif source is not None and source.source != TARGET:
                readers[role] = partial(_model, role, source)
    for number, prompts in enumerate(config.corpus.sources):
        if not prompts.is_reference:
            readers[f"{_PROMPTS}{number}"] = partial(_prompts, number, prompts)
    for variant, path in config.gate.profile.items():
        readers[profile_input(variant)] = partial(_profile, f"gate.profile.{variant}", path, config)
    if (path_of_champion := config.gate.champion_profile) is not None:
        readers[CHAMPION_PROFILE] = partial(_profile, "gate.champion_profile", path_of_champion, config)
    if measures_speed(config):
        readers[MACHINE] = lambda digests: machine_input(config)
    return readers


def _text(megabytes: float, digests: _Digests) -> OutsideInput:
    library = Path(sysconfig.get_path("stdlib"))
    return OutsideInput(digests.of_text(library, megabytes), str(library))


def _profile(key: str, file: str, config: Config, digests: _Digests) -> OutsideInput:
    # Imported here because it takes a second, and most runs state no load.
    from pipeline.latency.costs.step_costs import read_step_costs

    path, gamma = Path(file), config.evaluate.gamma
    try:
        machine = read_step_costs(path)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from None
    if machine.max_gamma < gamma:
        raise UsageError(
            f"{key}: {path} was measured up to draft length {machine.max_gamma}, and evaluate.gamma is {gamma}; "
            "measure more lengths, or lower evaluate.gamma"
        )
    if not machine.acceptance_known:
        raise UsageError(
            f"{key}: {path} is of measurements whose acceptance is unknown, so its steps are not known; measure "
            "the acceptance beside the times"
        )
    if config.gate.least_speedup is not None and not machine.plain:
        raise UsageError(
            f"{key}: {path} has no row with draft length 0, from which the speedup is computed; add some, or "
            "set gate.min_speedup to 0"
        )
    return OutsideInput(digests.of(path), str(path))


def _model(role: str, source: ModelSource, digests: _Digests) -> OutsideInput:
    if source.is_hub:
        return OutsideInput(f"{source.source}@{source.revision}", facts={"place": _place(source)})
    path = Path(source.source)
    if not (path / "config.json").is_file():
        raise UsageError(f"pair.{role}.source: {path} is not a model directory (no config.json there)")
    trained_on_before(path)  # a damaged list is found before anything is paid for
    content = digests.of_files(path, model_files(path))
    tokenizer = digests.of_files(path, files) if (files := tokenizer_files(path)) else ""
    facts = {"place": _place(source), "content": content, "tokenizer": tokenizer, "shape": step_shape(path) or ""}
    return OutsideInput(_with_facts(path, content, digests), str(path), facts)


def _place(source: ModelSource) -> str:
    return ModelPlace(source=source.source).place


def _with_facts(path: Path, digest: str, digests: _Digests) -> str:
    """The digest of a model and of what stands beside it: the licence is on the draft's card, and its examination leaves out the
    prompts that it was trained on."""
    seen, stated = path / TRAINED_ON, licence(path)
    facts = {"licence": stated} if stated else {}
    facts |= {"trained_on": digests.of(seen)} if seen.is_file() else {}
    return content_key([digest, facts]) if facts else digest


def _tokenizer(name: str, digests: _Digests) -> OutsideInput:
    if "@" in name:
        return OutsideInput(name)
    path = Path(name)
    files = tokenizer_files(path)
    if not files:
        raise UsageError(f"pair.target.tokenizer: {path} is not a directory with a tokenizer (no tokenizer.json there)")
    configs = [path / name for name in ("config.json", "generation_config.json") if (path / name).is_file()]
    return OutsideInput(_with_facts(path, digests.of_files(path, sorted([*files, *configs])), digests), str(path))


def _prompts(number: int, source: PromptSource, digests: _Digests) -> OutsideInput:
    """Names and contents of the files that are read: a shard that is added, renamed or changed makes another input."""
    path = source_files(number, source)
    files = find_files(path, source.format, f"corpus.sources.{number}.path: {path}")
    if files.files == (path,) and files.format != "dataset":
        return OutsideInput(digests.of(path), source.path)
    return OutsideInput(digests.of_files(files.root, digested_files(files)), source.path)


class _NoDigests:
    """Takes the place of _FileDigests where files are only checked for existence."""

    def of(self, path: Path) -> str:
        return ""

    def of_text(self, library: Path, megabytes: float) -> str:
        return ""

    def of_files(self, root: Path, files: list[Path]) -> str:
        return ""


class _FileDigests:
    """SHA-256 of files, remembered in `known` by path, for as long as the file's stamp does not change."""

    def __init__(self, known: dict[str, Remembered]) -> None:
        self.known = known

    def of(self, path: Path) -> str:
        return self._remembered(str(path), file_stamp(path), lambda: file_sha256(path))

    def of_text(self, library: Path, megabytes: float) -> str:
        """Digest of the reference text, computed again only when a file of the library has changed."""
        return self._remembered(
            f"{library}:{megabytes:g}", library_stamp(library), lambda: text_digest(library, megabytes)
        )

    def of_files(self, root: Path, files: list[Path]) -> str:
        return content_key({str(file.relative_to(root)): self.of(file) for file in files})

    def _remembered(self, name: str, stamp: list[int] | str, digest: Callable[[], str]) -> str:
        """The stamp is taken before the file is read, so a change while it is read is seen by the next check."""
        known = self.known.get(name)
        if known is None or known.stamp != stamp:
            known = self.known[name] = Remembered(stamp, digest())
        return known.sha256


class _RememberedDigests(_FileDigests):
    """Hashes nothing."""

    def _remembered(self, name: str, stamp: list[int] | str, digest: Callable[[], str]) -> str:
        known = self.known.get(name)
        return known.sha256 if known is not None and known.stamp == stamp else ""
