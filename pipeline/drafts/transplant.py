"""A draft with another tokenizer gets the target's: its layers stay, and its embedding and output layer get a row for each token
of the target. Does not train it.

A row is copied where the draft has a token with equal bytes or of the same role. The others are computed by a linear map of the
target's embedding, fitted by ridge regression on the copied tokens. Where the target's embedding is not at hand, too few tokens
are copied, or the map predicts their rows no better than their mean does, they are the mean of the rows of the draft's own pieces
of the token. A token without either has the mean of all rows, like the padding of the logits.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from pipeline.drafts.shared_tokens import SharedTokens, Vocabularies
from pipeline.drafts.token_rows import TokenRows
from pipeline.errors import UsageError

# A change to what rows are made of raises `TRANSPLANT` in running/settings.py, which is in the key of the pair.
_RIDGE = 1.0  # of the mean variance of a column. A constant: chosen by leave-one-out, rows of unseen tokens are worse
_ROWS = 8192  # solved at a time
_USEFUL = 1.0  # leave-one-out error from which on a map states no more than the mean row
_FEWEST = 100  # copied tokens: of fewer, the leave-one-out error is itself uncertain by a tenth
_NAMED = 5
_SAID = 0.001  # share of a text from which on it is said that the draft's tokenizer cannot write it


@dataclass(frozen=True)
class TransplantFacts:
    """How many tokens of the target have which rows, as `pair.json` has it."""

    copied: int  # of a token with equal bytes
    special: int  # of a token of the same role or name, or of `pair.draft.tokens`
    mapped: int  # by the linear map
    pieces: int  # the mean of the draft's own pieces
    mean: int  # the mean of all rows: nothing is known
    padded: int  # columns of the logits without a token
    map_error: float | None  # leave-one-out, as a share of the rows' spread; None: nothing was fitted
    output_map_error: float | None  # of an untied output layer; None: there is none
    no_map: str  # why no row is mapped; empty where some are, or all are copied
    unwritten: int  # tokens whose bytes the draft's own tokenizer writes in no text
    lost: list[str]  # what it changes in a text, such as capital letters
    unmatched: list[str]  # special tokens of the target with no counterpart in the draft

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
        why = f"; no map, because {self.no_map}" if self.no_map else ""
        return f"the draft has the target's tokenizer now: of {total:,} tokens, {', '.join(parts)}{why}; it must be trained"

    def warnings(self) -> list[str]:
        """What of the target the draft cannot know before it is trained."""
        warnings = []
        if self.lost or self.unwritten:
            lost = f"loses {', '.join(self.lost)} of a text, and " if self.lost else ""
            warnings.append(
                f"the draft's own tokenizer {lost}writes {self.unwritten:,} of the target's tokens in no text: the draft was "
                "never trained on them, and a longer training or another draft may be needed"
            )
        if self.unmatched:
            warnings.append(unmatched_note(self.unmatched))
        return warnings


def unmatched_note(names: Sequence[str]) -> str:
    """A line about special tokens that have no counterpart in the draft."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return (
        f"special tokens of the target without a counterpart in the draft: {', '.join(names[:_NAMED])}{more}; pair.draft.tokens "
        "maps them to the draft's text"
    )


def text_notes(vocabularies: Vocabularies, shared: SharedTokens, text: Mapping[int, int]) -> list[str]:
    """How much the draft has of the target's vocabulary and of the prompts' text, before anything is made. `text`: how often
    prompts have each token; empty where none is at hand."""
    notes, total = [shared.in_words(text)], sum(text.values())
    others = [token for token in shared.others if text.get(token)]
    if total and (share := sum(text[token] for token in vocabularies.unwritten(others)) / total) >= _SAID:
        lost = f": it loses {', '.join(names)}" if (names := vocabularies.changed_text()) else ""
        notes.append(
            f"the draft's own tokenizer cannot write {share:.1%} of your prompts' text{lost}; it was never trained on that"
        )
    if unmatched := [token for token in shared.unmatched if text.get(token)]:
        notes.append(unmatched_note(vocabularies.names(unmatched)))
    return notes


