"""Learning rates by dev prompts, for every optimizer and trainer alike: a first guess, doubled and halved until it gets worse.

The guesses are the best of a wider search on other completions of the same pair.
"""

import json
import sys

from tests.benchmarks.distillation.place import CELLS, pair_digest
from tests.benchmarks.distillation.speed import OURS, steps_within

_GUESSES = {
    "near/trl_sft": 2e-4,
    "near/trl_gkd": 1e-3,
    "near/lk_hybrid_muon": 3e-3,
    "near/forward_kl": 2e-3,
    "near/cross_entropy": 5e-4,
    "moved/trl_sft": 4e-3,
    "moved/trl_gkd": 8e-3,
    "moved/lk_hybrid_muon": 6e-3,
    "moved/forward_kl": 4e-3,
    "moved/cross_entropy": 4e-3,
}
_SECONDS, _SEED = 45.0, 100
_FILE = CELLS / "rates.json"


def tuned(regime: str, method: str) -> str:
    """Whose rate a method takes: its own, or that of the same optimizer on another loss or store."""
    own = f"{regime}/{method}"
    return own if own in _GUESSES else f"{regime}/{OURS if method.endswith('_muon') else 'forward_kl'}"


def best_rate(regime: str, method: str) -> float:
    tried = tried_rates()[tuned(regime, method)]
    return float(max(tried, key=lambda rate: tried[rate]))


def try_rates(name: str) -> None:
    """Of one of the above, what was not tried yet."""
    first = _GUESSES[name]
    _try(name, first)
    for factor in (2.0, 0.5):
        rate = first
        while _try(name, rate * factor) > _try(name, rate):
            rate *= factor


def _try(name: str, rate: float) -> float:
    """Dev acceptance, measured once."""
    from tests.benchmarks.distillation.data import find_regime
    from tests.benchmarks.distillation.methods import METHODS

    found = tried_rates()
    tried = found.setdefault(name, {})
    if f"{rate:g}" not in tried:
        regime_name, _, method = name.partition("/")
        regime = find_regime(regime_name)
        trained = METHODS[method](regime, steps_within(_SECONDS, method), _SEED, rate)
        tried[f"{rate:g}"] = regime.dev_acceptance(trained.model.eval())
        CELLS.mkdir(parents=True, exist_ok=True)
        _FILE.write_text(json.dumps({"pair": pair_digest(), **found}, indent=1) + "\n")
    return tried[f"{rate:g}"]


def tried_rates() -> dict[str, dict[str, float]]:
    """Dev acceptance by `regime/method`, then rate."""
    found = dict(json.loads(_FILE.read_text())) if _FILE.exists() else {}
    return (
        {name: tried for name, tried in found.items() if name != "pair"} if found.get("pair") == pair_digest() else {}
    )


if __name__ == "__main__":
    try_rates(sys.argv[1])
