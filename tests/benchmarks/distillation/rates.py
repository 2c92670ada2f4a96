"""Learning rates of the peers: the best of a few on dev prompts, by regime. Ours takes its default."""

import json

from tests.benchmarks.distillation.data import find_regime
from tests.benchmarks.distillation.place import CELLS, pair_digest
from tests.benchmarks.distillation.speed import steps_within

CANDIDATES = {  # the best of a wider search and its neighbours
    "near/trl_sft": (1e-4, 2e-4, 5e-4),
    "near/trl_gkd": (5e-4, 1e-3, 2e-3),
    "moved/trl_sft": (2e-3, 4e-3, 8e-3),
    "moved/trl_gkd": (4e-3, 8e-3, 1.6e-2),
}
_SECONDS, _SEED = 60.0, 100
_FILE = CELLS / "rates.json"


def best_rate(regime: str, method: str) -> float | None:
    """None for a method that has no candidates."""
    tried = tried_rates().get(f"{regime}/{method}")
    return float(max(tried, key=lambda rate: tried[rate])) if tried else None


def try_rates() -> None:
    """Dev acceptance of every candidate that was not tried yet."""
    from tests.benchmarks.distillation.methods import METHODS

    found = tried_rates()
    for name, rates in CANDIDATES.items():
        tried = found.setdefault(name, {})
        if missing := [rate for rate in rates if f"{rate:g}" not in tried]:
            regime, train = find_regime(name.partition("/")[0]), METHODS[name.partition("/")[2]]
            steps = steps_within(_SECONDS, name.partition("/")[2])
            for rate in missing:
                tried[f"{rate:g}"] = regime.dev_acceptance(train(regime, steps, _SEED, rate).model.eval())
                CELLS.mkdir(parents=True, exist_ok=True)
                _FILE.write_text(json.dumps({"pair": pair_digest(), **found}, indent=1) + "\n")


def tried_rates() -> dict[str, dict[str, float]]:
    """Dev acceptance by `regime/method`, then rate."""
    found = dict(json.loads(_FILE.read_text())) if _FILE.exists() else {}
    return (
        {name: tried for name, tried in found.items() if name != "pair"} if found.get("pair") == pair_digest() else {}
    )


if __name__ == "__main__":
    try_rates()
