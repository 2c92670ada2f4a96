"""What a watch compares: the fingerprint of its state. Pure.

A look at other counters, or without the prediction, is no evidence of what was found before: it has a state of its own.
Replicas come and go, so lists of endpoints that share one are one comparison.
"""

from typing import Literal

from pipeline.config.watch import Rule, WatchConfig
from pipeline.store.parsing import Flag, Text, stored
from pipeline.watch.prediction import ServedDraft


@stored
class ComparedCount:
    """What looks compare with what. `places`: the URLs of the endpoints, or the path of the log where there are none. `engine`:
    the engine, and the model that is watched there. `is_predicted`: whether the counts have a prediction."""

    reads: Literal["endpoints", "log"]
    places: tuple[Text, ...]
    engine: Text
    rule: Rule
    is_predicted: Flag

    def is_of(self, other: "ComparedCount") -> bool:
        """Whether looks at the one go on from those at the other."""
        same = (self.reads, self.engine, self.rule, self.is_predicted)
        if same != (other.reads, other.engine, other.rule, other.is_predicted):
            return False
        return bool(set(self.places) & set(other.places))

    @property
    def text(self) -> str:
        """The description for people."""
        with_what = "with the prediction of its export" if self.is_predicted else "with their own first days"
        return f"the {'counters' if self.reads == 'endpoints' else 'log'} of {', '.join(self.places[:3])} {with_what}"


def watched(engine: str, settings: WatchConfig) -> str:
    """The engine, and the model of several."""
    return f"{engine} {settings.model or ''}".strip()


def compared(settings: WatchConfig, served_draft: ServedDraft) -> ComparedCount:
    """What the config as it is now compares."""
    urls = tuple(endpoint.url for endpoint in settings.endpoints)
    return ComparedCount(
        reads="endpoints" if urls else "log",
        places=urls or (str(settings.log),),
        engine=watched(served_draft.engine, settings),
        rule=settings.rule,
        is_predicted=served_draft.predicted is not None,
    )
