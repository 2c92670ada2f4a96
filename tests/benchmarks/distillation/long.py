"""The stale draft brought back without haste: training until little more is gained. Its minutes are those of its steps at the
pace measured alone, as everywhere."""

import json
from typing import Any

import numpy as np

from tests.benchmarks.distillation.cells import STOCK, Cell, read_cell
from tests.benchmarks.distillation.place import CELLS, pair_digest
from tests.benchmarks.distillation.rates import best_rate
from tests.benchmarks.distillation.speed import OURS, seconds_of
from tests.benchmarks.distillation.summary import Prompts

STEPS = 8000
_FILE = CELLS / "long.json"


def measure_long() -> dict[str, Any]:
    """Acceptance by domain of the stale draft and of the one brought back; minutes of training."""
    if _FILE.exists() and (found := json.loads(_FILE.read_text()))["pair"] == pair_digest():
        return dict(found)
    from tests.benchmarks.distillation.data import find_regime
    from tests.benchmarks.distillation.methods import METHODS

    stale = read_cell(Cell("moved", STOCK, 0))
    assert stale is not None
    regime = find_regime("moved")
    trained = METHODS[OURS](regime, STEPS, 0, best_rate("moved", OURS))
    examined = sorted(regime.examine(trained.model.eval()), key=lambda item: item.id)
    prompts = Prompts(stale["prompts"])
    found = {
        "pair": pair_digest(),
        "completions": len(regime.read("train")),
        "steps": STEPS,
        "minutes": seconds_of(STEPS, OURS) / 60,
        "stale": prompts.by_domain(np.array(stale["accepted"])),
        "brought_back": prompts.by_domain(np.array([item.accepted for item in examined])),
    }
    _FILE.write_text(json.dumps(found, indent=1) + "\n")
    return found
