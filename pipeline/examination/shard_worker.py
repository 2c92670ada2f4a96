"""What a worker needs to examine a draft on shards of completions, and the files that it writes for each shard.

A part is one shard of one set of completions. Its files hold the counts of its prompts, which `merged` gives back shard by shard
in the order of the store: sums over them are the same to the last digit wherever the parts were made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.config.evaluate import ConventionName, EvaluateConfig
from pipeline.drafts.loading import DraftOrigin
from pipeline.errors import BrokenDraft
from pipeline.examination.completion_sets import CompletionSets
from pipeline.examination.examiner import Examiner
from pipeline.examination.token_acceptance import TokenAcceptanceFile
from pipeline.examination.windows import WINDOW
from pipeline.generation.completion_store import StoredCompletion, read_completions, read_shard
from pipeline.models.devices import choose_device
from pipeline.models.out_of_memory import batch_named
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.store.files import write_json
from pipeline.store.parsing import Text, format_of, stored

Advance = Callable[[float], None]
Count = Callable[
    ["ExaminedShard", Iterator[StoredCompletion], Advance, TokenAcceptanceFile], Iterator[list[PromptCounts]]
]


@dataclass(frozen=True, kw_only=True)
class ExaminationWork:
    """What all parts of an examination have in common."""

    draft: DraftOrigin
    settings: EvaluateConfig
    count_as: ConventionName
    split: str


@dataclass(frozen=True, kw_only=True)
class ExaminedShard:
    """One shard of one set of completions."""

    set: str
    sampling: Sampling
    shard: Path  # its completion file
    completions: int  # of the set in it
    first: int  # place of its first completion in the set

    @property
    def name(self) -> str:
        return f"{self.set}-{self.shard.name.partition('.')[0]}"

    @property
    def files(self) -> tuple[str, str]:
        """a_t of every token, and the counts, which are written last."""
        return f"{self.name}.tokens.arrow", f"{self.name}.counts.json"


@stored(name="counts of a shard", kw_only=False)
class _ShardCounts:
    """The content of the second file. `broken`: why the draft cannot be examined; then there are no rows."""

    broken: Text | None = None
    prompts: list[PromptCounts] = field(default_factory=list)


def shards_to_examine(sets: CompletionSets) -> dict[str, list[ExaminedShard]]:
    """The parts of each set of completions, in order."""
    shards: dict[str, list[ExaminedShard]] = {}
    for name, (sampling, _) in sets.named().items():
        first, parts = 0, shards.setdefault(name, [])
        for shard, count in sets.shards(sampling).items():
            parts.append(ExaminedShard(set=name, sampling=sampling, shard=shard, completions=count, first=first))
            first += count
    return shards


def open_examination(work: ExaminationWork, device: str) -> Callable[[ExaminedShard, Path, Advance], None]:
    """Load the draft; what is returned examines it on a shard and writes the part's files to a directory."""
    try:
        draft = work.draft.load(choose_device(device))
    except BrokenDraft as error:  # which each shard then reports
        return partial(_examine, work, _broken(str(error)))
    return partial(_examine, work, _by_draft(work, draft))


def _by_draft(work: ExaminationWork, draft: LoadedDraft) -> Count:
    def count(
        part: ExaminedShard, completions: Iterator[StoredCompletion], advance: Advance, by_token: TokenAcceptanceFile
    ) -> Iterator[list[PromptCounts]]:
        examiner = Examiner(part.sampling, work.settings, count_as=work.count_as)
        keep = by_token.add if part.set == "deployed" and draft.kind.by_token else None
        whole = read_completions(part.shard.parent, {work.split}, part.sampling)
        with batch_named("evaluate.batch_tokens", work.settings.batch_tokens, examiner.attempt_batch(draft, whole)):
            yield from examiner.counts(draft, completions, advance, keep, first_number=part.first)

    return count


def _broken(reason: str) -> Count:
    def count(*_: object) -> Iterator[list[PromptCounts]]:
        raise BrokenDraft(reason)

    return count


def _examine(work: ExaminationWork, count: Count, part: ExaminedShard, out: Path, advance: Advance) -> None:
    """A draft that cannot be examined is a result too: which shard reports it first must not depend on who is faster."""
    completions = read_shard(part.shard, {work.split}, part.sampling)
    tokens, counts = (out / name for name in part.files)
    with TokenAcceptanceFile(tokens) as by_token:
        try:
            rows = [row for window in count(part, completions, advance, by_token) for row in counts_json(window)]
            content: dict[str, Any] = {"broken": None, "prompts": rows}
        except BrokenDraft as error:
            content = {"broken": str(error), "prompts": []}
    write_json(counts, content)


def merged(
    parts: Sequence[ExaminedShard], directory: Path, by_token: TokenAcceptanceFile | None
) -> Iterator[list[PromptCounts]]:
    """The counts of all parts, shard by shard, from their files; a_t of their tokens go to `by_token`.
    BrokenDraft with the reason of the first part that has one."""
    for part in parts:
        tokens, counts = (directory / name for name in part.files)
        yield from _shard_counts(counts)
        if by_token is not None:
            by_token.append(tokens)


def _shard_counts(path: Path) -> Iterator[list[PromptCounts]]:
    counts = format_of(_ShardCounts).read(path)
    if counts.broken is not None:
        raise BrokenDraft(counts.broken)
    yield from (counts.prompts[begin : begin + WINDOW] for begin in range(0, len(counts.prompts), WINDOW))
