"""Learning rates of the peers: the best of a few on dev prompts, by regime. Ours takes its default."""

import json

from tests.benchmarks.distillation.data import find_regime
from tests.benchmarks.distillation.place import CELLS, TARGETS, pair_digest

CANDIDATES = {"trl_sft": (2e-4, 5e-4, 1e-3, 2e-3), "trl_gkd": (1e-3, 2e-3, 4e-3)}
_SECONDS, _SEED = 60.0, 100
_FILE = CELLS / "rates.json"


def best_rate(regime: str, method: str) -> float | None:
    """None for a method that has no candidates."""
    tried = tried_rates().get(f"{regime}/{method}")
    return float(max(tried, key=lambda rate: tried[rate])) if tried else None


def try_rates() -> None:
    """Dev acceptance of every candidate that was not tried yet."""
    from tests.benchmarks.distillation.methods import METHODS, steps_within

    found = tried_rates()
    for name in TARGETS:
        regime = find_regime(name)
        for method, rates in CANDIDATES.items():
            tried = found.setdefault(f"{name}/{method}", {})
            missing = [rate for rate in rates if f"{rate:g}" not in tried]
            if not missing:
                continue
            train = METHODS[method]
            steps = steps_within(_SECONDS, lambda count: train(regime, count, _SEED, rates[0]).seconds)  # noqa: B023
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
