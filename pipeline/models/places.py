"""Where the models of a pair lie outside the store. Torch-free."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.pair import ModelSource, PairConfig, TargetSource
from pipeline.models.hub import fetch, fetch_tokenizer, find_cached
from pipeline.models.rope_choice import Factors, with_factors


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """A directory, or a revision on the hub. Of a served target only the tokenizer is here."""

    source: str  # a path, or org/name
    revision: str | None = None
    tokenizer: str | None = None  # of a served target: a directory, or org/name@revision
    rope_factors: Factors | None = None  # chosen by the user, of a model with two sets

    @property
    def place(self) -> str:
        """What identifies it: org/name, or an absolute path."""
        return os.path.abspath(os.path.expanduser(self.source)) if self.is_here else self.source

    @property
    def is_here(self) -> bool:
        """Whether it is a directory, and not a model of the hub or of a server."""
        return self.source.startswith((".", "/", "~"))

    def directory(self) -> Path:
        """The directory of its files, downloaded if needed; where the user chooses RoPE factors, a directory that stands for
        that."""
        directory = self._directory()
        return directory if self.rope_factors is None else with_factors(directory, self.rope_factors)

    def _directory(self) -> Path:
        if self.tokenizer is not None:
            return fetch_tokenizer(self.tokenizer) if "@" in self.tokenizer else Path(self.tokenizer)
        if self.is_here:
            return Path(self.source)
        assert self.revision is not None  # the config demands it of a hub model
        return fetch(self.source, self.revision)

    def find(self) -> Path | None:
        """The directory of a model that is on this machine: nothing is downloaded."""
        if self.tokenizer is not None and "@" in self.tokenizer:
            source, _, revision = self.tokenizer.partition("@")
            return find_cached(source, revision)
        if self.revision is None or self.is_here:
            return self._directory()
        return find_cached(self.source, self.revision)


Places = Mapping[str, ModelPlace]  # by role: target, draft, target_before


def model_places(pair: PairConfig) -> dict[str, ModelPlace]:
    """The models, by role, that are not made in a run: none of the reference pair, no draft of the target's layers."""
    if pair.is_reference:
        return {}
    places = {"target": _place(pair.target, pair)}
    if not pair.draft.is_of_target:
        places["draft"] = _place(pair.draft, pair)
    if pair.target_before is not None:
        places["target_before"] = _place(pair.target_before, pair)
    return places


def _place(source: ModelSource | TargetSource, pair: PairConfig) -> ModelPlace:
    tokenizer = source.tokenizer if isinstance(source, TargetSource) else None
    factors = pair.rope_factors if tokenizer is None else None
    return ModelPlace(source=source.source, revision=source.revision, tokenizer=tokenizer, rope_factors=factors)
