"""Hidden states of a loaded target on given completions, for the examination of drafts that read them.

They are computed again for each batch: stored, they would take a hundred times the bytes of everything else that is kept of a
token."""

from collections.abc import Collection
from typing import Any

import torch

from pipeline.models.devices import upload
from pipeline.models.placement import input_device
from pipeline.speculation.hidden_states import Features, StateRecorder
from pipeline.speculation.teacher_forced import PaddedBatch


class TargetStates:
    """The hidden states of one loaded target, which all drafts of it share."""

    def __init__(self, target: Any) -> None:
        self.target = target

    @torch.inference_mode()
    def features(self, batch: PaddedBatch, layers: Collection[int]) -> Features:
        """The states of `layers` at all positions of the batch. UsageError as `StateRecorder`."""
        return self.states_at(upload(batch.ids_BT, input_device(self.target)), layers)

    def states_at(self, ids_BT: torch.Tensor, layers: Collection[int]) -> Features:
        """The states for rows of token ids, padded on the right."""
        with StateRecorder(self.target, sorted(layers)).recording() as passes:
            self.target.get_decoder()(input_ids=ids_BT, use_cache=False)
        (states,) = passes
        return states
