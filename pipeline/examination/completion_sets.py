"""The completions that a draft is examined on: one set for each sampling tuple."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.acceptance.profile import shared_conversations
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.config.evaluate import ConventionName
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import (
    StoredCompletion,
    canonical,
    read_completions,
    stored_conversations,
    stored_samplings,
    stored_shards,
)
from pipeline.speculation.settings import GREEDY, Sampling

Split = Literal["dev", "examination"]


@dataclass(frozen=True)
class CompletionSets:
    """The stored completions of a split. `deployed`: the sampling settings of the deployment, in canonical form."""

    directory: Path
    split: Split
    deployed: Sampling

    def named(self) -> dict[str, tuple[Sampling, int]]:
        """Sampling settings and number of completions of each set: `deployed`, `greedy` (unless that is the deployed one), and
        `also_1`, `also_2`, ... UnderstudyError if one of the first two is missing."""
        stored = stored_samplings(self.directory, {self.split})
        names = {self.deployed: "deployed"}
        if not self.deployed.greedy and self.split != "dev":
            names[GREEDY] = "greedy"
        if missing := [name for sampling, name in names.items() if sampling not in stored]:
            raise UnderstudyError(
                f"{self.directory}: no {' and '.join(missing)} completions to examine; set corpus.splits.{self.split} above 0"
            )
        further = [sampling for sampling in stored if sampling not in names]
        names |= {sampling: f"also_{number}" for number, sampling in enumerate(further, 1)}
        return {name: (sampling, stored[sampling]) for sampling, name in names.items()}

    def read(self, sampling: Sampling) -> Iterator[StoredCompletion]:
        return read_completions(self.directory, {self.split}, sampling)

    def shards(self, sampling: Sampling) -> dict[Path, int]:
        """The completion file of each shard that a set has completions in, in order, with their number."""
        return stored_shards(self.directory, self.split, sampling)

    def shared(self, sampling: Sampling) -> frozenset[str]:
        """The conversations that have several completions in a set."""
        return shared_conversations(stored_conversations(self.directory, self.split, sampling))

    def counted_as(self, convention: ConventionName) -> ConventionName:
        """How calls are counted. For dev completions no tokens past the end are stored, which an unclipped convention needs:
        there calls are counted as for a user."""
        return convention if self.split == "examination" or CONVENTIONS[convention].clipped else "user"


def completion_sets(directory: Path, split: Split, deployed: Sampling) -> CompletionSets:
    """The sets in a `generate` artifact."""
    return CompletionSets(directory, split, canonical(deployed))
