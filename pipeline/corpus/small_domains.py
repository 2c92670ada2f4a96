"""Small domains of logs, which fold into one: no rule could be proved on them, and a client may have made them up.

Domains are folded within their template mode, because every figure of a domain is of one mode.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.modes import domain_in_mode

OTHER = "other"


class DomainCounts:
    """Counts conversations by domain, up to `most`, and all prompts."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.of_logs: dict[str, str] = {}  # the mode of each domain that rows of logs have
        self.conversations: defaultdict[str, set[int]] = defaultdict(set)
        self.prompts = Counter[str]()

    def add(self, domain: str, conversation: int, log_mode: str | None) -> None:
        """One prompt. `log_mode`: the mode that is in the name of its domain; None for a prompt of no log."""
        if log_mode is not None:
            self.of_logs[domain] = log_mode
        self.prompts[domain] += 1
        if len(seen := self.conversations[domain]) < self._most:
            seen.add(conversation)

    def renamed(self, least: int) -> dict[str, str]:
        """The new names of domains of logs that have fewer than `least` conversations: `other` in their mode, or, where these
        together are as few, the domain of logs in that mode that has the most prompts. A domain that is alone keeps its name."""
        names = dict[str, str]()
        for mode in sorted(set(self.of_logs.values())):
            sizes = {name: len(self.conversations[name]) for name, of in self.of_logs.items() if of == mode}
            small = sorted(name for name, size in sizes.items() if size < least)
            large = [name for name, size in sizes.items() if size >= least]
            together = sum(sizes[name] for name in small)
            into = domain_in_mode(OTHER, mode)
            if large and together < least:
                into = max(sorted(large), key=self.prompts.__getitem__)  # conversations are counted to `most` only
            if len(sizes) > 1:
                names |= {name: into for name in small if name != into}
        return names


def folded_line(renamed: Mapping[str, str], counts: Mapping[str, Collection[int]], least: int) -> str:
    """The line that states what was folded into what."""
    into = Counter(renamed.values())
    names = ", ".join(f"{name} ({len(counts[name]):,})" for name in list(renamed)[:6])
    more = ", ..." if len(renamed) > 6 else ""
    domains, are = ("domain", "is") if len(renamed) == 1 else ("domains", "are")
    return (
        f"{len(renamed):,} {domains} of logs with fewer than {least:,} prompts (corpus.min_domain_prompts) {are} now part of "
        f"{', '.join(sorted(into))}: {names}{more}"
    )


def count_domains(
    accepted: Path, conversations: NDArray[np.uint64], kept: NDArray[np.bool_], most: int
) -> DomainCounts:
    """Counts the kept rows of the row buffer's `accepted` file. `conversations` and `kept` are [rows]."""
    from pipeline.corpus.arrow_batches import kept_batches

    counts = DomainCounts(most)
    for batch, rows in kept_batches(accepted, kept):
        named: Iterable[Any] = zip(
            batch["domain"].to_pylist(), conversations[rows].tolist(), batch["log_mode"].to_pylist(), strict=True
        )
        for domain, conversation, mode in named:
            counts.add(domain, conversation, mode)
    return counts
