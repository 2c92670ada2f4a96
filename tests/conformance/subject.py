"""The models of the conformance tests: pair and candidate of the latest run of a store, and unseen prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.drafts.plain import PlainDraft
from pipeline.generation.completion_store import read_completions
from pipeline.models.loading import load_model
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from tests.benchmarks.refpair import read_pair_of_run

PROMPTS = 64
TOKENS = 128


@dataclass(frozen=True)
class Subject:
    """A target, a draft of its family, and prompts as token ids."""

    run: str
    target: Path
    draft: Path
    tokenizer: Path
    vocabulary: int
    stop_tokens: Sequence[int]
    prompts: Sequence[NDArray[np.int32]]
    head: LoadedDraft | None = None  # in place of the draft

    @cached_property
    def target_model(self) -> Any:
        return load_model(self.target, "float32", torch.device("cpu"))

    @cached_property
    def draft_model(self) -> Any:
        return load_model(self.draft, "float32", torch.device("cpu"))

    @property
    def loaded_draft(self) -> LoadedDraft:
        return self.head or PlainDraft(self.draft_model, self.vocabulary)


def read_subject(root: Path) -> Subject:
    """The subject of the latest run in the store at `root`; UsageError or UnderstudyError if it has no finished one."""
    pair = read_pair_of_run(root)
    stored = read_completions(pair.completions, {"examination"}, Sampling())
    prompts = [item.prompt for item in sorted(stored, key=lambda item: item.id)][:PROMPTS]
    assert len(prompts) == PROMPTS, f"{root}: {len(prompts)} examination prompts, and {PROMPTS} are needed"
    target, draft, tokenizer = (path.resolve() for path in (pair.target, pair.draft, pair.tokenizer))
    return Subject(pair.run, target, draft, tokenizer, pair.vocabulary, pair.stop_tokens, prompts)
