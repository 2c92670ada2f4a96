"""Proves a forward: compares it with the model's own single passes on a few rows, before it is used.

Rows have different lengths. They are prefilled together, then decoded in blocks whose last tokens are rejected, and token by
token as a draft is; rows are dropped in between. Logits of every kept position are compared with a pass of the model over that
row alone, without a cache, a mask or a batch. Rows reach past every window that the config names. A window longer than
`_SHORT_WINDOW` is shortened in the config meanwhile: passes over thousands of tokens would cost minutes on a CPU.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from pipeline.models.attention_layers import WINDOWS
from pipeline.models.placement import input_device
from pipeline.speculation.forward import CachedModel, Forward

_SHORT_WINDOW = 8
_LONGEST_WINDOW = 512  # of a window that cannot be shortened, because it is not read from the config
_SPARE = 16  # tokens of the longest row beyond twice the window
_BLOCKS = ((4, (2, 4, 1)), (5, (1, 3, 5)))  # tokens of a block, and how many of them each row keeps
_DRAFTS = 2
_DRAFTED = 3  # single tokens, of which the last is rejected
# Largest relative distance of logits (`_distances`) by dtype. The model's own passes over a prefix, or over a batch, differ too:
# three times that is allowed where it is more.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_LOWER_PRECISION = 0.05
_NOISE = 3.0
_LEAK = 1e-3  # in float32 and float64, by the median of positions
_LARGEST_NOISE = 0.2  # above, rounding and faults cannot be distinguished


class Unproved(Exception):
    """Why a forward cannot be used. The message continues "logits ..." or names the error."""


@dataclass(frozen=True)
class ProofCase:
    """Rows of token ids with the logits of single passes over them, (T, V) each."""

    rows: list[list[int]]
    prompts: list[int]  # tokens of each row that are prefilled
    expected: list[torch.Tensor]
    tolerance: float
    damaged: bool  # logits are not finite: nothing can be compared, and the decoder reports it


@torch.inference_mode()
def make_case(model: Any, vocabulary: int, past_windows: bool = True) -> ProofCase:
    """Rows for `model` and the logits of its own passes over them. Raises Unproved if its logits depend on later tokens, or if
    its passes over a batch of padded rows, which the examination uses, differ from single passes."""
    rows, prompts = _rows(model, vocabulary, past_windows)
    expected = [plain_pass(model, [row], vocabulary)[0] for row in rows]
    if not all(bool(torch.isfinite(own_TV).all()) for own_TV in expected):
        return ProofCase(rows, prompts, expected, math.inf, damaged=True)
    exact = _TOLERANCE.get(model.dtype)
    largest = _LARGEST_NOISE if exact is None else _LOWER_PRECISION
    width = max(map(len, rows))
    padded_BTV = plain_pass(model, [row + [0] * (width - len(row)) for row in rows], vocabulary)
    noise = max(_mean_distance(own_TV, padded_BTV[at]) for at, own_TV in enumerate(expected))
    if noise > largest:
        raise Unproved(f"its logits of padded rows differ from those of single rows by {noise:.2g}")
    later = 0.0
    for row, own_TV in zip(rows, expected, strict=True):
        cut = max(1, 2 * len(row) // 3)
        distances = _distances(own_TV[:cut], plain_pass(model, [row[:cut]], vocabulary)[0])
        noise, later = max(noise, sum(distances) / len(distances)), max(later, median(distances))
    # A flipped expert moves few positions; a model that reads later tokens moves most of them, if only a little.
    if exact is not None and later > _LEAK:
        raise Unproved(f"its logits depend on later tokens: they differ by {later:.2g} where the text ends earlier")
    if noise > largest:
        raise Unproved(f"its logits depend on later tokens: they differ by {noise:.2g} where the text ends earlier")
    return ProofCase(rows, prompts, expected, max(exact or _LOWER_PRECISION, _NOISE * noise), damaged=False)


@torch.inference_mode()
def prove(forward: Forward, case: ProofCase, vocabulary: int) -> None:
    """Raises Unproved if the logits of `forward` differ from those of single passes by more than rounding."""
    worst = max(sum(distances) / len(distances) for distances in _decode(forward, case, vocabulary))
    if worst > case.tolerance:
        raise Unproved(f"logits differ by {worst:.2g} from those of single passes ({case.tolerance:.2g} is allowed)")


def plain_pass(model: Any, rows: Sequence[Sequence[int]], vocabulary: int) -> torch.Tensor:
    """Logits (B, T, V) of rows of equal length as the examination computes them: no cache, no mask, no positions."""
    ids_BT = torch.tensor(rows, device=input_device(model))
    output = model(input_ids=ids_BT, use_cache=False, logits_to_keep=ids_BT.shape[1])
    logits: torch.Tensor = output.logits[..., :vocabulary]
    return logits


def _decode(forward: Forward, case: ProofCase, vocabulary: int) -> list[list[float]]:
    """The distances, by row, of the logits at every position whose whole past is right."""
    numbers, lengths = list(range(len(case.rows))), list(case.prompts)
    capacity = max(map(len, case.rows)) + max(width for width, _ in _BLOCKS) + 1
    ids_BS = torch.zeros(len(numbers), capacity, dtype=torch.long, device=forward.device)
    for number, row in enumerate(case.rows):
        ids_BS[number, : lengths[number]] = torch.tensor(row[: lengths[number]])
    side, wrong = CachedModel(forward, len(numbers), capacity), 1 + vocabulary // 2
    side.fill_cache(ids_BS, lengths)
    distances: list[list[float]] = [[] for _ in numbers]

    def run(width: int, kept: Sequence[int]) -> None:
        """A pass over `width` tokens of each row, from its last one on, with wrong tokens where they are rejected."""
        first, blocks = [length - 1 for length in lengths], []
        for number, start, keep in zip(numbers, first, kept, strict=True):
            right = (case.rows[number][start:] + [0] * width)[:width]
            blocks.append([(token + (at >= keep) * wrong) % vocabulary for at, token in enumerate(right)])
        logits_BTV = side.logits(torch.tensor(blocks, device=forward.device), first, keep=width)
        for at, (number, start, keep) in enumerate(zip(numbers, first, kept, strict=True)):
            own_TV = case.expected[number][start : start + keep]
            distances[number] += _distances(own_TV, logits_BTV[at])
            lengths[at] = min(lengths[at] + keep, len(case.rows[number]))

    for width, kept in _BLOCKS:
        run(width, kept)
    numbers = [2, 0]
    side.select(numbers)
    lengths = [lengths[number] for number in numbers]
    for _ in range(_DRAFTS):
        before = list(lengths)
        for _ in range(_DRAFTED):
            run(1, [1] * len(numbers))
        lengths = [min(start + _DRAFTED - 1, end) for start, end in zip(before, lengths, strict=True)]
    run(3, [3, 2])
    return distances


def _distances(expected_TV: torch.Tensor, found_TV: torch.Tensor) -> list[float]:
    """The root mean square, by position of `expected_TV`, of the difference relative to the spread of the logits."""
    expected_TV = expected_TV.double()
    difference_T = (found_TV[: len(expected_TV)].double() - expected_TV).pow(2).mean(-1).sqrt()
    distance_T = difference_T / expected_TV.std(-1, correction=0).clamp_min(1e-12)
    return [value if math.isfinite(value) else math.inf for value in distance_T.tolist()]


def _mean_distance(expected_TV: torch.Tensor, found_TV: torch.Tensor) -> float:
    """Averaged over positions: one flipped expert counts less than a wrong mask, which shifts all positions."""
    distances = _distances(expected_TV, found_TV)
    return sum(distances) / len(distances)


def _rows(model: Any, vocabulary: int, past_windows: bool) -> tuple[list[list[int]], list[int]]:
    window = max([_SHORT_WINDOW, *(windows(model).values() if past_windows else ())])
    longest = 2 * window + _SPARE
    context = getattr(_text_config(model), "max_position_embeddings", None)
    if isinstance(context, int):
        longest = min(longest, context)
    # One row crosses the window while it decodes, one stays within it, one is prefilled past it.
    prompts = [max(2, min(window, longest // 2) - 3), 1, max(2, longest - 13)]
    lengths = [min(prompt + 13, longest) for prompt in prompts]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths], prompts


def windows(model: Any) -> dict[str, int]:
    """The windows that the config names, by the names of their settings."""
    config = _text_config(model)
    sizes = {name: getattr(config, name, None) for name in (*WINDOWS.values(), "window_size")}
    return {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}


def _text_config(model: Any) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


@contextmanager
def short_windows(model: Any, vocabulary: int) -> Iterator[bool]:
    """Shorten the config's windows. False where one remains too long for rows past it, because it is not read from the config."""
    config, sizes = _text_config(model), windows(model)
    long = {name: size for name, size in sizes.items() if size > _SHORT_WINDOW}
    long = {name: size for name, size in long.items() if _shortens(model, config, name, vocabulary)}
    try:
        for name in long:
            setattr(config, name, _SHORT_WINDOW)
        yield max(windows(model).values(), default=0) <= _LONGEST_WINDOW
    finally:
        for name, size in long.items():
            setattr(config, name, size)


@torch.inference_mode()
def _shortens(model: Any, config: Any, name: str, vocabulary: int) -> bool:
    """Whether the model reads its window from the config at every pass: then a shorter one changes its logits."""
    size = getattr(config, name)
    row = [torch.randint(vocabulary, (3 * _SHORT_WINDOW,), generator=torch.Generator().manual_seed(0)).tolist()]

    @contextmanager
    def short() -> Iterator[None]:
        setattr(config, name, _SHORT_WINDOW)
        try:
            yield
        finally:
            setattr(config, name, size)

    return changes(lambda: plain_pass(model, row, vocabulary)[0], short())


def changes(logits: Callable[[], torch.Tensor], altered: AbstractContextManager[object]) -> bool:
    """Whether the logits (T, V) of a row are others within `altered`: by more than those of two equal passes, which differ where
    a GPU adds in any order."""
    before_TV = logits()
    noise = _mean_distance(before_TV, logits())
    with altered:
        return _mean_distance(before_TV, logits()) > _NOISE * noise
