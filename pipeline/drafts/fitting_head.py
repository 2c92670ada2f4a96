"""Whether a head is of a target, from configs and the names and shapes of tensors: before weights are loaded."""

from pathlib import Path
from typing import Any

import torch

from pipeline.config.pair import HeadShape
from pipeline.drafts.head_config import kind_of, trainable_head
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import new_head
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.built import empty_model
from pipeline.speculation.hidden_states import StateRecorder
from pipeline.speculation.target_states import TargetStates


def require_fitting(head: Path | HeadShape, target: Path, trust_remote_code: bool, where: str = "pair.draft") -> None:
    """UsageError, which begins with `where`, for a head, in a directory or yet to be made, that cannot be trained for the model
    in `target`. It is loaded as for a run, on the device `meta`, where tensors have no numbers."""
    layers = tuple[int, ...]()
    try:
        model = empty_model(target, trust_remote_code)
        if isinstance(head, HeadShape):
            _untrained(head, model)
        else:
            kind = kind_of(head)
            trainable_head(head)
            width = int(model.config.get_text_config().vocab_size)
            layers = tuple(load_head(kind, head, TargetStates(model), width).layers)
        StateRecorder(model, layers)
    except UnderstudyError as error:
        raise UsageError(f"{where}: {error}") from error


def parameters_of_untrained(head: HeadShape, target: Path, trust_remote_code: bool) -> int:
    """How many parameters a head that is made for the model in `target` will have. UsageError as `require_fitting`."""
    return sum(weight.numel() for weight in _untrained(head, empty_model(target, trust_remote_code)).parameters())


def _untrained(head: HeadShape, target: Any) -> Any:
    with torch.device("meta"):
        return new_head(target, head, 0)
