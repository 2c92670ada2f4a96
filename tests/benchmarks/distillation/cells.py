"""One cell: a method, a regime, a seed; trained for a time or a number of steps, then examined. Its JSON is all that is kept."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.figures import RESULTS, ROOT

CELLS = RESULTS / "distillation"
STOCK = "stock"
SECONDS, SEEDS, REGIMES = 90.0, (0, 1, 2), ("near", "moved")
PEERS, OURS = ("trl_sft", "trl_gkd", "online"), "forward_kl"
OTHER_LOSSES = (
    "lk_hybrid",
    "lk_hybrid_muon",
    "forward_kl_muon",
    "total_variation",
    "negative_log_acceptance",
    "jensen_shannon",
    "reverse_kl",
    "cross_entropy",
)
GAMMA = 5
_SHORT, _LONG = 10, 40  # steps of the two trainings whose difference says what a step takes
_DEFAULT_RATE = 2e-3
_RATES: dict[str, float] = {}


@dataclass(frozen=True)
class Cell:
    regime: str
    method: str
    seed: int
    like: str | None = None  # the method whose number of steps this one takes, in place of a time

    @property
    def name(self) -> str:
        return "-".join(
            part for part in (self.regime, self.method, str(self.seed), self.like and f"like_{self.like}") if part
        )


def all_cells() -> Iterator[Cell]:
    """What matters first, so that an unfinished bench has it."""
    for regime in REGIMES:
        yield Cell(regime, STOCK, 0)
    for seed in SEEDS:
        for regime in REGIMES:
            yield from (Cell(regime, method, seed) for method in (OURS, *PEERS))
            yield Cell(regime, OURS, seed, like="online")
    for seed in SEEDS:
        for regime in REGIMES:
            yield from (Cell(regime, loss, seed) for loss in OTHER_LOSSES)


def run_missing() -> None:
    """Each in a process of its own: peak memory is its own, and nothing of one is in another's way."""
    for cell in all_cells():
        if not (CELLS / f"{cell.name}.json").exists():
            command = [sys.executable, "-m", "tests.benchmarks.distillation.cells", json.dumps(asdict(cell))]
            print(f"{cell.name} ...", file=sys.stderr, flush=True)
            subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)


def run_cell(cell: Cell, seconds: float = SECONDS, rate: float | None = None) -> dict[str, Any]:
    """Train and examine; the sufficient statistics of acceptance by prompt."""
    from tests.benchmarks.distillation.data import find_regime

    regime, rate = find_regime(cell.regime), rate or _RATES.get(cell.method, _DEFAULT_RATE)
    found: dict[str, Any] = asdict(cell)
    if cell.method == STOCK:
        model = regime.load(regime.draft)
    else:
        from tests.benchmarks.distillation.methods import METHODS

        train = METHODS[cell.method]
        if cell.like is None:
            steps = _steps_within(seconds, lambda count: train(regime, count, 1000 + cell.seed, rate).seconds)
        else:
            steps = read_cell(Cell(cell.regime, cell.like, cell.seed))["steps"]
        trained = train(regime, steps, cell.seed, rate)
        model = trained.model
        found |= {"steps": steps, "seconds": trained.seconds, "tokens": trained.tokens, "learning_rate": rate}
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = regime.examine(model.eval())
    found["prompts"] = [
        [item.id, item.domain, item.tokens, round(item.accepted, 3), round(item.calls[GAMMA - 1], 3)] for item in counts
    ]
    return found


def write_cell(cell: Cell) -> None:
    CELLS.mkdir(parents=True, exist_ok=True)
    found = run_cell(cell)
    (CELLS / f"{cell.name}.json").write_text(json.dumps(found) + "\n")


def read_cell(cell: Cell) -> dict[str, Any]:
    return dict(json.loads((CELLS / f"{cell.name}.json").read_text()))


def _steps_within(seconds: float, took: Any) -> int:
    """Steps that fit: from what a short and a longer training take, so that what is paid once is counted once."""
    took(2)  # compiles, allocates, reads
    short, long = took(_SHORT), took(_LONG)
    step = (long - short) / (_LONG - _SHORT)
    return max(_LONG, int((seconds - (short - _SHORT * step)) / step))


if __name__ == "__main__":
    write_cell(Cell(**json.loads(sys.argv[1])))
