"""The sampling settings of a deployment, from what is known of it: one resolver for `init`, `probe` and `decode`. Torch-free.

Nothing here asks a model, a log or a run; who calls it has read them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import ValidationError

from pipeline.config.generate import SamplingConfig
from pipeline.speculation.settings import GREEDY, Sampling

_NAMES = tuple(item.name for item in fields(Sampling))
FILE = "the target's generation_config.json"


@dataclass(frozen=True)
class StatedSettings:
    """Settings that `source`, in words, states. Others than those of `Sampling` cannot be applied."""

    source: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Deployed:
    """The settings, and by setting who states it; what nobody states is the default."""

    sampling: Sampling
    sources: Mapping[str, str]
    inexpressible: Mapping[str, Any]  # that sources state and `Sampling` cannot express
    notes: Sequence[str] = field(default=())  # sources that were not used, and why

    @property
    def lines(self) -> list[str]:
        """Lines for people: where the settings come from, and what is not applied."""
        by_source: dict[str, list[str]] = {}
        for name in _NAMES:
            if name in self.sources:
                by_source.setdefault(self.sources[name], []).append(f"{name} {getattr(self.sampling, name):g}")
        stated = "; ".join(f"{', '.join(names)} from {source}" for source, names in by_source.items())
        missing = [name for name in _NAMES if name not in self.sources]
        if self.sampling.greedy:
            missing = []
        by_default = ", ".join(f"{name} {getattr(self.sampling, name):g}" for name in missing)
        default = f"{by_default} by default, stated by no option, run, log or {FILE}" if missing else ""
        first = f"sampling: {'; '.join(filter(None, (stated, default)))}"
        also = ", ".join(f"{name} {value!r}" for name, value in self.inexpressible.items())
        return [
            first,
            *self.notes,
            *([f"sampling: {FILE} also sets {also}, which is not applied here"] if also else []),
        ]


def resolve(known: Iterable[StatedSettings]) -> Deployed:
    """The settings of what is `known`, later ones over earlier ones. A source with values that no engine takes is left out, with
    a note."""
    settings, sources, others, notes = dict[str, Any](), dict[str, str](), dict[str, Any](), list[str]()
    for statement in known:
        own = {name: value for name, value in statement.settings.items() if name in _NAMES}
        try:
            SamplingConfig.model_validate(own)
        except ValidationError:
            stated = ", ".join(f"{name} {value!r}" for name, value in own.items())
            notes.append(f"sampling: {statement.source}: {stated} is out of range and not used")
            continue
        settings |= own
        sources |= dict.fromkeys(own, statement.source)
        others |= {name: value for name, value in statement.settings.items() if name not in (*_NAMES, "max_new_tokens")}
    sampling = Sampling.from_config(SamplingConfig.model_validate(settings))
    if sampling.greedy:  # cut-offs have no effect
        sampling, sources = GREEDY, {"temperature": sources["temperature"]}
    return Deployed(sampling, sources, others, notes)


def of_log(rows: Counter[tuple[tuple[str, float], ...]]) -> list[StatedSettings]:
    """The settings that most rows of a log with settings state; none where no row does. `rows`: by their settings."""
    stated = [(count, settings) for settings, count in rows.items() if settings]
    if not stated:
        return []
    count, settings = max(stated)
    total = sum(count for count, _ in stated)
    which = f"{count:,} of {total:,} rows" if total > count else f"{count:,} rows"
    return [StatedSettings(f"{which} that state theirs", dict(settings))]
