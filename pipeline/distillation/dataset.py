"""Stored completions as padded batches that keep each teacher column beside its token. Nothing is copied before it is used."""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.generation.store import Spoken


class Collator:
    """Turns row numbers into a batch. The trainer's dataset holds the numbers alone, so that no library can drop,
    reorder or re-encode a teacher column: tokens and distributions are read together, here."""

    def __init__(self, spoken: Sequence[Spoken]) -> None:
        self._spoken = spoken

    def __call__(self, rows: Sequence[dict[str, int]]) -> dict[str, torch.Tensor]:
        """A batch of B rows, padded on the right to T tokens; k stored probabilities.

        `predicts` (B, T) is True at the positions whose *next* token the target said: position t predicts token t + 1,
        so a completion's first distribution stands at the prompt's last token. Teacher columns stand at those positions.
        """
        chosen = [self._spoken[row["row"]] for row in rows]
        shape = (len(chosen), max(len(item.prompt) + item.length for item in chosen))
        top_k = chosen[0].top_ids.shape[1]
        batch = {
            "rows": torch.tensor([row["row"] for row in rows]),
            "input_ids": torch.zeros(shape, dtype=torch.long),
            "predicts": torch.zeros(shape, dtype=torch.bool),
            "next_tokens": torch.zeros(shape, dtype=torch.long),
            "top_ids": torch.zeros((*shape, top_k), dtype=torch.long),
            "top_log_p": torch.zeros((*shape, top_k)),
            "tail_log_p": torch.zeros(shape),
        }
        for index, item in enumerate(chosen):
            tokens = item.tokens[: item.length].astype(
                np.int64
            )  # the overrun past the end is for the examination alone
            begin, end = len(item.prompt), len(item.prompt) + item.length
            said = slice(begin - 1, end - 1)
            batch["input_ids"][index, :begin] = torch.from_numpy(item.prompt.astype(np.int64))
            batch["input_ids"][index, begin:end] = torch.from_numpy(tokens)
            batch["predicts"][index, said] = True
            batch["next_tokens"][index, said] = torch.from_numpy(tokens)
            batch["top_ids"][index, said] = torch.from_numpy(item.top_ids[: item.length].astype(np.int64))
            batch["top_log_p"][index, said] = torch.from_numpy(item.top_log_p[: item.length].astype(np.float32))
            batch["tail_log_p"][index, said] = torch.from_numpy(item.tail_log_p[: item.length].astype(np.float32))
        return batch
