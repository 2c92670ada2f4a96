"""Passes of few tokens as CUDA graphs: the device replays a recorded pass, and the host asks once for hundreds of kernels.

Each kernel of such a pass takes microseconds, and the host needs longer to ask for them than the device to compute them: four
times as long for 0.6 billion parameters on an H100. A graph holds addresses: the caches of a decode are kept for the next one,
rows that are done are taken out in place, and a pass is recorded for rounded numbers of rows and visible slots. What is added are
rows that nobody reads, and slots that the mask hides. Passes over prompts, and passes of a shape that was seen once, are computed
as they come.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from pipeline.models.devices import upload
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.llama_forward import Caches

MOST_TOKENS = 1024  # of a pass that is recorded; above, kernels take longer than asking for them
_WIDEST = 64  # tokens of a row; wider passes are over prompts
_SLOTS = 256  # the fewest visible slots
_MOST, _MOST_BYTES = 64, 1 << 30  # of recorded passes, and of their results


Results = tuple[torch.Tensor, ...]  # of a pass: logits, then hidden states by recorded layer


class PassShape(NamedTuple):
    """The shape of a recorded pass."""

    rows: int
    tokens: int  # of each row
    visible: int
    keep: int


class Replay(NamedTuple):
    """A recorded pass: `ids_BT` and `first_B` are what it reads, `results` what `run` writes."""

    ids_BT: torch.Tensor
    first_B: torch.Tensor
    results: Results
    run: Callable[[], None]


class Inner(Protocol):
    """What `LlamaForward` gives."""

    device: torch.device
    recorded: tuple[int, ...]  # layers whose hidden states `compute` gives too

    def allocate(self, rows: int, capacity: int) -> Caches: ...

    def compute(
        self, ids_BT: torch.Tensor, first_B: torch.Tensor, caches: Caches, visible: int, keep: int
    ) -> Results: ...


class LentCaches:
    """The first `rows` rows of kept caches, for one decode."""

    def __init__(self, kept: "_Kept", rows: int) -> None:
        self.kept, self.rows = kept, rows


class _Kept:
    """Caches, the passes recorded over them, and how often a shape was computed before."""

    def __init__(self, caches: Caches, recorder: Callable[[], "PassRecorder"]) -> None:
        self.caches, self.rows, self.capacity = caches, len(caches.layers[0]), len(caches.cos_SHD)
        self.seen, self.recorded = Counter[PassShape](), dict[PassShape, Replay]()
        self._recorder, self._record = recorder, recorder()
        self.lent: Callable[[], LentCaches | None] = lambda: None

    def lend(self, rows: int) -> LentCaches:
        lent = LentCaches(self, rows)
        self.lent = weakref.ref(lent)
        return lent

    def record(
        self, shape: PassShape, ids_BT: torch.Tensor, first_B: torch.Tensor, compute: Callable[[], Results]
    ) -> Replay:
        held = sum(result.nbytes for replay in self.recorded.values() for result in replay.results)
        if len(self.recorded) == _MOST or held > _MOST_BYTES:
            self.recorded.clear()
            self._record = self._recorder()
        self.recorded[shape] = Replay(ids_BT, first_B, *self._record(compute))
        return self.recorded[shape]

    def first(self, rows: int) -> Caches:
        layers = [layer[:rows] for layer in self.caches.layers]
        return Caches(layers, self.caches.cos_SHD, self.caches.sin_SHD, self.caches.window)


class GraphedForward:
    """`forward.Forward` of a model on a GPU."""

    def __init__(self, inner: Inner, recorder: "Callable[[], PassRecorder] | None" = None) -> None:
        self.device, self._inner, self.features = inner.device, inner, Features()
        self._recorder = recorder or partial(_CudaGraphs, inner.device)
        self._kept: _Kept | None = None

    @torch.inference_mode()
    def allocate(self, rows: int, capacity: int) -> LentCaches:
        """Caches of an earlier decode if they are large enough, not for twice the rows and more, and no decode uses them,
        emptied."""
        kept = self._kept
        if kept is not None and kept.lent() is None and rows <= kept.rows < 2 * rows and kept.capacity >= capacity:
            for layer in kept.first(rows).layers:
                layer.zero_()  # hidden slots are multiplied by 0, which leaves NaN what it is
            return kept.lend(rows)
        self._kept = kept = None  # freed before others are allocated
        self._kept = _Kept(self._inner.allocate(rows, capacity), self._recorder)
        return self._kept.lend(rows)

    @torch.inference_mode()
    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: LentCaches, keep: int) -> torch.Tensor:
        kept, (rows, tokens), end = caches.kept, ids_BT.shape, max(first) + ids_BT.shape[1]
        shape = PassShape(_rounded(rows, kept.rows), tokens, _rounded_slots(end, kept.capacity), keep)
        first_B = upload(first, self.device)
        if tokens <= _WIDEST and shape.rows * tokens <= MOST_TOKENS:
            kept.seen[shape] += 1
            if kept.seen[shape] > 1:
                return self._result(self._replayed(kept, shape, ids_BT, first_B))
        return self._result(self._inner.compute(ids_BT, first_B, kept.first(rows), shape.visible, keep))

    def _result(self, computed: Results) -> torch.Tensor:
        logits, *states = computed
        self.features = dict(zip(self._inner.recorded, states, strict=True))
        return logits

    def _replayed(self, kept: _Kept, shape: PassShape, ids_BT: torch.Tensor, first_B: torch.Tensor) -> Results:
        if (replay := kept.recorded.get(shape)) is None:
            replay = self._recorded(kept, shape, ids_BT, first_B)
        # Rows beyond those of the decode compute what they computed last, in rows of the caches that nobody reads.
        replay.ids_BT[: len(ids_BT)] = ids_BT
        replay.first_B[: len(ids_BT)] = first_B
        replay.run()
        return tuple(result[: len(ids_BT)].clone() for result in replay.results)  # the next replay overwrites them

    def _recorded(self, kept: _Kept, shape: PassShape, ids_BT: torch.Tensor, first_B: torch.Tensor) -> Replay:
        more = shape.rows - len(ids_BT)
        read_BT = torch.cat([ids_BT, ids_BT.new_zeros(more, shape.tokens)])
        read_B, caches = torch.cat([first_B, first_B.new_zeros(more)]), kept.first(shape.rows)

        def compute() -> Results:
            return self._inner.compute(read_BT, read_B, caches, shape.visible, shape.keep)

        return kept.record(shape, read_BT, read_B, compute)

    @torch.inference_mode()
    def select(self, caches: LentCaches, rows: Sequence[int]) -> None:
        index = upload(rows, self.device)
        for layer in caches.kept.caches.layers:
            layer[: len(rows)] = layer[index]
        caches.rows = len(rows)


class PassRecorder(Protocol):
    """Records what `compute` asks the device for, which may be computed meanwhile or not. Returns its results, and what computes
    them in the same place."""

    def __call__(self, compute: Callable[[], Results]) -> tuple[Results, Callable[[], None]]: ...


class _CudaGraphs:
    """Records passes as CUDA graphs, which share memory: they never run at the same time. torch takes no further graph into the
    memory of graphs that are all gone, so a recorder goes with them."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            results = compute()
        return results, graph.replay


def _rounded(rows: int, most: int) -> int:
    """The next power of two."""
    return min(1 << (rows - 1).bit_length(), most)


def _rounded_slots(slots: int, most: int) -> int:
    """The next of 256, 384, 512, 768, 1024 and so on, of which a third at most is added."""
    size = _SLOTS
    while size < slots:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, most)
