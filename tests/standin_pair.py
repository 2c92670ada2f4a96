"""The laws of real, tiny models, for a stand-in server in the place of an engine that serves a pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.models.loading import load_model
from tests.standin_server import Law, Speculation


def law_of(model_dir: Path, vocabulary: int, scale: float = 1.0) -> Law:
    """log p of the next token of the model in a directory, with its logits times `scale`."""
    model = load_model(model_dir, "float32", torch.device("cpu"))

    @lru_cache(maxsize=65536)
    def found(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        with torch.inference_mode():
            logits_V = model(input_ids=torch.tensor([prefix]), use_cache=False, logits_to_keep=1).logits[0, -1]
        log_p_V: NDArray[np.float64] = (scale * logits_V[:vocabulary]).double().log_softmax(-1).numpy()
        return log_p_V

    def law(prefix: Sequence[int]) -> NDArray[np.float64]:
        return found(tuple(prefix))

    return law


@dataclass(frozen=True)
class HeadSpeculation(Speculation):
    """With a loaded head on the hidden states of its own target."""

    draft: Any = None
    head: Any = None

    def choice(self, ids: Sequence[int], begun: int) -> int:
        return int(self.head.logits_after(ids, begun).argmax())
