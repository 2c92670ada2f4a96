"""Forward times of a pair on one machine, as measured by `understudy profile`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import MEASURED, StepAccuracy
from pipeline.latency.costs.measurements import MOST_GAMMA, MOST_REQUESTS, Measurement
from pipeline.latency.costs.server_facts import ServerFacts
from pipeline.latency.costs.surface import Surface, read_surface

Floats = NDArray[np.float64]

SCHEMA = 1
_MIN_PROCESSOR_SHARE = 0.6  # CPU share below which other processes disturbed the measurement
PARTS = ("target", "draft", "prefill")
UNEQUAL = (  # passes of target and draft
    "passes of the target are computed in compiled code here and those of the draft in PyTorch, one operator at a time, so the "
    "draft costs more beside its target than on an engine"
)
_KEYS = {"schema", "about", *PARTS}


@dataclass(frozen=True)
class Profile(ServerFacts):
    """Forward times in seconds: target passes over 1 to gamma + 1 tokens, draft passes over 1, and prefills."""

    target: Surface
    draft: Surface
    prefill: Surface  # of one prompt by target and draft together; `tokens` is the prompt length
    about: dict[str, Any]  # device, threads, dtype, versions, digests of the weights

    @property
    def max_gamma(self) -> int:
        return self.target.tokens[-1] - 1

    @property
    def max_requests(self) -> int:
        return self.target.batches[-1]

    @property
    def load(self) -> None:
        """The same as in `FittedCosts`; forward times are read at any batch size."""
        return None

    @property
    def accuracy(self) -> StepAccuracy:
        """No fit: the times are interpolated between measured ones."""
        return MEASURED

    def accuracy_at(self, gamma: int, batch: float) -> StepAccuracy:
        """The same everywhere: `covers` states where nothing was measured."""
        return MEASURED

    @property
    def first_steps(self) -> int:
        """The same as in `FittedCosts`; 0: the measured prefills were run alone."""
        return 0

    @property
    def draft_digest(self) -> str | None:
        """Digest of the measured draft."""
        digest = self.about.get("draft")
        return digest if isinstance(digest, str) else None

    @property
    def draft_shape(self) -> str | None:
        """The shape of the draft, as `models/step_shape.py` has it; None where it is not known."""
        shape = self.about.get("draft_shape")
        return shape if isinstance(shape, str) else None

    @property
    def notes(self) -> list[str]:
        """Warnings about this profile for the reader of predictions."""
        notes, share = list[str](), self.about.get("processor_share")
        if isinstance(share, float) and share < _MIN_PROCESSOR_SHARE:
            notes.append(
                f"note: other processes were running, so profiling got {share:.0%} of the CPU time and its times are unreliable; "
                "profile again on an idle machine"
            )
        if self.about.get("unequal_passes"):
            notes.append(f"note: {UNEQUAL}; fit an engine's own costs from its load tests (understudy latency fit)")
        if self.about.get("passes") == "eager" and not str(self.about.get("device", "")).startswith("cpu"):
            notes.append(
                "note: these are eager passes, and engines replay recorded graphs, in which a small draft costs less beside its "
                "target; fit an engine's own costs from its load tests (understudy latency fit)"
            )
        return notes

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """Seconds of a step with n requests at each draft length: [gamma, n - 1], n up to `cap`, gamma from 0. A step is gamma
        draft passes and one target pass over gamma + 1 tokens per request; `context` is the length of each KV cache."""
        count_N = np.arange(1, cap + 1)
        gamma_G = np.arange((self.max_gamma if gammas is None else gammas) + 1)[:, None]
        drafting: Floats = gamma_G * self.draft.at(count_N, 1, context)
        return drafting + self.target.at(count_N, gamma_G + 1, context)

    def prefills(self, tokens: ArrayLike) -> Floats:
        """Seconds of the prefill of a prompt, by its length in tokens; it blocks the batch for this long."""
        return self.prefill.at(1, tokens, 0)

    def measurements(self, context: int | None = None) -> list[Measurement]:
        """Every measured step as a `Measurement`, at `context` (default: the shortest) and with prompts of that length."""
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

    def measured(self, gamma: int) -> bool:
        """Whether target passes over gamma + 1 tokens were measured."""
        return gamma + 1 in self.target.tokens

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        """Whether this point is within the measured range."""
        return self.target.covers(batch, gamma + 1, context) and self.draft.covers(batch, 1, context)

    def json(self) -> dict[str, Any]:
        surfaces = {name: getattr(self, name).json() for name in PARTS}
        return {"schema": SCHEMA, "about": self.about, **surfaces}


def profile_from_json(raw: Any, where: str) -> Profile:
    """Inverse of `Profile.json`. UsageError, naming `where` and the problem, for any other content."""
    if not isinstance(raw, Mapping) or set(raw) != _KEYS:
        raise UsageError(f"{where}: not a profile; write one with `understudy profile`")
    if raw["schema"] != SCHEMA:
        raise UsageError(
            f"{where}: a profile of schema {raw['schema']!r}, and this version reads schema {SCHEMA}; write it again with "
            "`understudy profile`"
        )
    surfaces = {name: read_surface(raw[name], f"{where}: {name}") for name in PARTS}
    if surfaces["target"].tokens[-1] > MOST_GAMMA + 1 or surfaces["target"].batches[-1] > MOST_REQUESTS:
        raise UsageError(
            f"{where}: target: tokens may be at most {MOST_GAMMA + 1} and batches at most {MOST_REQUESTS:,}; profile again"
        )
    if not isinstance(raw["about"], Mapping):
        raise UsageError(f"{where}: 'about' is not a mapping; profile again")
    return Profile(surfaces["target"], surfaces["draft"], surfaces["prefill"], dict(raw["about"]))
