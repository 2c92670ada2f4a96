"""Medusa heads (arXiv 2401.10774), as engines serve them: a chain, place j from head j, all on the target's last hidden state.

Head j is residual blocks, x + SiLU(Wx), and an output layer. A round after L tokens reads the state of token L - 2, the last
one that the target has computed. Shapes as in `speculation/drafter.py`; H hidden size, n rows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.drafts.drawing import draw_block
from pipeline.drafts.examined_logits import Logits, examined, logits_by_place
from pipeline.drafts.head_config import MedusaConfig
from pipeline.drafts.head_tensors import check_tensors, read_tensors
from pipeline.drafts.kinds import MEDUSA, Trait
from pipeline.errors import UsageError
from pipeline.models.devices import upload
from pipeline.speculation.batch import Batch
from pipeline.speculation.drafter import DraftScores, GoOn, Proposal
from pipeline.speculation.hidden_states import NORMED, Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.sampling import precise
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch

# Names of the tensors in older checkpoints, and here.
_OLD_NAMES = (
    (re.compile(r"^(?:medusa_heads\.)?(\d+)\.(\d+)\.linear\.(weight|bias)$"), r"blocks.\1.layers.\2.\3"),
    (re.compile(r"^(?:medusa_heads\.)?(\d+)\.(\d+)\.weight$"), r"lm_heads.\1.weight"),
)


class MedusaModel(nn.Module):
    """All heads."""

    targets_D: torch.Tensor | None

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.vocabulary, self.hidden = config.vocabulary, config.hidden
        self.blocks = nn.ModuleList(_Residuals(config) for _ in range(config.heads))
        count = 1 if config.one_output_layer else config.heads
        self.lm_heads = nn.ModuleList(nn.Linear(config.hidden, config.kept, bias=False) for _ in range(count))
        self.register_buffer("targets_D", None, persistent=False)  # the target's number of each token; None: the same

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_heads[0].weight.dtype  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        return self.lm_heads[0].weight.device  # type: ignore[return-value]

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulate operations of a draft token."""
        return sum(weight.numel() for part in (self.blocks[0], self.lm_heads[0]) for weight in part.parameters())

    def logits(self, hidden_nH: torch.Tensor, place: int, vocabulary: int) -> torch.Tensor:
        """The logits of head `place`, (n, V)."""
        logits_nD: torch.Tensor = self.lm_heads[min(place, len(self.lm_heads) - 1)](self.blocks[place](hidden_nH))
        if self.targets_D is None:
            return logits_nD[:, :vocabulary]
        whole = logits_nD.new_full((len(logits_nD), self.vocabulary), -torch.inf)
        whole[:, self.targets_D] = logits_nD
        return whole[:, :vocabulary]

    def as_forward(self, vocabulary: int) -> "_Alone":
        """The heads as `speculation.forward.Forward`, for measurements."""
        return _Alone(self, vocabulary)


class _Residuals(nn.Module):
    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(config.hidden, config.hidden, config.bias) for _ in range(config.layers))

    def forward(self, hidden_nH: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_nH = hidden_nH + nn.functional.silu(layer(hidden_nH))
        return hidden_nH


class MedusaDraft:
    """`drafter.LoadedDraft` for loaded heads. `states`: of their target."""

    kind, layers = MEDUSA, (NORMED,)
    own_traits: tuple[Trait, ...] = ()

    def __init__(self, model: MedusaModel, vocabulary: int, states: TargetStates) -> None:
        self.model, self.vocabulary, self.states = model, vocabulary, states

    @property
    def longest(self) -> int:
        return len(self.model.blocks)

    @property
    def models(self) -> Sequence[Any]:
        return (self.model,)

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> "MedusaDrafter":
        return MedusaDrafter(self, batch, rules)

    @torch.inference_mode()
    def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None) -> DraftScores:
        """Implements `LoadedDraft.examine`: blocks have at most as many places as there are heads."""
        places = min(gamma, self.longest)
        return examined(batch, self.logits_on(batch, places, features), places, gamma, sampling)

    def logits_on(self, batch: PaddedBatch, places: int, features: Features | None) -> Iterator[Logits]:
        """The logits of every round that could start at a token of the batch, at each of so many places, as far as there are
        heads."""
        assert features is not None
        device, places = self.model.device, min(places, self.longest)
        states_BTH = features[NORMED].to(device, self.model.dtype)
        before_B1 = upload([len(row.prompt) - 2 for row in batch.rows], device).unsqueeze(1)
        rows_BS = (before_B1 + torch.arange(batch.longest, device=device)).clamp(0, batch.width - 1)
        hidden_BSH = states_BTH.gather(1, rows_BS.unsqueeze(-1).expand(-1, -1, states_BTH.shape[-1]))
        return logits_by_place(self, batch, [hidden_BSH] * places)

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int], known: int) -> torch.Tensor:
        """The logits (V,) of the token after `ids`, in a round that began when `known` of them were."""
        ids_1T = torch.tensor([list(ids[: known - 1])], device=self.model.device)
        state_1H = self.states.states_at(ids_1T, self.layers)[NORMED][0, -1:]
        return precise(self.logits(state_1H.to(self.model.device, self.model.dtype), len(ids) - known)[0])

    def logits(self, hidden_nH: torch.Tensor, place: int) -> torch.Tensor:
        return self.model.logits(hidden_nH, place, self.vocabulary)


