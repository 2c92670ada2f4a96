"""EAGLE-3 (arXiv 2503.01840): a small decoder on hidden states of the target. Shapes as in `speculation/drafter.py` and
`eagle3_model.py`; N tokens of the completions of a batch.

While a round drafts, the states of its own tokens stand in for those of the target, which are not known yet; as soon as they are,
the accepted places' keys are computed again from the true ones. So what a round drafts depends on where it starts, and on nothing
that was drafted before. The examination does for all starts at once what a round does: one pass over the text with true states,
and one more for each further place, in which row i attends to the true keys up to i and to the keys of its own round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.drafts.drawing import draw_block
from pipeline.drafts.eagle3_model import Eagle3Model, cached_pass
from pipeline.drafts.examined_logits import Logits, examined, logits_by_place
from pipeline.drafts.kinds import EAGLE3, Trait
from pipeline.models.devices import upload
from pipeline.speculation.batch import Batch
from pipeline.speculation.cache import RaggedCache
from pipeline.speculation.drafter import DraftScores, GoOn, Proposal
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.sampling import precise
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch

_CHUNK_SCORES = 1 << 25  # attention scores held at once: 128 MiB in fp32


class Eagle3Draft:
    """`drafter.LoadedDraft` for a loaded head. `states`: of its target."""

    kind, longest = EAGLE3, None

    def __init__(self, model: Eagle3Model, vocabulary: int, states: TargetStates) -> None:
        self.model, self.vocabulary, self.states = model, vocabulary, states

    @property
    def layers(self) -> Sequence[int]:
        return self.model.layer_ids

    @property
    def models(self) -> Sequence[Any]:
        return (self.model,)

    @property
    def own_traits(self) -> tuple[Trait, ...]:
        """Traits that only its weights show: an embedding that is another than the target's, of the same width."""
        own_VH, of_target_VH = self.model.embed_tokens.weight, self.states.target.get_input_embeddings().weight
        rows = min(len(own_VH), len(of_target_VH))
        is_own = own_VH.shape[1] == of_target_VH.shape[1] and not torch.equal(
            own_VH[:rows].to(of_target_VH.dtype), of_target_VH[:rows].to(own_VH.device)
        )
        return ("own_embedding",) if is_own else ()

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> "Eagle3Drafter":
        return Eagle3Drafter(self.model, self.vocabulary, batch, rules, prefill)

    @torch.inference_mode()
    def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None) -> DraftScores:
        """Implements `LoadedDraft.examine`: one pass over the text and one a further place, for all gammas."""
        return examined(batch, self.logits_on(batch, gamma, features), gamma, gamma, sampling)

    def logits_on(self, batch: PaddedBatch, places: int, features: Features | None) -> Iterator[Logits]:
        """The logits of every round that could start at a token of the batch, at each of so many places."""
        assert features is not None
        return logits_by_place(self, batch, self._hidden_by_place(batch, places, features))

    def _hidden_by_place(self, batch: PaddedBatch, places: int, features: Features) -> Iterator[torch.Tensor]:
        """(B, S, H) of each place."""
        model, device = self.model, self.model.device
        ids_BT = upload(batch.ids_BT, device)
        starts_BS = upload(_first_rows(batch), device).unsqueeze(1) + torch.arange(batch.longest, device=device)
        # A round cannot start where the target has no state yet: before the second token of a text.
        rows_BS = starts_BS.clamp(0, batch.width - 2)
        attention = AllStarts(rows_BS, model.windows)
        positions_BT = torch.arange(batch.width - 1, device=device).expand(len(ids_BT), -1)
        hidden_BTH = model(
            ids_BT[:, 1:], model.combine(features)[:, :-1], positions_BT, [attention] * len(model.layers)
        )
        hidden_BSH = hidden_BTH.gather(1, rows_BS.unsqueeze(-1).expand(-1, -1, hidden_BTH.shape[-1]))
        for place in range(places):
            if place:
                attention.place = place
                token_BS = ids_BT.gather(1, (rows_BS + 1 + place).clamp(max=batch.width - 1))
                hidden_BSH = model(token_BS, hidden_BSH, rows_BS + place, [attention] * len(model.layers))
            yield hidden_BSH

    @torch.inference_mode()
    def logits_after(self, ids: Sequence[int], known: int) -> torch.Tensor:
        """The logits (V,) of the token after `ids`, in a round that began when `known` of them were: computed without a cache."""
        model, ids_1T = self.model, torch.tensor([list(ids)], device=self.model.device)
        hidden_1TH = model.combine(self.states.states_at(ids_1T[:, : known - 1], self.layers))
        for count in range(known - 1, len(ids)):
            at_T = torch.arange(count, device=model.device)
            seen = [(at_T <= at_T[:, None]) & (at_T > at_T[:, None] - (size or count)) for size in model.windows]
            out_1TH = model(ids_1T[:, 1 : count + 1], hidden_1TH, at_T[None], [mask[None, None] for mask in seen])
            hidden_1TH = torch.cat([hidden_1TH, out_1TH[:, -1:]], dim=1)
        return precise(self.logits(hidden_1TH[0, -1:], len(ids) - known)[0])

    def logits(self, hidden_nH: torch.Tensor, place: int) -> torch.Tensor:
        return self.model.over_target(self.model.logits(hidden_nH), self.vocabulary)


