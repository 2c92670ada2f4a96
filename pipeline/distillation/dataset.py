"""Stored completions as packed batches that keep each teacher column beside its token. Nothing is copied before it is used."""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.distillation.losses import Sparse
from pipeline.distillation.packing import pack_rows
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import unpack


class Documents:
    """What there is to learn: completions, packed into rows that a trainer's dataset names by number alone, so that no library
    can drop, reorder or re-encode a teacher column."""

    def __init__(self, spoken: Sequence[StoredCompletion], together: bool = True) -> None:
        """`together`: several may share a row, for a model that keeps them apart by their positions."""
        self.spoken = spoken
        lengths = [len(item.prompt) + item.length for item in spoken]
        self.rows = pack_rows(lengths) if together else [[number] for number in range(len(lengths))]

    def collate(self, chosen: Sequence[dict[str, int]]) -> dict[str, torch.Tensor]:
        """A batch of B rows, padded on the right to T tokens; N positions to learn at, in the order of rows; K entries.

        `predicts` (B, T) is True at the positions whose *next* token the target said: position t predicts token t + 1, so a
        completion's first distribution stands at its prompt's last token, and its last token predicts nothing, least of
        all the next document's first. Teacher columns are (N, ...). `position_ids` begin anew with each document, which
        keeps documents apart; they are absent where no row has two.
        """
        rows = [[self.spoken[number] for number in self.rows[row["row"]]] for row in chosen]
        length = max(sum(len(item.prompt) + item.length for item in row) for row in rows)
        input_ids = np.zeros((len(rows), length), dtype=np.int64)
        positions = np.zeros_like(input_ids)
        predicts = np.zeros(input_ids.shape, dtype=bool)
        for index, row in enumerate(rows):
            end = 0
            for item in row:
                begin, first = end, end + len(item.prompt)
                end = first + item.length
                input_ids[index, begin:first] = item.prompt
                input_ids[index, first:end] = item.tokens[: item.length]  # what is past the end is for the examination
                positions[index, begin:end] = np.arange(end - begin)
                predicts[index, first - 1 : end - 1] = True
            positions[index, end:] = np.arange(length - end)  # padding is a document of its own
        items = [item for row in rows for item in row]
        batch = {
            "documents": torch.tensor([number for row in chosen for number in self.rows[row["row"]]]),
            "input_ids": torch.from_numpy(input_ids),
            "predicts": torch.from_numpy(predicts),
            **_teacher(items),
        }
        if any(len(row) > 1 for row in rows):
            batch["position_ids"] = torch.from_numpy(positions)
        return batch


def _teacher(items: Sequence[StoredCompletion]) -> dict[str, torch.Tensor]:
    certain_N = np.concatenate([item.certain[: item.length] for item in items])
    rest_log_p_N = np.concatenate([item.rest_log_p[: item.length] for item in items])
    entries_NK3 = np.concatenate([item.entries[: item.length] for item in items])
    ids_NK, log_p_NK = unpack(entries_NK3, certain_N, rest_log_p_N, items[0].vocabulary)
    return {
        "ids": torch.from_numpy(ids_NK),
        "log_p": torch.from_numpy(log_p_NK),
        "certain": torch.from_numpy(certain_N.astype(np.int64)),
        "rest_log_p": torch.from_numpy(rest_log_p_N.astype(np.float32)),
        "tokens": torch.from_numpy(np.concatenate([item.tokens[: item.length] for item in items]).astype(np.int64)),
    }


def stored_targets(batch: dict[str, torch.Tensor]) -> Sparse:
    """The batch's teacher columns, as the losses want them."""
    return Sparse(batch["ids"], batch["log_p"], batch["certain"], batch["rest_log_p"], batch["tokens"])
