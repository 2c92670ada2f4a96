"""What a pair's forward passes take on a machine, as `understudy profile` measured them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.surface import Surface, read_surface

Floats = NDArray[np.float64]

SCHEMA = 1
_MIN_PROCESSOR_SHARE = 0.6  # share of the processor's time below which something else took it
PARTS = ("target", "draft", "prefill")
_KEYS = {"schema", "about", *PARTS}


@dataclass(frozen=True)
class Profile:
    """Seconds of a target's passes over 1 to gamma + 1 tokens and of its draft's over one, and of both their prefills."""

    target: Surface
    draft: Surface
    prefill: Surface  # of one prompt by both; `tokens` are the prompt's
    about: dict[str, Any]  # machine, versions, number format, digests of the weights

    @property
    def max_gamma(self) -> int:
        return self.target.tokens[-1] - 1

    @property
    def plain(self) -> bool:
        """Plain decoding is in every profile."""
        return True

    @property
    def max_requests(self) -> int:
        return self.target.batches[-1]

    @property
    def draft_digest(self) -> str | None:
        """Of the draft that was timed."""
        found = self.about.get("draft")
        return found if isinstance(found, str) else None

    @property
    def notes(self) -> list[str]:
        """What whoever reads figures made of it should know."""
        share = self.about.get("processor_share")
        if not isinstance(share, float) or share >= _MIN_PROCESSOR_SHARE:
            return []
        return [
            f"note: the profile was measured beside other work (it had {share:.0%} of the processor), so its times say little; "
            "measure again with nothing else running"
        ]

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """Seconds of a step of n requests at a draft length, with so much context each: [gamma, n - 1], n up to `cap`, gamma
        from 0. A step drafts gamma tokens one after the other and puts them to the target at once."""
        count_N = np.arange(1, cap + 1)
        gamma_G = np.arange((self.max_gamma if gammas is None else gammas) + 1)[:, None]
        drafting: Floats = gamma_G * self.draft.at(count_N, 1, context)
        return drafting + self.target.at(count_N, gamma_G + 1, context)

    def prefills(self, tokens: ArrayLike) -> Floats:
        """Seconds by which prompts of so many tokens hold everybody up, each."""
        return self.prefill.at(1, tokens, 0)

    def measurements(self, context: int | None = None) -> list[Measurement]:
        """Its steps one by one, as of a server that was measured under load; with the least context unless one is given, and
        prompts of as many tokens."""
        context = self.target.contexts[0] if context is None else context
        step_GN, prefill = self.steps(self.target.batches[-1], context), float(self.prefills(context))
        return [
            Measurement(
                where=f"batch size {batch}, draft length {gamma}",
                requests=batch,
                gamma=gamma,
                tokens_per_step=1.0,
                step_seconds=float(step_GN[gamma, batch - 1]),
                ttft=prefill,
                isolated=True,
            )
            for batch in self.target.batches
            for gamma in range(self.max_gamma + 1)
        ]

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        """Whether that lies within what was measured."""
        return self.target.covers(batch, gamma + 1, context) and self.draft.covers(batch, 1, context)

    def json(self) -> dict[str, Any]:
        surfaces = {name: getattr(self, name).json() for name in PARTS}
        return {"schema": SCHEMA, "about": self.about, **surfaces}


def profile_from_json(raw: Any, where: str) -> Profile:
    """UsageError, naming `where` and what is wrong, for what `Profile.json` did not give."""
    if not isinstance(raw, Mapping) or set(raw) != _KEYS:
        raise UsageError(f"{where}: this is no profile of forward times; write one by `understudy profile`")
    if raw["schema"] != SCHEMA:
        raise UsageError(
            f"{where}: a profile of schema {raw['schema']}, and this version reads schema {SCHEMA}; measure again"
        )
    surfaces = {name: read_surface(raw[name], f"{where}: {name}") for name in PARTS}
    if not isinstance(raw["about"], Mapping):
        raise UsageError(f"{where}: 'about' says nothing of the machine; measure again")
    return Profile(**surfaces, about=dict(raw["about"]))
