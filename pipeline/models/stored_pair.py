"""Reads `pair.json`, the result of the pair stage. Torch-free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.models.places import Places
from pipeline.store.files import read_json

PAIR_FILE = "pair.json"


@dataclass(frozen=True)
class Pair:
    """The pair of a run. Roles are target, draft and, if configured, target_before."""

    directory: Path
    facts: dict[str, Any]
    places: Places  # of the models that the stage did not make

    @property
    def vocabulary(self) -> int:
        """Tokens that all roles share; logits columns beyond are padding."""
        return int(self.facts["vocabulary"])

    @property
    def context(self) -> int:
        """Shortest maximum sequence length of all roles."""
        return int(self.facts["context"])

    @property
    def stop_tokens(self) -> list[int]:
        return list(self.facts["stop_tokens"])

    @property
    def tokenizer(self) -> Path:
        return self.directory / "tokenizer"

    @property
    def cache_bytes_per_token(self) -> float | None:
        """KV-cache bytes of one token of one request, for both models; None if the target's are not known."""
        found = [self.facts[role]["cache_bytes_per_token"] for role in ("target", "draft")]
        return None if None in found else float(sum(found))

    def serving_bytes(self, draft_bytes: float, batch: int, context: int) -> float | None:
        """Bytes of the target's and a draft's weights, and of the KV cache of `batch` requests with `context` tokens. None for a
        served target, whose weights are not known here."""
        if self.facts["target"]["bytes"] is None:
            return None
        return (
            float(self.facts["target"]["bytes"]) + draft_bytes + (self.cache_bytes_per_token or 0.0) * batch * context
        )

    def path(self, role: str) -> Path:
        """The directory of a role's model: in the artifact if the stage made it, otherwise where it lies now (a model may have
        been moved since the artifact was made; its digest is the same)."""
        made = self.directory / role
        return made if role not in self.places or made.is_dir() else self.places[role].directory()

    def dtype(self, role: str) -> str:
        return str(self.facts[role]["dtype"])


def read_pair(artifact: Path, places: Places) -> Pair:
    """The pair of a finished pair artifact; `places`: where the models of the run that reads it lie."""
    return Pair(artifact, read_json(artifact / PAIR_FILE), places)
