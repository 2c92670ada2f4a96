"""Reading `pair.json`, what the pair stage says of who plays. Torch-free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.pair import PairConfig
from pipeline.models.hub import fetch
from pipeline.store.files import read_json

PAIR_FILE = "pair.json"


@dataclass(frozen=True)
class Pair:
    """The pair of a run. Roles are target, draft and, where there is one, target_before."""

    directory: Path
    facts: dict[str, Any]
    config: PairConfig

    @property
    def vocabulary(self) -> int:
        """Tokens that the logits of every role have a column for; columns beyond are padding."""
        return int(self.facts["vocabulary"])

    @property
    def context(self) -> int:
        """Most tokens of a sequence that every role can see."""
        return int(self.facts["context"])

    @property
    def stop_tokens(self) -> list[int]:
        return list(self.facts["stop_tokens"])

    @property
    def tokenizer(self) -> Path:
        return self.directory / "tokenizer"

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token of one request, in both models."""
        return float(sum(self.facts[role]["cache_bytes_per_token"] for role in ("target", "draft")))

    def serving_bytes(self, draft_bytes: float, batch: int, context: int) -> float:
        """Weights of the target and of a draft, and caches of `batch` requests of `context` tokens."""
        return float(self.facts["target"]["bytes"]) + draft_bytes + self.cache_bytes_per_token * batch * context

    def path(self, role: str) -> Path:
        """The directory of a role's model: in the artifact where the stage made it, else where the config says it is *now*
        (a moved or evicted directory has the same digest, so the artifact may outlive the place it was made from)."""
        made = self.directory / role
        return made if self.config.is_reference or made.is_dir() else locate(self.config, role)

    def dtype(self, role: str) -> str:
        return str(self.facts[role]["dtype"])


def locate(config: PairConfig, role: str) -> Path:
    """Where a role's model lies outside the store, fetched if need be."""
    source = getattr(config, role)
    if source.is_local:
        return Path(source.source)
    return fetch(source.source, source.revision)


def read_pair(artifact: Path, config: PairConfig) -> Pair:
    """The pair that a committed pair artifact describes, under the config of the run that reads it."""
    return Pair(artifact, read_json(artifact / PAIR_FILE), config)
