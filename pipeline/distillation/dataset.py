"""Stored completions as packed training batches with teacher columns. They are read when a batch is built."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.distillation.losses import SparseTargets
from pipeline.distillation.packing import pack_rows, single_rows
from pipeline.distillation.segments import segment_tokens, token_labels
from pipeline.distillation.weighted_completions import ScoredPrompts
from pipeline.engines.chat_markers import PROMPT
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import unpack
from pipeline.generation.stored_completions import column
from pipeline.store.own_files import reads_own_files


class PackedCompletions:
    """Completions packed into rows. The trainer's dataset holds only row numbers, so that no library can drop, reorder or
    re-encode teacher columns."""

    def __init__(
        self, completions: Sequence[StoredCompletion], together: bool = True, prompts: ScoredPrompts | None = None
    ) -> None:
        """`together`: several completions may share a row, for models with document masking by `position_ids`. `prompts`: their
        positions are trained on too."""
        self.completions, self.segments = completions, tuple(sorted(segment_tokens(completions)))
        self._prompts, self._weight_N = prompts, column(completions, "length").astype(np.float64)
        if prompts is not None:
            self._place_N = prompts.places(completions)
            self._weight_N += prompts.weights(self._place_N)
            self.segments += (PROMPT,)
        self._tokens_N = column(completions, "prompt_length") + column(completions, "length")
        self.rows = pack_rows(self._tokens_N) if together else single_rows(len(completions))

    def length(self, row: int) -> int:
        """Tokens of a row."""
        return int(self._tokens_N[self.rows[row]].sum())

    def collate(self, chosen: Sequence[dict[str, int]]) -> dict[str, torch.Tensor]:
        """A batch of B rows, padded on the right to T tokens, with N loss positions (in row order) and K entries.

        `predicts` (N,) are the positions, counted through the rows (b T + t), whose *next* token is a completion token, or one of
        the prompt that the target has scored: position t predicts token t + 1. So the first loss position of a completion is its
        prompt's last token, and its last token has no loss. Teacher columns are (N, ...). `segments` (N,) has the places of their
        segments in the names, if they have any. `position_ids` restart at each document, which masks documents from each other;
        they are absent if every row has one document.
        """
        rows = [[self._learnt(number) for number in self.rows[row["row"]]] for row in chosen]
        length = max(sum(len(item.prompt) + item.length for *_, item in row) for row in rows)
        input_ids = np.zeros((len(rows), length), dtype=np.int64)
        positions = np.zeros_like(input_ids)
        predicts = np.zeros(input_ids.shape, dtype=bool)
        for index, row in enumerate(rows):
            end = 0
            for learnt in row:
                item = learnt[-1]
                begin, first = end, end + len(item.prompt)
                end = first + item.length
                input_ids[index, begin:first] = item.prompt
                input_ids[index, first:end] = item.tokens[: item.length]  # the lookahead is only for the examination
                positions[index, begin:end] = np.arange(end - begin)
                for part in learnt:
                    predicts[index, begin + len(part.prompt) - 1 :][: part.length] = True
            positions[index, end:] = np.arange(length - end)  # padding counts as a document
        items = [part for row in rows for learnt in row for part in learnt]
        batch = {
            "documents": torch.tensor([number for row in chosen for number in self.rows[row["row"]]]),
            "input_ids": torch.from_numpy(input_ids),
            # Not a mask: what a GPU finds in one has a length that the host would have to wait for.
            "predicts": torch.from_numpy(np.flatnonzero(predicts)),
            **_teacher(items),
        }
        if self.segments:
            batch["segments"] = torch.from_numpy(token_labels(items, self.segments))
        if self._prompts is not None:  # a prompt's own token is no sample of the target, as the losses take it to be
            of_prompt_N = batch["segments"] == self.segments.index(PROMPT)
            batch["tokens"] = torch.where(of_prompt_N, batch["ids"][:, 0], batch["tokens"])
        if any(len(row) > 1 for row in rows):
            batch["position_ids"] = torch.from_numpy(positions)
        return batch

    def _learnt(self, number: int) -> list[StoredCompletion]:
        """What is learnt of a document: of its prompt, then its completion. Each follows what comes before it."""
        prompt = None if self._prompts is None else self._prompts.get(self._place_N[number])
        return [*([] if prompt is None else [prompt]), self.completions[number]]

    def collate_part(self, chosen: Sequence[dict[str, int]], number: int, count: int) -> dict[str, Any]:
        """The rows of process `number` of `count`, as `collate`. `positions`: what the loss positions of all rows weigh together;
        `counted`: how many of them count here. The last batch of an epoch may have no row for a process, which then computes one
        that does not count, because all processes exchange gradients."""
        begin, end = len(chosen) * number // count, len(chosen) * (number + 1) // count
        batch: dict[str, Any] = dict(self.collate(chosen[begin:end] or chosen[:1]))
        batch["counted"] = len(batch["tokens"]) if end > begin else 0
        batch["positions"] = sum(float(self._weight_N[self.rows[row["row"]]].sum()) for row in chosen)
        if not batch["counted"]:
            batch.pop("segments", None)
        return batch


@reads_own_files("numbers of the completion store: nothing is parsed")
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


def stored_targets(batch: dict[str, torch.Tensor]) -> SparseTargets:
    """The batch's teacher columns as `SparseTargets`."""
    return SparseTargets(batch["ids"], batch["log_p"], batch["certain"], batch["rest_log_p"], batch["tokens"])
