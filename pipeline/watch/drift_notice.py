"""`watch.notice`: the message about a drift and about its end."""

import json
from dataclasses import asdict, dataclass

from pipeline.watch.lines import clock, state_line
from pipeline.watch.state import WatchState

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class DriftNotice:
    """The body, as JSON. `drift`: `low`, `high`, or `none` for the end of one. `since`: when it began, as `corpus.since` takes
    it. `count`, `acceptance`, `predicted`: of the last look."""

    schema: int = SCHEMA
    kind: str = "drift"
    name: str
    drift: str
    since: str
    time: str
    count: str
    acceptance: float | None
    predicted: float | None
    draft: str
    message: str

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def key(self) -> str:
        return f"{self.name}/drift/{self.drift}/{self.since}"

    @property
    def section(self) -> str:
        return "watch.notice"

    @property
    def again(self) -> str:
        return "the next look sends it again"


def drift_notice(state: WatchState, name: str, time: float) -> DriftNotice:
    """The notice for the state as it is now."""
    last = state.last.get(state.shown or "")
    return DriftNotice(
        name=name,
        drift=state.verdict if state.has_drift else "none",
        since=clock(state.since),
        time=clock(time),
        count=state.shown or "",
        acceptance=None if last is None else last.share,
        predicted=None if last is None or not state.draft else last.predicted,
        draft=state.draft,
        message=state_line(state),
    )
