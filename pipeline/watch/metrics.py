"""The watch's own `/metrics`, for the same Prometheus that scrapes the engines."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from pipeline.config.watch import WatchConfig
from pipeline.errors import UsageError
from pipeline.watch.drift import SIDES, evidence
from pipeline.watch.findings import Findings
from pipeline.watch.reading import Look
from pipeline.watch.share import short
from pipeline.watch.state import Last, WatchState

_PREFIX = "understudy_watch_"
OF_A_COUNT = {
    "acceptance": "Accepted share in the last look: of drafts, their first token (count=first); of all draft tokens (count=all).",
    "predicted_acceptance": "The share that the examination of the served draft predicts.",
    "level": "Mean deviation of counted from predicted acceptance in the reference.",
    "band": "Largest deviation of an hour that is expected.",
    "reference": "1 once level and spread are known from counters.",
}
GAUGES = {
    "speedup": "Predicted speedup at the observed acceptance and load.",
    "pays": "1 while speculation pays at the observed load.",
    "last_look_timestamp_seconds": "When the last look was.",
    "problems": "What could not be read in the last look.",
}


class WatchMetrics:
    """The figures of one registered name, each with the label `name`."""

    def __init__(self, name: str) -> None:
        self._name, self._key, self.registry = name, "", CollectorRegistry()
        self._gauges = {
            key: Gauge(_PREFIX + key, text, ["name"], registry=self.registry) for key, text in GAUGES.items()
        }
        self._counts = {
            key: Gauge(_PREFIX + key, text, ["name", "count"], registry=self.registry)
            for key, text in OF_A_COUNT.items()
        }
        self._drift = Gauge(
            _PREFIX + "drift",
            "1 while acceptance is below (low) or above (high).",
            ["name", "side"],
            registry=self.registry,
        )
        self._evidence = Gauge(
            _PREFIX + "evidence",
            "Evidence of a chart; an alarm at 1.",
            ["name", "count", "side", "chart"],
            registry=self.registry,
        )
        self._looks = Counter(_PREFIX + "looks", "Looks at the engines.", ["name"], registry=self.registry)

    def serve(self, address: str) -> None:
        """Serve the figures at `host:port`, in a thread. UsageError where that cannot be."""
        host, _, port = address.rpartition(":")
        try:
            start_http_server(int(port), host.strip("[]"), self.registry)
        except (OSError, OverflowError) as error:
            raise UsageError(f"watch.metrics: {address}: {error}; name another host:port") from None

    def show(self, findings: Findings, look: Look, settings: WatchConfig) -> None:
        """Set the figures after a look: the drifts of all states, and the rest of what is compared now."""
        state = findings.own
        if findings.key != self._key:  # nothing of what was compared before
            self._key = findings.key
            for gauge in (*self._counts.values(), self._evidence, self._gauges["speedup"], self._gauges["pays"]):
                gauge.clear()
        self._set("last_look_timestamp_seconds", look.time)
        self._set("problems", len(look.problems))
        for count, last in state.last.items():
            if last.time == state.looked_at:
                self._show_count(count, last, state)
        if state.paying.speedup is not None:
            self._set("speedup", state.paying.speedup)
            self._set("pays", float(state.paying.pays))
        for side in SIDES:
            self._drift.labels(self._name, side).set(
                float(any(open_state.verdict == side for open_state in findings.open.values()))
            )
        for count, watched in state.counts.by_name.items():
            for (side, chart), value in evidence(watched.drift, settings).items():
                self._evidence.labels(self._name, short(count), side, chart).set(value)
        self._looks.labels(self._name).inc()

    def _show_count(self, count: str, last: Last, state: WatchState) -> None:
        reference = state.reference(count)
        figures = {"acceptance": last.share, "reference": float(reference is not None)}
        if state.draft:
            figures["predicted_acceptance"] = last.predicted
        if reference is not None:
            figures |= {"level": reference.mean_level, "band": reference.band}
        for key, value in figures.items():
            self._counts[key].labels(self._name, short(count)).set(value)

    def _set(self, key: str, value: float) -> None:
        self._gauges[key].labels(self._name).set(value)
