"""Step times that were made up, as files."""

import json
from pathlib import Path

import numpy as np

from pipeline.latency.costs.profile import Profile
from pipeline.latency.costs.surface import Surface


def write_step_costs(path: Path, draft: float) -> Path:
    """A target's passes take 10 ms, those of a draft `draft` seconds."""
    flat = np.full((2, 6, 1), 0.01)
    profile = Profile(
        Surface((1, 4), tuple(range(1, 7)), (64,), flat),
        Surface((1, 4), (1,), (64,), np.full((2, 1, 1), draft)),
        Surface((1,), (8, 16), (0,), np.full((1, 2, 1), 0.01)),
        {"device": "made up"},
    )
    path.write_text(json.dumps(profile.json()))
    return path
