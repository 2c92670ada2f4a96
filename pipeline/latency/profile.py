"""What a pair's forward passes take on a machine, as `understudy profile` measured them. Pure but for reading the file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UnderstudyError
from pipeline.latency.surface import Surface, read_surface

Floats = NDArray[np.float64]

SCHEMA = 1
_KEYS = {"schema", "about", "target", "draft", "prefill"}


@dataclass(frozen=True)
class Profile:
    """Seconds of a target's passes over 1 to gamma + 1 tokens and of its draft's over one, and of both their prefills."""

    target: Surface
    draft: Surface
    prefill: Surface  # of one prompt by both; `tokens` are the prompt's
    about: dict[str, Any]  # machine, versions, number format, digests of the weights

    @property
    def most_gamma(self) -> int:
        return self.target.tokens[-1] - 1

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """Seconds of a step of n requests at a draft length, with so much context each: [gamma, n - 1], n up to `cap`, gamma
        from 0. A step drafts gamma tokens one after the other and puts them to the target at once."""
        count_N = np.arange(1, cap + 1)
        gamma_G = np.arange((self.most_gamma if gammas is None else gammas) + 1)[:, None]
        drafting: Floats = gamma_G * self.draft.at(count_N, 1, context)
        return drafting + self.target.at(count_N, gamma_G + 1, context)

    def prefills(self, tokens: ArrayLike) -> Floats:
        """Seconds by which prompts of so many tokens hold everybody up, each."""
        return self.prefill.at(1, tokens, 0)

    def json(self) -> dict[str, Any]:
        surfaces = {name: getattr(self, name).json() for name in ("target", "draft", "prefill")}
        return {"schema": SCHEMA, "about": self.about, **surfaces}


def read_profile(path: Path) -> Profile:
    """UnderstudyError, naming the file and what is wrong with it, where it is none."""
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise UnderstudyError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise UnderstudyError(f"{path}: this is no JSON; write a profile by `understudy profile`") from None
    if not isinstance(raw, Mapping) or set(raw) != _KEYS:
        raise UnderstudyError(f"{path}: this is no profile of forward times; write one by `understudy profile`")
    if raw["schema"] != SCHEMA:
        raise UnderstudyError(
            f"{path}: a profile of schema {raw['schema']}, and this version reads schema {SCHEMA}; measure again"
        )
    surfaces = {name: read_surface(raw[name], f"{path}: {name}") for name in ("target", "draft", "prefill")}
    return Profile(**surfaces, about=dict(raw["about"]))