def require_one_table(model: Any, whose: str) -> None:
    """UsageError for a model, built or loaded, that has rows for tokens beside its embedding and output layer, as Gemma 3n has in
    each layer: nothing would make them anew."""
    embedding, text = model.get_input_embeddings(), model.config.get_text_config()
    sizes = {embedding.num_embeddings, getattr(text, "vocab_size_per_layer_input", None)}
    sizes -= {getattr(text, "max_position_embeddings", None)}  # a table of positions
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and module is not embedding and module.num_embeddings in sizes:
            raise UsageError(
                f"{whose}: a {type(model).__name__} has rows for its tokens in {name} too, which cannot be made for another "
                "tokenizer; choose another draft"
            )


@torch.no_grad()
def transplant(
    model: Any, vocabularies: Vocabularies, shared: SharedTokens, width: int, embedding: torch.Tensor | str
) -> tuple[TransplantFacts, TokenRows]:
    """Give `model`, in place, rows for the target's tokens in an embedding and logits of `width` columns. Its tying is kept.
    `embedding`: the target's input embedding (V, E), or why it is not at hand. UsageError as `require_one_table`."""
    require_one_table(model, "pair.draft")
    tables = [table.detach().double().cpu() for table in row_tables(model)]
    rows_VD = torch.cat(tables, 1)  # the columns of all: their rows are made of the same tokens
    new_VD = rows_VD.mean(0).expand(width, -1).clone()
    others, errors, made = list(shared.others), list[float](), TokenRows.of(width, shared, vocabularies)
    copied, own = list(shared.copied), list(shared.copied.values())
    new_VD[copied] = rows_VD[own]
    for place, meant in shared.special.items():
        new_VD[place] = rows_VD[list(meant)].mean(0)
    no_map = _no_map(embedding, copied, others)
    if not isinstance(embedding, str) and others and not no_map:
        fitted = LinearMap(embedding, copied, rows_VD[own])
        errors = [fitted.error(part) for part in _columns(tables)]
        if all(error < _USEFUL for error in errors):  # NaN is no error that is small
            new_VD[others] = fitted.rows(embedding, others)
            made.set(others, "mapped")
        else:
            no_map = f"its leave-one-out error is {max(errors):.0%} of the rows' spread"
    if no_map:
        for place in others:
            if pieces := vocabularies.pieces(place):
                new_VD[place] = rows_VD[pieces].mean(0)
                made.set([place], "pieces")
    model.resize_token_embeddings(width, mean_resizing=False)
    for table, part in zip(row_tables(model), _columns(tables), strict=True):
        table.copy_(new_VD[:, part])
    facts = TransplantFacts(
        **made.counts(),
        map_error=_finite(errors, 0),
        output_map_error=_finite(errors, 1),
        no_map=no_map,
        unwritten=int(made.unwritten_V.sum()),
        lost=vocabularies.changed_text(),
        unmatched=vocabularies.names(shared.unmatched),
    )
    return facts, made


def _no_map(embedding: torch.Tensor | str, copied: Sequence[int], others: Sequence[int]) -> str:
    """Why none is fitted; empty where one is, and where none is needed."""
    if not others:
        return ""
    if isinstance(embedding, str):
        return embedding
    if len(embedding) <= max([*others, *copied]):
        return f"the target's embedding has {len(embedding):,} rows only"
    return "" if len(copied) >= _FEWEST else f"{len(copied)} tokens are copied, and it needs {_FEWEST}"


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
        """Root mean square of the leave-one-out residuals over that of the mean row: 1 is a map that means nothing."""
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


def row_tables(model: Any) -> list[torch.Tensor]:
    """What has a row for each token: the embedding, the weight of an output layer that is not tied to it, and its bias as one
    column."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    tables = [embedding]
    if head is not None and head.weight is not embedding:
        tables.append(head.weight)
    if head is not None and getattr(head, "bias", None) is not None:
        tables.append(head.bias[:, None])
    return tables


def _columns(tables: Sequence[torch.Tensor]) -> list[slice]:
    """The places of each table's columns among those of all."""
    ends = torch.tensor([0, *(table.shape[1] for table in tables)]).cumsum(0).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]
