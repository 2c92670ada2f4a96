"""A draft with another tokenizer gets the target's: its layers stay, and its embedding and output layer get a row for each token
of the target. Does not train it.

A row is copied where the draft has a token with equal bytes or of the same role. The others are computed by a linear map of the
target's embedding, fitted by ridge regression on the copied tokens. Where the target's embedding is not at hand, or the map
predicts copied rows no better than their mean does, they are the mean of the rows of the draft's own pieces of the token. A token
without either has the mean of all rows, like the padding of the logits.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from pipeline.drafts.shared_tokens import SharedTokens, Vocabularies
from pipeline.models.placement import input_device

# A change to what rows are made of raises `TRANSPLANT` in running/settings.py, which is in the key of the pair.
_RIDGE = 1.0  # of the mean variance of a column. A constant: chosen by leave-one-out, rows of unseen tokens are worse
_ROWS = 8192  # read or solved at a time
_USEFUL = 1.0  # leave-one-out error from which on a map says no more than the mean row


@dataclass(frozen=True)
class TransplantFacts:
    """Of how many tokens of the target which rows are, as `pair.json` has it."""

    copied: int  # of a token with equal bytes
    special: int  # of a token of the same role or name, or of `pair.draft.tokens`
    mapped: int  # by the linear map
    pieces: int  # the mean of the draft's own pieces
    mean: int  # the mean of all rows: nothing is known
    padded: int  # columns of the logits without a token
    map_error: (
        float | None
    )  # leave-one-out, as a share of the rows' spread; None: no target's embedding, or nothing to fit
    output_map_error: float | None  # of an untied output layer; None: there is none

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def note(self) -> str:
        """One line about the draft that was made."""
        total = self.copied + self.special + self.mapped + self.pieces + self.mean
        parts = [f"{self.copied:,} of the draft's rows are copied (equal bytes)"]
        if self.special:
            parts.append(f"{self.special:,} are of its special tokens")
        if self.mapped:
            error = f"leave-one-out error {self.map_error:.0%} of the rows' spread"
            if self.output_map_error is not None:
                error += f", of the output layer {self.output_map_error:.0%}"
            parts.append(f"{self.mapped:,} mapped from the target's embedding ({error})")
        if self.pieces:
            parts.append(f"{self.pieces:,} the mean of their pieces")
        if self.mean:
            parts.append(f"{self.mean:,} the mean of all rows")
        return f"the draft has the target's tokenizer now: of {total:,} tokens, {', '.join(parts)}; it must be trained"


@torch.no_grad()
def input_rows(model: Any) -> torch.Tensor:
    """The embedding (V, H) of each token as the model computes it, in fp32 in host memory: so a table is read that is quantized,
    scaled, or on another device."""
    table, device = model.get_input_embeddings(), input_device(model)
    parts = [torch.arange(at, min(at + _ROWS, table.num_embeddings)) for at in range(0, table.num_embeddings, _ROWS)]
    return torch.cat([table(ids_V.to(device)).float().cpu() for ids_V in parts])


@torch.no_grad()
def transplant(
    model: Any, vocabularies: Vocabularies, shared: SharedTokens, width: int, embedding_VE: torch.Tensor | None
) -> TransplantFacts:
    """Give `model`, in place, rows for the target's tokens in an embedding and logits of `width` columns. Its tying is kept.
    `embedding_VE`: the target's input embedding, None if it is not at hand."""
    tables = [table.detach().double().cpu() for table in _tables(model)]
    rows_VD = torch.cat(tables, 1)  # the columns of all: their rows are made of the same tokens
    new_VD = rows_VD.mean(0).expand(width, -1).clone()
    others, errors, mapped, pieces = list(shared.others), list[float](), 0, 0
    copied, own = list(shared.copied), list(shared.copied.values())
    new_VD[copied] = rows_VD[own]
    for place, meant in shared.special.items():
        new_VD[place] = rows_VD[list(meant)].mean(0)
    if embedding_VE is not None and len(embedding_VE) > max([*others, *copied], default=0) and len(copied) > 1:
        fitted = LinearMap(embedding_VE, copied, rows_VD[own])
        errors = [fitted.error(part) for part in _columns(tables)]
        if all(error < _USEFUL for error in errors):  # NaN is no error that is small
            new_VD[others], mapped = fitted.rows(embedding_VE, others), len(others)
    if not mapped:
        for place in others:
            if found := vocabularies.pieces(place):
                new_VD[place] = rows_VD[found].mean(0)
                pieces += 1
    model.resize_token_embeddings(width, mean_resizing=False)
    for table, part in zip(_tables(model), _columns(tables), strict=True):
        table.copy_(new_VD[:, part])
    return TransplantFacts(
        copied=len(shared.copied),
        special=len(shared.special),
        mapped=mapped,
        pieces=pieces,
        mean=len(others) - mapped - pieces,
        padded=len(shared.padded),
        map_error=_finite(errors, 0),
        output_map_error=_finite(errors, 1),
    )


