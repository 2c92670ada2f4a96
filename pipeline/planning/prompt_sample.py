"""What a run would make of the first rows of a file of prompts: rendered with the target's chat template and tokenised by the
corpus stage's own first pass."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.corpus import CorpusConfig, PromptSource
from pipeline.corpus.accepted_rows import CountedTokens
from pipeline.corpus.first_pass import RowCounts, read_sources, remedy_for
from pipeline.corpus.rendering import Renderer
from pipeline.escaping.terminal import printable
from pipeline.progress import Progress

SAMPLED = 5_000  # rows
_KEY = "corpus.sources.0"
_SHOWN = 6  # reasons


@dataclass(frozen=True)
class PromptSample:
    """`counts`: of the rows by what became of them. `lengths`: tokens of the prompts that are used; none only where there
    are more rows than these."""

    counts: RowCounts
    lengths: Sequence[int]
    templated: bool
    limit: int  # corpus.max_prompt_tokens
    share: float  # of rejected rows, at which a run stops
    is_context: bool  # whether the limit is all that the context leaves
    tokens: Counter[int] = field(default_factory=Counter)  # how often the prompts have each

    @property
    def mean(self) -> float | None:
        """Tokens of a prompt; None where none is used."""
        return float(np.mean(self.lengths)) if self.lengths else None

    def lines(self) -> Iterator[str]:
        """Lines for people: lengths, and rows that are not used, each reason with the key that chooses."""
        rows, used = self.counts.rows, len(self.lengths)
        first = "all" if not self.counts.over_limit else "the first"
        how = "rendered with the target's chat template" if self.templated else "tokenised as they are"
        if self.mean is None:
            yield f"{first} {rows:,} rows, {how}: none is a prompt that a run would use; later rows were not tokenised"
        else:
            least, half, most, longest = (int(length) for length in np.quantile(self.lengths, (0, 0.5, 0.95, 1)))
            yield (
                f"{first} {rows:,} rows, {how}: {used:,} prompts of {least:,} to {longest:,} tokens, median {half:,}, 95% up "
                f"to {most:,}, mean {self.mean:,.0f}"
            )
        if self.counts.too_long:
            more = "the context leaves no more: lower generate.max_new_tokens" if self.is_context else "raise it"
            yield f"{self.counts.too_long:,} rows are longer than max_prompt_tokens = {self.limit:,} and are not used; {more}"
        for reason, count in self.counts.reasons.most_common(_SHOWN):
            known = remedy_for(reason)
            yield f"{count:,} rows are not used: {printable(reason)}{f'; {known.format(source=_KEY)}' if known else ''}"
        if (others := len(self.counts.reasons) - _SHOWN) > 0:
            yield f"and {others:,} more reasons; `understudy run --until corpus` lists each row in rejects.jsonl"
        if self.counts.rejected > self.share * rows:
            yield (
                f"{self.counts.rejected / rows:.0%} of the rows are rejected, more than corpus.max_rejected_share = "
                f"{self.share:g}, so a run stops; fix them, or raise it"
            )


def sample_prompts(
    path: Path,
    columns: dict[str, Any],
    tokenizer: Any,
    wanted: bool | None,
    limit: int,
    vocabulary: int | None,
    is_context: bool,
) -> PromptSample:
    """`columns`: keys of the source. `wanted`: as corpus.chat_template. `vocabulary`: tokens of the target; None: all of the
    tokenizer. UsageError where no row is a prompt that a run would use, and there are no rows after the sample."""
    source = PromptSource.model_validate({"path": str(path), "limit": SAMPLED, **columns})
    config = CorpusConfig(sources=(source,), max_rejected_share=1.0, max_prompt_tokens=limit, chat_template=wanted)
    renderer, counted = Renderer(tokenizer, wanted, {}, vocabulary), CountedTokens()
    counts = read_sources(config, [path], renderer, counted, Path(os.devnull), _Silent(terminal=False), is_sample=True)
    templated = renderer.has_template and wanted is not False
    share = CorpusConfig.model_fields["max_rejected_share"].default
    return PromptSample(counts, counted.lengths, templated, limit, share, is_context, counted.tokens)


class _Silent(Progress):
    """The config that is printed has it all."""

    def line(self, text: str) -> None:
        return

    def warn(self, text: str) -> None:
        return
