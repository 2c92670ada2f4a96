"""One cell: a method, a regime, a seed; trained for a time or a number of steps, then examined. Its JSON is all that is kept."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.distillation.place import CELLS, pair_digest
from tests.benchmarks.distillation.rates import best_rate, tuned
from tests.benchmarks.distillation.speed import OURS, steps_within
from tests.benchmarks.figures import ROOT

STOCK = "stock"
SECONDS, SEEDS, REGIMES = 90.0, (0, 1, 2), ("near", "moved")
FEW_SEEDS = SEEDS[:2]  # where many are compared: seeds differ by a tenth of a point, prompts by far more
LOSS_SECONDS = 45.0  # of the many losses
ADAMW = "lk_hybrid"  # ours by the optimizer of the peers
PEERS = ("trl_sft", "trl_gkd", "online")
TWIN = "forward_kl"  # of `online`: the same loss and optimizer, on what is stored
LOSSES = (
    OURS,
    "forward_kl",
    "lk_hybrid",
    "forward_kl_muon",
    "total_variation",
    "negative_log_acceptance",
    "jensen_shannon",
    "reverse_kl",
    "cross_entropy",
    "cross_entropy_muon",
)
STORES = ("forward_kl_coarse", "online_top")  # the same on other stores
SIBLINGS = ("pruned", "alone")  # drafts of another shape, of equal size
GAMMA = 5


@dataclass(frozen=True)
class Cell:
    regime: str
    method: str
    seed: int
    like: str | None = None  # the method whose number of steps this one takes, in place of its own
    seconds: float = SECONDS
    rate: float | None = None  # of the learning; None: the best of those that were tried, or by trials of its own

    @property
    def name(self) -> str:
        return "-".join(
            part
            for part in (
                self.regime,
                self.method,
                str(self.seed),
                self.like and f"like_{self.like}",
                self.seconds != SECONDS and f"{self.seconds:g}s",
                self.rate and f"{self.rate:g}",
            )
            if part
        )

    @property
    def needs_rate(self) -> bool:
        """Whether rates have to be tried for it."""
        return self.rate is None and self.method != STOCK and not self.method.startswith("shipped")


def all_cells() -> Iterator[Cell]:
    """What matters first, so that an unfinished bench has it."""
    for regime in REGIMES:
        yield Cell(regime, STOCK, 0)
    for seed in SEEDS:
        for regime in REGIMES:
            yield from (Cell(regime, method, seed) for method in (OURS, *PEERS))
            yield Cell(regime, TWIN, seed, like="online")
    for seed in SEEDS:
        yield from (Cell(regime, ADAMW, seed) for regime in REGIMES)
    for seed in FEW_SEEDS:
        for regime in REGIMES:
            yield from (Cell(regime, loss, seed, seconds=LOSS_SECONDS) for loss in LOSSES)
    for seed in FEW_SEEDS:
        for regime in REGIMES:
            yield from (Cell(regime, method, seed, like="online") for method in STORES)
    yield from (Cell("near", method, SEEDS[0]) for method in SIBLINGS)


def run_missing(cells: Iterable[Cell]) -> None:
    """Each in a process of its own: peak memory is its own, and nothing of one is in another's way."""
    for cell in cells:
        if read_cell(cell) is None:
            print(f"{cell.name} ...", file=sys.stderr, flush=True)
            if cell.needs_rate:
                _alone("rates", tuned(cell.regime, cell.method))
            _alone("cells", json.dumps(asdict(cell)))


def _alone(module: str, argument: str) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.distillation.{module}", argument]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} {argument}: {done.stderr[-2000:]}")


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train and examine; the sufficient statistics of acceptance by prompt."""
    from tests.benchmarks.distillation.data import find_regime

    regime = find_regime(cell.regime)
    found: dict[str, Any] = asdict(cell)
    if cell.method == STOCK:
        model = regime.load(regime.draft)
    else:
        from tests.benchmarks.distillation.methods import METHODS

        train = METHODS[cell.method]
        rate = best_rate(cell.regime, cell.method) if cell.needs_rate else cell.rate or 0.0
        steps = steps_within(cell.seconds, cell.like or cell.method)
        trained = train(regime, steps, cell.seed, rate)
        model = trained.model
        found |= {
            "steps": steps,
            "seconds": trained.seconds,
            "tokens": trained.tokens,
            "learning_rate": trained.rate or rate,
        }
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = sorted(regime.examine(model.eval()), key=lambda item: item.id)
    if cell.method == STOCK:  # of all cells of the regime
        found["prompts"] = [[item.id, item.domain, item.tokens, regime.documents[item.id]] for item in counts]
    found["accepted"] = [round(item.accepted, 3) for item in counts]
    found["calls"] = [round(item.calls[GAMMA - 1], 3) for item in counts]
    return found


def write_cell(cell: Cell) -> None:
    CELLS.mkdir(parents=True, exist_ok=True)
    found = {"pair": pair_digest(), **run_cell(cell)}
    (CELLS / f"{cell.name}.json").write_text(json.dumps(found) + "\n")


def read_cell(cell: Cell) -> dict[str, Any] | None:
    """None where there is none of the pair at hand: cells of two pairs say nothing together."""
    path = CELLS / f"{cell.name}.json"
    found = dict(json.loads(path.read_text())) if path.exists() else None
    return found if found and found["pair"] == pair_digest() else None


if __name__ == "__main__":
    write_cell(Cell(**json.loads(sys.argv[1])))