def _finite(errors: Sequence[float], number: int) -> float | None:
    return errors[number] if len(errors) > number and math.isfinite(errors[number]) else None


class LinearMap:
    """The ridge regression of rows (N, D) on the embedding of N tokens, with an intercept that is not penalised, in closed form
    in fp64."""

    def __init__(self, embedding_VE: torch.Tensor, places: Sequence[int], rows_ND: torch.Tensor) -> None:
        self._mean_E, self._mean_D = embedding_VE[list(places)].double().mean(0), rows_ND.mean(0)
        size = embedding_VE.shape[1]
        gram_EE, moment_ED = torch.zeros(size, size).double(), torch.zeros(size, rows_ND.shape[1]).double()
        for some, x_NE in self._centred(embedding_VE, places):
            gram_EE += x_NE.T @ x_NE
            moment_ED += x_NE.T @ (rows_ND[some] - self._mean_D)
        penalty = _RIDGE * float(gram_EE.trace()) / (len(places) * size)
        factor_EE = torch.linalg.cholesky(gram_EE + max(penalty, 1e-30) * torch.eye(size).double())
        self._weight_ED = torch.cholesky_solve(moment_ED, factor_EE)
        left_out, spread = torch.zeros(rows_ND.shape[1]).double(), torch.zeros(rows_ND.shape[1]).double()
        for some, x_NE in self._centred(embedding_VE, places):
            leverage_N = 1 / len(places) + (torch.linalg.solve_triangular(factor_EE, x_NE.T, upper=False) ** 2).sum(0)
            y_ND = rows_ND[some] - self._mean_D
            left_out += (((y_ND - x_NE @ self._weight_ED) / (1 - leverage_N)[:, None]) ** 2).sum(0)
            spread += ((y_ND / (1 - 1 / len(places))) ** 2).sum(0)
        self._left_out_D, self._spread_D = left_out, spread

    def error(self, columns: slice) -> float:
        """Root mean square of the leave-one-out residuals over that of the mean row: 1 is a map that says nothing."""
        return float((self._left_out_D[columns].sum() / self._spread_D[columns].sum()).sqrt())

    def rows(self, embedding_VE: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        """The rows of other tokens (N, D)."""
        parts = [x_NE @ self._weight_ED + self._mean_D for _, x_NE in self._centred(embedding_VE, places)]
        return torch.cat(parts) if parts else self._mean_D.new_zeros(0, len(self._mean_D))

    def _centred(self, embedding_VE: torch.Tensor, places: Sequence[int]) -> Iterator[tuple[slice, torch.Tensor]]:
        """The inputs of some rows at a time: all of a large vocabulary in fp64 would take gigabytes."""
        for at in range(0, len(places), _ROWS):
            some = slice(at, min(at + _ROWS, len(places)))
            yield some, embedding_VE[list(places[some])].double() - self._mean_E


def _tables(model: Any) -> list[torch.Tensor]:
    """What has a row for each token: the embedding, the weight of an output layer that is not tied to it, and its bias as one
    column."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    found = [embedding]
    if head is not None and head.weight is not embedding:
        found.append(head.weight)
    if head is not None and getattr(head, "bias", None) is not None:
        found.append(head.bias[:, None])
    return found


def _columns(tables: Sequence[torch.Tensor]) -> list[slice]:
    """Where the columns of each table are among those of all."""
    ends = torch.tensor([0, *(table.shape[1] for table in tables)]).cumsum(0).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]
