"""The test for drift of all watched counts: one drift at a time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from pipeline.config.watch import WatchConfig
from pipeline.store.parsing import Amount, Moment, Text, stored
from pipeline.watch.drift import Drift, Outside, Verdict, forgetting, started
from pipeline.watch.reference import HOUR
from pipeline.watch.share import WatchedShare

_OVER = 86_400.0  # seconds of looks without a count after which its drift is over
_FORGOTTEN = 30 * _OVER  # and its reference forgotten


@stored
class Watched:
    """The test of one count. `missed`: seconds of looks that had other counts and not this one, since the last that had it."""

    drift: Drift
    missed: Amount = 0.0


@stored
class WatchedCounts:
    """The tests by the name of the count. Level and spread of one are no evidence about another, nor do those of one draft length
    of another length, so each has its own test. `began`: Unix seconds."""

    began: Moment
    by_name: Mapping[Text, Watched] = field(default_factory=dict)

    @property
    def drifting(self) -> str | None:
        """The count that drifts. While one does and is counted, the others are not tested: they would report the same drift."""
        return next((name for name, watched in self.by_name.items() if watched.drift.verdict != "steady"), None)

    @property
    def verdict(self) -> Verdict:
        name = self.drifting
        return "steady" if name is None else self.by_name[name].drift.verdict

    @property
    def outside(self) -> Mapping[str, Outside]:
        """The counts far from their predictions by name, while nothing drifts."""
        outside_by_name = (
            {} if self.drifting else {name: watched.drift.outside for name, watched in self.by_name.items()}
        )
        return {name: outside for name, outside in outside_by_name.items() if outside is not None}

    @property
    def since(self) -> float:
        """When the verdict became true, Unix seconds."""
        name = self.drifting
        beginnings = (
            [watched.drift.since for watched in self.by_name.values()]
            if name is None
            else [self.by_name[name].drift.since]
        )
        return max(beginnings, default=self.began)

    def with_look(
        self, shares: Sequence[WatchedShare], time: float, seconds: float, settings: WatchConfig
    ) -> "WatchedCounts":
        """The tests after one more look, which ended at `time` and took `seconds`.

        Where a count is missing at some replicas, or in some rows of a log, looks with and without it may alternate, and an
        engine may draft another length for some hours, so a count is left only after a day of looks.
        """
        seen = {share.name for share in shares}
        counts = _with_missed(self, seen, time, seconds)
        for share in shares:
            known = counts.by_name.get(share.name, Watched(drift=started(time)))
            if counts.drifting in seen - {share.name}:
                counts = _with(counts, share.name, known.drift)
                continue
            after = known.drift.with_look(share, time, seconds, settings)
            counts = _with(counts, share.name, after)
            if after.verdict != known.drift.verdict:
                counts = _others_anew(counts, share.name, after)
        return counts

    def renewed(self, time: float) -> "WatchedCounts":
        """The tests once another champion is served: references, which are of deviations from the prediction, stay."""
        by_name = {name: replace(watched, drift=watched.drift.renewed(time)) for name, watched in self.by_name.items()}
        return replace(self, by_name=by_name)


def _with_missed(counts: WatchedCounts, seen: set[str], time: float, seconds: float) -> WatchedCounts:
    """The tests after a look that had the counts `seen`."""
    passed = min(seconds, HOUR) if seen else 0.0  # a look after a pause is one look
    kept = {}
    for name, watched in counts.by_name.items():
        missed = 0.0 if name in seen else watched.missed + passed
        is_over = missed >= _OVER and watched.drift.verdict != "steady"
        if missed < _FORGOTTEN:
            kept[name] = Watched(drift=watched.drift.renewed(time) if is_over else watched.drift, missed=missed)
    return replace(counts, by_name=kept)


def _with(counts: WatchedCounts, name: str, drift: Drift) -> WatchedCounts:
    return replace(counts, by_name={**counts.by_name, name: Watched(drift=drift)})


def _others_anew(counts: WatchedCounts, name: str, changed: Drift) -> WatchedCounts:
    """The tests with all others begun anew: what they have seen is of the drift that has begun, or of one that has ended."""
    is_over = changed.verdict == "steady"

    def anew(drift: Drift) -> Drift:
        kept = drift if is_over else forgetting(drift, changed.since)
        return replace(kept.renewed(changed.since), block=None)

    others = {
        other: replace(watched, drift=anew(watched.drift)) for other, watched in counts.by_name.items() if other != name
    }
    return replace(counts, by_name={**counts.by_name, **others})