class _Alone:
    """`forward.Forward` of one head on hidden states of 0: what a pass costs does not depend on them."""

    def __init__(self, model: MedusaModel, vocabulary: int) -> None:
        self._model, self._vocabulary, self.device = model, vocabulary, model.device

    def allocate(self, rows: int, capacity: int) -> None:
        """There is no cache."""

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: None, keep: int) -> torch.Tensor:
        rows, model = len(ids_BT) * keep, self._model
        hidden_nH = torch.zeros(rows, model.hidden, dtype=model.dtype, device=self.device)
        return model.logits(hidden_nH, 0, self._vocabulary).view(len(ids_BT), keep, -1)

    def select(self, caches: None, rows: Sequence[int]) -> None:
        """Select nothing: the heads keep no state of rows."""


class MedusaDrafter:
    """Drafts from one hidden state of each row, the last that the target has computed."""

    def __init__(self, draft: MedusaDraft, batch: Batch, rules: Rules) -> None:
        self._draft, self._batch, self._rules = draft, batch, rules
        model, rows = draft.model, len(batch.running)
        self._hidden_BH = torch.zeros(rows, model.hidden, dtype=model.dtype, device=model.device)

    def start(self, features: Features | None) -> None:
        if features is not None:
            self._keep(features, [max(length - 2, 0) for length in self._batch.lengths])

    def propose(self, count: int, uniform_BN: torch.Tensor, go_on: GoOn) -> Proposal:
        room = [
            min(own, self._draft.longest) if length > 1 else 0
            for own, length in zip(self._batch.room(), self._batch.lengths, strict=True)
        ]

        def logits_at(place: int, token_B: torch.Tensor | None) -> torch.Tensor:
            return self._draft.logits(self._hidden_BH, place).to(self._batch.ids_BS.device)

        return draw_block(self._rules, room, min(count, self._draft.longest), uniform_BN, go_on, logits_at)

    def commit(self, accepted: Sequence[int], made: int, features: Features | None) -> None:
        assert features is not None
        self._keep(features, accepted)

    def _keep(self, features: Features, at: Sequence[int]) -> None:
        states_BTH = features[NORMED].to(self._hidden_BH.device, self._hidden_BH.dtype)
        self._hidden_BH = states_BTH[torch.arange(len(at), device=states_BTH.device), upload(at, states_BTH.device)]

    def select(self, rows: Sequence[int]) -> None:
        self._hidden_BH = self._hidden_BH[upload(rows, self._hidden_BH.device)]


def load_medusa(
    directory: Path, config: MedusaConfig, target: Any, dtype: torch.dtype, device: torch.device
) -> MedusaModel:
    """The heads in `directory`, for a loaded target. UsageError for heads of another target, and for tensors that are missing or
    would not be used."""
    hidden, text = int(target.config.get_text_config().hidden_size), target.config.get_text_config()
    if config.hidden != hidden or config.vocabulary < text.vocab_size:
        raise UsageError(
            f"{directory}: the heads were made for a target of hidden size {config.hidden:,} and {config.vocabulary:,} tokens, "
            f"and this one has {hidden:,} and {text.vocab_size:,}; name the target that they were trained on"
        )
    tensors = named_tensors(read_tensors(directory, device))
    targets_D = tensors.pop("token_map", None)
    if (targets_D is None) != (config.kept == config.vocabulary):
        raise UsageError(
            f"{directory}: truncated_vocab_size in its config.json and token_map in its files belong together, and one of them "
            "is missing; take both from where the heads were published"
        )
    if targets_D is not None and not (
        targets_D.shape == (config.kept,) and 0 <= int(targets_D.min()) <= int(targets_D.max()) < text.vocab_size
    ):
        raise UsageError(
            f"{directory}: token_map does not name {config.kept:,} of the target's {text.vocab_size:,} tokens; name the target "
            "that the heads were trained on, or take their files again from where they were published"
        )
    with torch.device("meta"):
        model = MedusaModel(config)
    check_tensors(directory, model.state_dict(), tensors)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    model.targets_D = None if targets_D is None else targets_D.long()
    return model.to(device).eval()


def named_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with the names of the modules here."""
    named = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        for old, new in _OLD_NAMES:
            name = old.sub(new, name)
        named[name] = tensor
    return named
