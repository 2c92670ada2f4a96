"""The one decoding loop: batched, speculative, exact. With gamma 0 it is plain generation.

Knows models as `forward.Side` and nothing of stages, stores or tracking.
Shapes: B sequences still running, G drafted tokens, T = G + 1 positions of a target pass, V shared tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch

from pipeline.errors import UsageError
from pipeline.speculation.batch import Batch, Completion, Request, Round, Seconds
from pipeline.speculation.draft_length import DraftLength, Fixed
from pipeline.speculation.forward import Side, choose_body
from pipeline.speculation.sampling import Sampling, Streams, check_drawn, draw, probabilities, soundness
from pipeline.speculation.verification import Verdict, verify_block, verify_greedy, verify_imposed, verify_tokens

Verify = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Verdict]


class _Drafts(NamedTuple):
    """What the draft proposed in a round."""

    tokens_BG: torch.Tensor
    q_BGV: torch.Tensor | None  # what they were drawn from; None where the target is greedy and nobody asks
    drafted: list[int]  # tokens that count, row by row; the rest is padding
    sums: torch.Tensor  # to check that they were drawn from numbers


class Decoder:
    """Speculative decoding of batches. Make it once a pair: small weights are packed for speed."""

    def __init__(
        self,
        target: Any,
        draft: Any | None,
        *,
        sampling: Sampling,
        vocabulary: int,
        gamma: int | DraftLength = 0,
        draft_sampling: Sampling | None = None,
        verification: Literal["token", "block"] = "token",
        imposed_acceptance: Sequence[float] = (),
        stop_tokens: Sequence[int] = (),
        lean: bool = True,
    ) -> None:
        """`gamma` is the number of tokens to draft a round, or the rule that says it. `draft_sampling` is what the engine
        applies to the draft; by default the same as to the target. `vocabulary` is the number of tokens target and draft
        share; columns beyond are padding. `imposed_acceptance` (by position) gives up the target's law: it is for timing
        models with random weights. `lean=False` keeps to the models' own forward. Raises UsageError for a gamma without
        a draft."""
        self.length = Fixed(gamma) if isinstance(gamma, int) else gamma
        if self.length.most and draft is None:
            raise UsageError(f"gamma is {self.length.most} but there is no draft model")
        if imposed_acceptance and (
            sampling.greedy or verification == "block" or len(imposed_acceptance) < self.length.most
        ):
            raise UsageError(
                "imposed acceptance needs sampling, token-level verification and a figure for each drafted token"
            )
        self.target = choose_body(target, vocabulary, lean)
        self.draft = choose_body(draft, vocabulary, lean) if self.length.most else None
        self.sampling, self.draft_sampling = sampling, draft_sampling or sampling
        self.vocabulary, self.stop_tokens = vocabulary, frozenset(stop_tokens)
        self.verify: Verify = verify_tokens if verification == "token" else verify_block
        if imposed_acceptance:
            self.verify = partial(verify_imposed, torch.tensor(imposed_acceptance, device=self.target.device))

    def decode(
        self, requests: Sequence[Request], on_round: Callable[[Round], None] = lambda round_: None
    ) -> list[Completion]:
        """Decode all requests together; `on_round` hears of every round. Raises UsageError for an empty prompt or a limit
        below 1, UnderstudyError where a model's logits are not numbers."""
        decoding = Decoding(self, requests) if requests else None
        for round_ in decoding or ():
            on_round(round_)
        return decoding.completions if decoding else []


