"""A served target in the place of a model that is loaded here: each forward pass is a request that scores its tokens.

For a few prompts only: it has no cache, and every pass sends the whole sequence. Shapes: B rows, T tokens, k positions, V tokens.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from pipeline.config.server import ServerConfig
from pipeline.progress import Progress
from pipeline.servers.answers import Scored
from pipeline.servers.api import ScoreRequest
from pipeline.servers.connect import connect
from pipeline.servers.identity import Identity
from pipeline.servers.target import ServedTarget

_ANY = 0  # a token after the sequence, whose place gets a distribution


class ServedLogits:
    """Called like a model: ids in, logits out. The logits are log-probabilities at temperature 1. Tokens that the server does not
    list share the rest of the mass equally."""

    is_quantized = False

    def __init__(
        self, runner: asyncio.Runner, target: ServedTarget, listed: int, vocabulary: int, dtype: torch.dtype
    ) -> None:
        self.device, self.dtype, self.vocabulary = torch.device("cpu"), dtype, vocabulary
        self._runner, self._target, self._listed = runner, target, listed

    def __call__(self, input_ids: torch.Tensor, logits_to_keep: int, use_cache: bool = False) -> SimpleNamespace:
        """The logits of the last `logits_to_keep` positions, as `output.logits` (B, k, V)."""
        assert not use_cache  # there is none
        return SimpleNamespace(logits=self.logits([row.tolist() for row in input_ids], logits_to_keep))

    def logits(self, rows: Sequence[Sequence[int]], keep: int) -> torch.Tensor:
        """(B, k, V) for rows of token ids that may have different lengths."""

        async def ask() -> list[tuple[Scored, Any]]:
            requests = [ScoreRequest(ids=[*row, _ANY], start=len(row) + 1 - keep, kept=self._listed) for row in rows]
            return await asyncio.gather(*(self._target.score(request) for request in requests))

        scores = [scored for scored, _ in self._runner.run(ask())]
        return torch.stack(
            [self._dense(scored, [*row, _ANY][-keep:]) for scored, row in zip(scores, rows, strict=True)]
        )

    def _dense(self, scored: Scored, tokens: Sequence[int]) -> torch.Tensor:
        log_p_kK = torch.from_numpy(scored.likeliest.log_p_NK).double()
        ids_kK = torch.from_numpy(scored.likeliest.ids_NK).long()
        tokens_k1, log_p_k1 = torch.tensor(tokens).unsqueeze(1), torch.from_numpy(scored.log_p_N).double().unsqueeze(1)
        rest_k1 = (1 - log_p_kK.exp().sum(-1, keepdim=True)).clamp(min=1e-12)
        dense_kV = (rest_k1 / max(1, self.vocabulary - self._listed)).log().expand(-1, self.vocabulary).clone()
        # In the place of a token that the pair does not share is one with log p -inf, which has its share of the rest.
        ids_kK = torch.where(log_p_kK.isfinite(), ids_kK, ids_kK[:, :1])
        log_p_kK = torch.where(log_p_kK.isfinite(), log_p_kK, log_p_kK[:, :1])
        return dense_kV.scatter_(1, ids_kK, log_p_kK).scatter_(1, tokens_k1, log_p_k1).float()

    def as_forward(self, vocabulary: int) -> "_ServedForward":
        """The model as `speculation.forward.Forward`."""
        assert vocabulary == self.vocabulary  # of one pair
        return _ServedForward(self)


@dataclass
class _Rows:
    """Stands in the place of a cache: the tokens of each row, by slot."""

    ids: list[list[int]]


class _ServedForward:
    def __init__(self, model: ServedLogits) -> None:
        self.model, self.device = model, model.device

    def allocate(self, rows: int, capacity: int) -> _Rows:
        return _Rows([[] for _ in range(rows)])

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: _Rows, keep: int) -> torch.Tensor:
        for number, (row, begin) in enumerate(zip(ids_BT.tolist(), first, strict=True)):
            caches.ids[number] = [*caches.ids[number][:begin], *row]
        return self.model.logits(caches.ids, keep)

    def select(self, caches: _Rows, rows: Sequence[int]) -> None:
        caches.ids = [caches.ids[row] for row in rows]


@contextmanager
def served_model(
    settings: ServerConfig, identity: Identity, vocabulary: int, progress: Progress
) -> Iterator[ServedLogits]:
    """The target that the servers of `settings` serve. Raises as `servers.connect.connect`."""
    dtype = torch.float32 if identity.dtype == "float32" else torch.bfloat16
    with asyncio.Runner() as runner:
        context = connect(settings, identity, vocabulary, progress)
        target, _ = runner.run(context.__aenter__())
        try:
            yield ServedLogits(runner, target, settings.logprobs, vocabulary, dtype)
        finally:
            runner.run(context.__aexit__(None, None, None))
