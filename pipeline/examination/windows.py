"""Stored completions in windows of bounded size, and the figures of counts that arrive window by window. No model.

What is in a batch decides the last digits of its figures. So a window ends where a shard does: then the figures are equal to the
last digit whether one process examines all shards or several some each.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.store.row_files import RowFile

WINDOW = 1024  # completions in memory at once


def windows(completions: Iterable[StoredCompletion]) -> Iterator[list[StoredCompletion]]:
    """Consecutive completions of one shard, at most WINDOW at a time. UnderstudyError for one without a prompt or a token."""
    for _, of_shard in groupby(completions, key=attrgetter("shard")):
        while window := list(islice(of_shard, WINDOW)):
            for item in window:
                if item.length < 1 or len(item.prompt) < 1:
                    what = "completion" if item.length < 1 else "prompt"
                    raise UnderstudyError(
                        f"prompt {item.id}: its stored {what} has no token; delete the generate artifact and run again"
                    )
            yield window


def tally_counts(
    counts: Iterable[list[PromptCounts]], max_gamma: int, rows: RowFile, name: str, shared: Collection[str]
) -> AcceptanceTally:
    """Add up the counts of all windows in their order; write each prompt's counts to the list `name` of `rows`. `shared`: the
    conversations of several prompts."""
    tally = AcceptanceTally(max_gamma, shared)
    for window in counts:
        tally.add(window)
        rows.add(name, counts_json(window))
    return tally