class Decoding:
    """One batch under way: iterate to stream its rounds; `completions` grow meanwhile."""

    def __init__(self, decoder: Decoder, requests: Sequence[Request]) -> None:
        self.rules, most = decoder, decoder.length.most
        self.batch = Batch(requests, most, decoder.stop_tokens, decoder.target.device)
        self.completions = self.batch.completions
        self.streams = Streams([request.seed for request in requests])
        size = (len(requests), self.batch.capacity, self.batch.longest)
        self.target = Side(decoder.target, *size)
        self.draft = Side(decoder.draft, *size) if decoder.draft else None

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Round]:
        began = perf_counter()
        self.target.catch_up(self.batch.ids_BS, self.batch.lengths)
        if self.draft is not None and self.rules.length.tokens(len(self.batch.running)):
            self.draft.catch_up(self.batch.ids_BS, self.batch.lengths)
        for completion in self.completions:
            completion.seconds.prefill += perf_counter() - began
        while self.batch.running:
            yield self._round()

    def _round(self) -> Round:
        """One speculative step: the draft proposes, the target scores all of it in one pass, a prefix stands."""
        batch, clock = self.batch, [perf_counter()]
        uniform_BN = self._uniform()
        drafts = self._draft(uniform_BN)
        clock.append(perf_counter())
        block_BT = torch.cat([batch.last(1), drafts.tokens_BG], dim=1)
        first = [length - 1 for length in batch.lengths]
        logits_BTV = self.target.logits(block_BT, first, keep=block_BT.shape[1])
        clock.append(perf_counter())
        verdict = self._verify(logits_BTV, drafts, uniform_BN)
        round_ = self._emit(verdict, drafts, logits_BTV)
        clock.append(perf_counter())
        self._account(round_, clock)
        return round_

    def _draft(self, uniform_BN: torch.Tensor) -> _Drafts:
        """Up to G tokens a row from the draft, with the distributions they were drawn from."""
        batch, rules = self.batch, self.rules
        room = batch.room()
        count = min(rules.length.tokens(len(batch.running)), max(room))
        nothing_BG = batch.ids_BS[:, :0]
        if count == 0 or self.draft is None:
            return _Drafts(nothing_BG, None, [0] * len(room), nothing_BG[:, :0])
        self.draft.catch_up(batch.ids_BS, batch.lengths)
        # One token, or two where a block stood whole: the draft has not seen its own last proposal yet.
        unseen = max(length - seen for length, seen in zip(batch.lengths, self.draft.seen, strict=True))
        ids_BT, first = batch.last(unseen), [length - unseen for length in batch.lengths]
        tokens_GB, q_GBV, sums_GB = [], [], []
        going_GB: list[torch.Tensor] = []
        for position in range(count):
            logits_BV = self.draft.logits(ids_BT, first, keep=1)[:, 0]
            token_B, q_BV, sum_B = self._draw(logits_BV, uniform_BN[:, position])
            tokens_GB.append(token_B)
            q_GBV.append(q_BV)
            sums_GB.append(sum_B)
            ids_BT, first = token_B.unsqueeze(1), [length + position for length in batch.lengths]
            going_B = rules.length.go_on(logits_BV) if position + 1 < count else None
            if going_B is not None:
                going_GB.append(going_B if not going_GB else going_GB[-1] & going_B)
                if not bool(going_GB[-1].any()):
                    break
        made = len(tokens_GB)
        drafted: list[int] = [min(made, own) for own in room]
        if going_GB:  # a row's block ends with the first token after which it was not sure
            sure = (torch.stack(going_GB)[: made - 1].sum(0) + 1).tolist()
            drafted = [min(own, int(most)) for own, most in zip(drafted, sure, strict=True)]
        q_BGV = torch.stack([q_BV for q_BV in q_GBV if q_BV is not None], dim=1) if q_GBV[0] is not None else None
        return _Drafts(torch.stack(tokens_GB, dim=1), q_BGV, drafted, torch.stack(sums_GB))

    def _draw(
        self, logits_BV: torch.Tensor, uniform_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """A drafted token, what it was drawn from where that will matter, and a figure that is positive if it is sound."""
        rules = self.rules
        if rules.draft_sampling.greedy:
            best = logits_BV.max(-1)
            q_BV = None if rules.sampling.greedy else torch.zeros_like(logits_BV, dtype=torch.float32)
            if q_BV is not None:
                q_BV.scatter_(1, best.indices.unsqueeze(1), 1.0)
            return best.indices, q_BV, soundness(best.values)
        q_BV = probabilities(logits_BV, rules.draft_sampling)
        token_B, sum_B = draw(q_BV, uniform_B)
        return token_B, q_BV, sum_B

    def _verify(self, logits_BTV: torch.Tensor, drafts: _Drafts, uniform_BN: torch.Tensor) -> Verdict:
        drafted_B = torch.tensor(drafts.drafted, device=logits_BTV.device)
        if self.rules.sampling.greedy:
            best = logits_BTV.max(-1)
            verdict = verify_greedy(best.indices, drafts.tokens_BG, drafted_B)
            return verdict._replace(sums_B=soundness(best.values).amin(-1))
        p_BTV = probabilities(logits_BTV, self.rules.sampling)
        q_BGV = p_BTV[:, :0] if drafts.q_BGV is None else drafts.q_BGV.to(p_BTV.dtype)
        width = p_BTV.shape[1]
        most = self.rules.length.most
        uniform_BT = torch.cat([uniform_BN[:, most : most + width - 1], uniform_BN[:, -1:]], dim=1)
        verify = self.rules.verify if width > 1 else verify_tokens
        return verify(p_BTV, q_BGV, drafts.tokens_BG, drafted_B, uniform_BT)

    def _emit(self, verdict: Verdict, drafts: _Drafts, logits_BTV: torch.Tensor) -> Round:
        """Append what stands and the token after it; bring both sides and the batch up to date."""
        batch = self.batch
        block_BT = torch.cat([drafts.tokens_BG, verdict.next_B.unsqueeze(1)], dim=1)
        block_BT.scatter_(1, verdict.accepted_B.unsqueeze(1), verdict.next_B.unsqueeze(1))
        check_drawn(torch.cat([verdict.sums_B.double(), drafts.sums.flatten().double()]))
        host = torch.cat([verdict.accepted_B.unsqueeze(1), block_BT], dim=1).tolist()  # all the host needs, in one go
        accepted, block = [row[0] for row in host], [row[1:] for row in host]
        numbers = list(batch.running)
        emitted = batch.emit(block_BT, block, drafts.drafted, accepted)
        self.rules.length.learn(drafts.drafted, accepted)
        self.target.seen = [length - 1 for length in batch.lengths]
        made = drafts.tokens_BG.shape[1]
        if self.draft is not None and made:
            # The draft has seen its proposals but the last; those that fell are written over.
            ends = zip(batch.lengths, accepted, strict=True)
            self.draft.seen = [length - 1 - max(stood - made + 1, 0) for length, stood in ends]
        return Round(numbers, emitted, drafts.drafted, accepted, logits_BTV)

    def _account(self, round_: Round, clock: list[float]) -> None:
        draft, verify, rest = (end - begin for begin, end in pairwise(clock))
        for number, emitted in zip(round_.numbers, round_.emitted, strict=True):
            if emitted:  # a finished row that is still in place has no part in this round
                self.completions[number].seconds.add(Seconds(0.0, draft, verify, rest))
        keep = self.batch.retire()
        if keep:
            self.streams.select(keep)
            for side in (self.target, self.draft):
                if side is not None:
                    side.select(keep)

    def _uniform(self) -> torch.Tensor:
        """This round's numbers, (B, 2 * most + 1): to draft with, to accept with, and for the token that follows. As many
        whatever is drafted, so that a row's luck does not depend on its neighbours."""
        rules, device = self.rules, self.rules.target.device
        if rules.sampling.greedy and (rules.draft_sampling.greedy or self.draft is None):
            return torch.empty(len(self.batch.running), 2 * rules.length.most + 1, device=device)
        return self.streams.take(2 * rules.length.most + 1).to(device)
