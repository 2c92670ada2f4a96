"""One look at all engines and the log. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.engines.counts import Counts


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at all engines and the log.

    `time`: Unix seconds. `seconds`: since the look before; None at the first. `counts`: what was counted since then, over all
    replicas; None where nothing could be read. `running`: requests in decode on a replica, on average over those that answered.
    `by_domain`: the counts of the log's rows since then, where it has domains. `problems`: what could not be read, a line each.
    `notes`: what else is new, a line each.
    """

    time: float
    seconds: float | None
    counts: Counts | None
    running: float | None = None
    by_domain: Mapping[str, Counts] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
