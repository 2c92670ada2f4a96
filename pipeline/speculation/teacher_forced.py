"""A model's logits at the tokens of given completions: one pass over each batch, and the output layer in chunks of positions.

The logits of a batch, (B, T, V), would be its largest tensor: 8,192 positions over 152,000 tokens are 2.5 GB in bf16 and 5 GB in
fp32. The last hidden states are a hundredth of that, so the output layer is applied to some positions at a time, and to none that
predicts a token of a prompt or padding. Shapes: B completions, T positions, N tokens of completions, V shared tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import BrokenDraft
from pipeline.models.devices import computes_at_once, upload
from pipeline.models.output_head import output_head
from pipeline.models.placement import input_device

_LOGITS = 1 << 24  # held at once: 64 MiB in fp32
_LOGITS_ON_DEVICE = 1 << 27  # with fewer, the host asks for chunks more slowly than a GPU computes them


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """Positions whose logits are held at once."""
    return max(1, (_LOGITS if computes_at_once(device) else _LOGITS_ON_DEVICE) // vocabulary)


class TokenizedCompletion(Protocol):
    """Token ids of a prompt and its completion, and the prompt's domain."""

    @property
    def prompt(self) -> NDArray[np.int32]: ...

    @property
    def tokens(self) -> NDArray[np.int32]: ...  # including the lookahead

    @property
    def domain(self) -> str: ...


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers of each batch: sorted by length, at most `batch_tokens` tokens with padding, at least one row."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: (lengths[number], number)):
        if group and (len(group) + 1) * lengths[number] > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


class PaddedBatch:
    """Completions padded on the right. Causal attention never sees the padding, so no attention mask is needed.

    `predicts_BT` is True at the positions that predict a completion's token; `tokens_N` are these tokens, row by row. `longest`:
    tokens of the longest completion.
    """

    def __init__(self, rows: Sequence[TokenizedCompletion]) -> None:
        self.rows = rows
        self.width = max(len(row.prompt) + len(row.tokens) for row in rows)
        self.ids_BT = torch.zeros(len(rows), self.width, dtype=torch.long)
        self.predicts_BT = torch.zeros(len(rows), self.width, dtype=torch.bool)
        self.longest = max(len(row.tokens) for row in rows)
        self._ends = np.cumsum([len(row.tokens) for row in rows])[:-1]
        for index, row in enumerate(rows):
            before, end = len(row.prompt), len(row.prompt) + len(row.tokens)
            self.ids_BT[index, :end] = torch.from_numpy(np.concatenate([row.prompt, row.tokens]).astype(np.int64))
            self.predicts_BT[index, before - 1 : end - 1] = True
        self.tokens_N = torch.from_numpy(np.concatenate([row.tokens for row in rows]).astype(np.int64))

    @property
    def is_token_BS(self) -> torch.Tensor:
        """Which of `longest` places of each completion have a token."""
        lengths_B1 = torch.tensor([len(row.tokens) for row in self.rows]).unsqueeze(1)
        return torch.arange(self.longest) < lengths_B1

    def tokens_after(self, places: int) -> torch.Tensor:
        """The token that many places after each of `tokens_N`; 0 past the end of its completion."""
        return torch.cat([_shifted(row.tokens, places) for row in self.rows])

    def by_row(self, values_N: NDArray[Any]) -> list[NDArray[Any]]:
        """Values of all tokens, (N, ...), divided by completion."""
        return np.split(values_N, self._ends)


def _shifted(tokens: NDArray[Any], places: int) -> torch.Tensor:
    after_N = torch.zeros(len(tokens), dtype=torch.long)
    after_N[: max(len(tokens) - places, 0)] = torch.from_numpy(tokens[places:].astype(np.int64))
    return after_N


def at_positions(values_BTx: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
    """`values_BTx` (B, T, ...) at positions that are counted through the rows, (N, ...)."""
    return values_BTx.flatten(0, 1).index_select(0, positions_N)


class TeacherForced:
    """A model that is asked for its logits on given completions."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._head: Any = output_head(model)

    def logits(self, batch: PaddedBatch, vocabulary: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """The logits that predict each token of the batch, chunk by chunk in order: which of `batch.tokens_N`, and (n, V) without
        what pads the vocabulary. BrokenDraft for a model with fewer tokens than `vocabulary`.

        A model whose logits are more than its output layer gives them for some rows of the batch at a time, at least one.
        """
        begin, most = 0, chunk_rows(vocabulary, input_device(self.model))
        for logits_nV in self._by_head(batch, most) if self._head is not None else self._by_rows(batch, most):
            if logits_nV.shape[-1] < vocabulary:
                raise BrokenDraft(
                    f"the draft has logits for {logits_nV.shape[-1]} tokens and the pair shares {vocabulary}: "
                    "use a draft with the target's vocabulary"
                )
            yield slice(begin, begin + len(logits_nV)), logits_nV[:, :vocabulary]
            begin += len(logits_nV)

    def _by_head(self, batch: PaddedBatch, most: int) -> Iterator[torch.Tensor]:
        for hidden_nH in torch.split(self._hidden(batch), most):
            with torch.inference_mode():  # not over the generator: a caller has its own mode
                logits_nV = self._head(hidden_nH)
            yield logits_nV

    @torch.inference_mode()
    def _hidden(self, batch: PaddedBatch) -> torch.Tensor:
        """Last hidden states at the positions that predict a token, (N, H)."""
        output = self.model.get_decoder()(input_ids=upload(batch.ids_BT, input_device(self.model)), use_cache=False)
        hidden_BTH: torch.Tensor = output.last_hidden_state
        return at_positions(hidden_BTH, upload(batch.predicts_BT.flatten().nonzero().squeeze(1), hidden_BTH.device))

    def _by_rows(self, batch: PaddedBatch, most: int) -> Iterator[torch.Tensor]:
        first = int(batch.predicts_BT.any(0).nonzero()[0])  # the first position that predicts a token
        kept, rows = batch.width - first, max(1, most // (batch.width - first))
        for ids_bT, predicts_bT in zip(
            torch.split(batch.ids_BT, rows), torch.split(batch.predicts_BT, rows), strict=True
        ):
            with torch.inference_mode():
                output = self.model(
                    input_ids=upload(ids_bT, input_device(self.model)), use_cache=False, logits_to_keep=kept
                )
                found_N = predicts_bT[:, first:].flatten().nonzero().squeeze(1)
                logits_nV = at_positions(output.logits, upload(found_N, output.logits.device))
            yield from torch.split(logits_nV, most)
