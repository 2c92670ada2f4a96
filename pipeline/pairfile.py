"""Reading `pair.json`, what the pair stage says of who plays. Torch-free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import read_json

PAIR_FILE = "pair.json"


@dataclass(frozen=True)
class Pair:
    """The pair of a run. Roles are target, draft and, where there is one, target_before."""

    directory: Path
    facts: dict[str, Any]

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

    def path(self, role: str) -> Path:
        """The directory of a role's model (an absolute path in pair.json stays what it is)."""
        return self.directory / str(self.facts[role]["path"])

    def dtype(self, role: str) -> str:
        return str(self.facts[role]["dtype"])


def read_pair(artifact: Path) -> Pair:
    """The pair that a committed pair artifact describes."""
    return Pair(artifact, read_json(artifact / PAIR_FILE))
