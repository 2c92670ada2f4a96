"""A head as the trainer takes a model, and its loss: each place of a block, from every start of a round.

The target computes its hidden states in each step: stored, they would take a hundred times the bytes of the distributions. The
loss of a place is that of plain drafts, on the same stored distributions. Shapes: B rows, T tokens of a row, N loss positions,
H hidden size.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.distillation.chunked_loss import mean_loss
from pipeline.drafts.eagle3 import AllStarts
from pipeline.drafts.eagle3_model import Eagle3Model
from pipeline.drafts.medusa import MedusaModel
from pipeline.speculation.hidden_states import NORMED, Features
from pipeline.speculation.target_states import TargetStates

LossOf = Callable[[torch.Tensor, slice, torch.Tensor], torch.Tensor]  # of logits, where they are, and which count


class TrainedHead(PreTrainedModel):  # type: ignore[misc]
    """A head in training. `states`: of the head's target. `steps`: places that are trained, of a head that any number of places
    has."""

    def __init__(self, head: Eagle3Model | MedusaModel, states: TargetStates, steps: int) -> None:
        super().__init__(PretrainedConfig(hidden_size=states.target.config.get_text_config().hidden_size))
        self.head, self.states = head, states
        self._places: _Unrolled | _OfEachHead = _PLACES[type(head)](head, steps)

    @property
    def device(self) -> torch.device:
        return self.head.device

    def get_input_embeddings(self) -> Any:
        return self.states.target.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return None

    @property
    def output_layers(self) -> list[Any]:
        return self._places.output_layers

    def loss(self, inputs: dict[str, torch.Tensor], vocabulary: int, loss_of: LossOf) -> torch.Tensor:
        """The mean over places of the mean loss over positions. A place counts where a round that starts within the completion
        reaches the position."""
        ids_BT, predicts_N = inputs["input_ids"], inputs["predicts"]
        rows, width = ids_BT.shape
        row_N, column_N = predicts_N // width, predicts_N % width
        first_B = torch.full((rows,), width, device=ids_BT.device).scatter_reduce(0, row_N, column_N, "amin")
        total = torch.zeros((), device=ids_BT.device)
        for place, (hidden_BTH, head) in enumerate(self._places.of(self.states, ids_BT)):
            start_N = column_N - 1 - place  # the row that drafts the token after the column at this place
            counts_N = ((start_N >= first_B[row_N] - 1) & (start_N >= 0)).float()
            hidden_NH = hidden_BTH.flatten(0, 1).index_select(0, row_N * hidden_BTH.shape[1] + start_N.clamp(min=0))

            def counted(logits_nD: torch.Tensor, where: slice, counts_N: torch.Tensor = counts_N) -> torch.Tensor:
                return (
                    loss_of(self._places.over_target(logits_nD, vocabulary), where, counts_N[where]) * counts_N[where]
                )

            total = total + mean_loss(hidden_NH, head, min(vocabulary, head.out_features), counted, vocabulary)
        return total / self._places.steps


# By place: hidden states (B, T - 1 or T, H), and their output layer.
Places = Iterator[tuple[torch.Tensor, torch.nn.Linear]]


class _Unrolled:
    """Places of an EAGLE-3 head: each from the one before, with the text's own tokens."""

    def __init__(self, head: Eagle3Model, steps: int) -> None:
        self.head, self.steps = head, steps
        self.output_layers = [head.lm_head]
        head.embed_tokens.weight.requires_grad_(False)  # the target's, and most of a small head's weights

    def of(self, states: TargetStates, ids_BT: torch.Tensor) -> Places:
        head = self.head
        features = _states(states, ids_BT, head.layer_ids)
        rows, width = ids_BT.shape
        at_BT = torch.arange(width - 1, device=ids_BT.device).expand(rows, -1)
        attention = AllStarts(at_BT, head.windows)
        masks, hidden_BTH = [attention] * len(head.layers), head.combine(features)[:, :-1]
        for place in range(self.steps):
            attention.place = place
            token_BT = ids_BT[:, (at_BT[0] + 1 + place).clamp(max=width - 1)]
            hidden_BTH = head(token_BT, hidden_BTH, at_BT + place, masks)
            yield hidden_BTH if head.norm_output else head.norm(hidden_BTH), head.lm_head

    def over_target(self, logits_nD: torch.Tensor, vocabulary: int) -> torch.Tensor:
        return logits_nD if self.head.targets_D is None else self.head.over_target(logits_nD, vocabulary)


class _OfEachHead:
    """Places of Medusa heads: each from the target's last hidden state, by a head of its own."""

    def __init__(self, head: MedusaModel, steps: int) -> None:
        self.head, self.steps = head, len(head.blocks)
        self.output_layers = list(head.lm_heads)

    def of(self, states: TargetStates, ids_BT: torch.Tensor) -> Places:
        state_BTH = _states(states, ids_BT, (NORMED,))[NORMED].to(self.head.device, self.head.dtype)
        for block, output in zip(self.head.blocks, self.head.lm_heads, strict=True):
            yield block(state_BTH), output  # type: ignore[misc]

    def over_target(self, logits_nD: torch.Tensor, vocabulary: int) -> torch.Tensor:
        return logits_nD


_PLACES: dict[type, Any] = {Eagle3Model: _Unrolled, MedusaModel: _OfEachHead}


def _states(states: TargetStates, ids_BT: torch.Tensor, layers: Collection[int]) -> Features:
    """The states as examinations and engines compute them: in the target's dtype, whatever the training computes in."""
    with torch.no_grad(), torch.autocast(ids_BT.device.type, enabled=False):
        return states.states_at(ids_BT, layers)