def _first_rows(batch: PaddedBatch) -> list[int]:
    """The row of each completion from which a round at its first token drafts: the last token of the prompt with the state
    before."""
    return [len(row.prompt) - 2 for row in batch.rows]


@dataclass
class AllStarts:
    """`OwnAttention` of all rounds of an examination. Place 0: all rows of the text, causal. Place j: row b of each start attends
    to the true keys up to b, and to the keys of its round, which are those of places 1 to j at the same start."""

    rows_BS: torch.Tensor
    windows: Sequence[int | None]
    place: int = 0
    _true: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by layer: keys, values
    _own: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by layer and place

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        groups, window = query.shape[1] // key.shape[1], self.windows[layer]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        if self.place == 0:
            self._true[layer] = key, value
            found_BATW = self._causal(query, key, value, scale, window)
        else:
            self._own[layer, self.place] = key, value
            found_BATW = self._over_rounds(layer, query, scale, window)
        return found_BATW.transpose(1, 2).contiguous()

    def _causal(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        if window is None:
            return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        at_T = torch.arange(query.shape[2], device=query.device)
        mask_TT = (at_T <= at_T.unsqueeze(1)) & (at_T > at_T.unsqueeze(1) - window)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask_TT, scale=scale)

    def _over_rounds(self, layer: int, query_BASW: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        keys_BATW, values_BATW = self._true[layer]
        first = 1 if window is None else max(1, self.place - window + 1)  # a window may be shorter than a block
        own = [self._own[layer, place] for place in range(first, self.place + 1)]
        rows, heads, starts, _ = query_BASW.shape
        at_T, chunks = torch.arange(keys_BATW.shape[2], device=query_BASW.device), []
        step = max(1, _CHUNK_SCORES // (rows * heads * len(at_T)))
        for begin in range(0, starts, step):
            part = slice(begin, begin + step)
            query, at_Bs1 = query_BASW[:, :, part], self.rows_BS[:, part].unsqueeze(-1)
            seen_BsT = at_T <= at_Bs1
            if window is not None:
                seen_BsT = seen_BsT & (at_T > at_Bs1 + self.place - window)
            true_BAsT = (query @ keys_BATW.transpose(2, 3)).masked_fill(~seen_BsT.unsqueeze(1), -torch.inf)
            own_BAsP = torch.stack([(query * key[:, :, part]).sum(-1) for key, _ in own], dim=-1)
            weights = (torch.cat([true_BAsT, own_BAsP], dim=-1).float() * scale).softmax(-1).to(query.dtype)
            attended = weights[..., : len(at_T)] @ values_BATW
            for place, (_, value) in enumerate(own):
                attended = attended + weights[..., len(at_T) + place, None] * value[:, :, part]
            chunks.append(attended)
        return torch.cat(chunks, dim=2)


class Eagle3Drafter:
    """Drafts token by token. Slot i of its cache holds the row of token i + 1 with the state of token i."""

    def __init__(self, model: Eagle3Model, vocabulary: int, batch: Batch, rules: Rules, prefill: int) -> None:
        self._model, self._vocabulary, self._batch, self._rules, self._prefill = (
            model,
            vocabulary,
            batch,
            rules,
            prefill,
        )
        rows = len(batch.running)
        self._cache = RaggedCache(rows, batch.capacity)
        # The target's states, combined, by slot.
        self._states_BSH = torch.zeros(
            rows, batch.capacity, model.config.hidden_size, dtype=model.dtype, device=model.device
        )
        self._seen = [0] * rows  # how many slots of each row, from slot 0 on, were computed from true states

    def start(self, features: Features | None) -> None:
        if features is None:  # no prompt has a token before its last one
            return
        combined_BTH = self._model.combine(features)
        self._states_BSH[:, : combined_BTH.shape[1]] = combined_BTH
        end = max(self._batch.lengths) - 2
        for first in range(0, end, self._prefill):
            self._rows([first] * len(self._seen), min(self._prefill, end - first))
        self._seen = [max(length - 2, 0) for length in self._batch.lengths]

    def propose(self, count: int, uniform_BN: torch.Tensor, go_on: GoOn) -> Proposal:
        batch, model = self._batch, self._model
        known = [length - 1 for length in batch.lengths]  # slots whose states are known
        width = max(1, max(end - seen for end, seen in zip(known, self._seen, strict=True)))
        first = [max(end - width, 0) for end in known]
        hidden_BTH = self._rows(first, width)
        last_B = upload([max(end - 1, 0) - begin for end, begin in zip(known, first, strict=True)], model.device)
        hidden_B1H = hidden_BTH[torch.arange(len(last_B), device=model.device), last_B].unsqueeze(1)
        self._seen = known

        def logits_at(place: int, token_B: torch.Tensor | None) -> torch.Tensor:
            nonlocal hidden_B1H
            if token_B is not None:
                slots = [max(end, 0) + place - 1 for end in known]
                hidden_B1H = cached_pass(model, self._cache, token_B.to(model.device).unsqueeze(1), hidden_B1H, slots)
            logits_BV = model.over_target(model.logits(hidden_B1H[:, 0]), self._vocabulary)
            return logits_BV.to(batch.ids_BS.device)

        room = [own if end > 0 else 0 for own, end in zip(batch.room(), known, strict=True)]
        return draw_block(self._rules, room, count, uniform_BN, go_on, logits_at)

    def commit(self, accepted: Sequence[int], made: int, features: Features | None) -> None:
        assert features is not None
        combined_BTH = self._model.combine(features)
        first = [length - 2 - count for length, count in zip(self._batch.lengths, accepted, strict=True)]
        at_BT = upload(first, self._model.device).unsqueeze(1) + torch.arange(made + 1, device=self._model.device)
        self._states_BSH.scatter_(1, at_BT.unsqueeze(-1).expand_as(combined_BTH), combined_BTH)

    def select(self, rows: Sequence[int]) -> None:
        self._cache.select(rows)
        self._states_BSH = self._states_BSH[upload(rows, self._model.device)]
        self._seen = [self._seen[row] for row in rows]

    def _rows(self, first: Sequence[int], width: int) -> torch.Tensor:
        """Compute slots first[b] .. first[b] + width - 1 from true states: (B, width, H). Slots whose token or state is not known
        yet get what is there: they are computed again before any row attends to them."""
        at_BT = upload(first, self._model.device).unsqueeze(1) + torch.arange(width, device=self._model.device)
        states_BTH = self._states_BSH.gather(1, at_BT.unsqueeze(-1).expand(-1, -1, self._states_BSH.shape[-1]))
        ids_BS = self._batch.ids_BS.to(self._model.device)
        ids_BT = ids_BS.gather(1, (at_BT + 1).clamp(max=ids_BS.shape[1] - 1))
        return cached_pass(self._model, self._cache, ids_BT, states_BTH, first)
