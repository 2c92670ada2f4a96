"""The decoding loop: batched, speculative and lossless. With gamma 0 it is plain generation.

Uses the target through `forward.CachedModel` and a draft of any kind through `drafter.LoadedDraft`; does not depend on stages,
stores or tracking.
Shapes: B sequences still running, G drafted tokens, T = G + 1 positions of a target pass, V shared tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pipeline.errors import UsageError
from pipeline.models.devices import Stopwatch, download, synchronize, upload
from pipeline.speculation.batch import Batch, Completion, Request, Round, Seconds
from pipeline.speculation.choice import choose_forward, recorded_forward
from pipeline.speculation.compiled_rules import CompiledRules
from pipeline.speculation.draft_length import DraftLength, Fixed
from pipeline.speculation.drafter import Drafter, LoadedDraft, Proposal
from pipeline.speculation.forward import PREFILL, CachedModel, Forward
from pipeline.speculation.rules import ImposedAcceptance, Method, Rules, TorchRules
from pipeline.speculation.sampling import RandomStreams, require_sound
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.verification import VerificationResult


class Decoder:
    """Speculative decoding of batches. Create it once for each pair: it packs small weights for speed."""

    def __init__(
        self,
        target: Any,
        draft: LoadedDraft | None,
        *,
        sampling: Sampling,
        vocabulary: int,
        gamma: int | DraftLength = 0,
        draft_sampling: Sampling | None = None,
        verification: Method = "token",
        stop_tokens: Sequence[int] = (),
        llama_forward: bool = True,
    ) -> None:
        """`gamma` is the number of tokens to draft in a round, or a rule that returns it; a draft may propose fewer
        (`LoadedDraft.longest`). `draft_sampling` is applied to the draft's logits; by default it equals `sampling`, and a
        draft of a greedy kind is greedy. `vocabulary` is the number of tokens that target and draft share; logits columns
        beyond it are padding. `llama_forward=False` uses the target's own forward. The attribute `prefill`, which may be set,
        is the most tokens of a row in one pass over the prompts. Raises UsageError for a gamma without a draft, and for
        imposed acceptance at temperature 0 or with fewer rates than draft positions."""
        self.length = Fixed(gamma) if isinstance(gamma, int) else gamma
        if self.length.most and draft is None:
            raise UsageError(f"gamma is {self.length.most} but there is no draft")
        if isinstance(verification, ImposedAcceptance) and (
            sampling.greedy or len(verification.rates) < self.length.most
        ):
            raise UsageError("imposed acceptance needs temperature > 0 and a rate for each draft position")
        self.draft = draft if self.length.most else None
        layers = self.draft.layers if self.draft is not None else ()
        self.target: Forward = (
            recorded_forward(target, vocabulary, layers, llama_forward)
            if layers
            else choose_forward(target, vocabulary, llama_forward)
        )
        self.sampling, self.draft_sampling = sampling, draft_sampling or sampling
        if self.draft is not None and self.draft.kind.greedy:
            self.draft_sampling = GREEDY
        self.vocabulary, self.stop_tokens, self.prefill = vocabulary, frozenset(stop_tokens), PREFILL
        compiled = None
        if verification == "token":
            models = [target] if self.draft is None else [target, *self.draft.models]
            draws = self.draft is None or bool(self.draft.models)
            compiled = CompiledRules.of(models, sampling, self.draft_sampling) if draws else None
        self.rules: Rules = compiled or TorchRules(sampling, self.draft_sampling, verification, self.target.device)

    def decode(
        self, requests: Sequence[Request], on_round: Callable[[Round], None] = lambda round_: None
    ) -> list[Completion]:
        """Decode all requests in one batch and call `on_round` after every round. Raises UsageError for an empty prompt or
        a limit below 1, UnderstudyError for NaN or infinite logits."""
        decoding = Decoding(self, requests) if requests else None
        for round_ in decoding or ():
            on_round(round_)
        return decoding.completions if decoding else []


class Decoding:
    """One running batch. Iterating over it streams its rounds; `completions` grow meanwhile."""

    def __init__(self, decoder: Decoder, requests: Sequence[Request]) -> None:
        self.decoder, most = decoder, decoder.length.most
        self.batch = Batch(requests, most, decoder.stop_tokens, decoder.target.device)
        self.completions = self.batch.completions
        self.streams = RandomStreams([request.seed for request in requests])
        self.target = CachedModel(decoder.target, len(requests), self.batch.capacity, decoder.prefill)
        self.draft: Drafter | None = None
        if decoder.draft is not None:
            self.draft = decoder.draft.begin(self.batch, decoder.rules, decoder.prefill)

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Round]:
        clock = Stopwatch(self.batch.ids_BS.device)
        self.target.fill_cache(self.batch.ids_BS, self.batch.lengths)
        features = self.target.features
        if self.draft is not None and (features is not None or self.decoder.length.tokens(len(self.batch.running))):
            self.draft.start(features)
        synchronize(self.batch.ids_BS.device)  # or the first round would take the time of what is left of the prefill
        (prefill,) = clock.seconds()
        for completion in self.completions:
            completion.seconds.prefill += prefill
        while self.batch.running:
            yield self._round()

    def _round(self) -> Round:
        """One speculative step: the draft proposes, the target scores all proposals in one pass, a prefix is accepted."""
        batch, clock = self.batch, Stopwatch(self.batch.ids_BS.device)
        uniform_BN = self._uniform()
        drafts = self._propose(uniform_BN)
        clock.mark()
        block_BT = torch.cat([batch.last(1), drafts.tokens_BG], dim=1)
        first = [length - 1 for length in batch.lengths]
        logits_BTV = self.target.logits(block_BT, first, keep=block_BT.shape[1])
        clock.mark()
        result = self._verify(logits_BTV, drafts, uniform_BN)
        round_ = self._emit(result, drafts, logits_BTV)
        self._account(round_, Seconds(0.0, *clock.seconds()))
        return round_

    def _propose(self, uniform_BN: torch.Tensor) -> Proposal:
        """Up to G draft tokens for each row."""
        batch, length = self.batch, self.decoder.length
        room = batch.room()
        count = min(length.tokens(len(batch.running)), max(room))
        if count == 0 or self.draft is None:
            nothing_BG = batch.ids_BS[:, :0]
            return Proposal(nothing_BG, [], [0] * len(room), nothing_BG)
        return self.draft.propose(count, uniform_BN, length.go_on)

    def _verify(self, logits_BTV: torch.Tensor, drafts: Proposal, uniform_BN: torch.Tensor) -> VerificationResult:
        most, made = self.decoder.length.most, drafts.tokens_BG.shape[1]
        accept_BG, next_B = uniform_BN[:, most : most + made], uniform_BN[:, -1]
        return self.decoder.rules.verify(logits_BTV, drafts.tokens_BG, drafts.q_G, drafts.drafted, accept_BG, next_B)

    def _emit(self, result: VerificationResult, drafts: Proposal, logits_BTV: torch.Tensor) -> Round:
        """Append the accepted tokens and the one after them; update both models and the batch."""
        batch = self.batch
        block_BT = torch.cat([drafts.tokens_BG, result.next_B.unsqueeze(1)], dim=1)
        block_BT.scatter_(1, result.accepted_B.unsqueeze(1), result.next_B.unsqueeze(1))
        # The one copy to the host, for which it waits.
        accepted_B, host_BT, *sums = download(result.accepted_B, block_BT, result.sums_B, drafts.sums)
        require_sound(*sums)
        accepted, block = accepted_B.tolist(), host_BT.tolist()
        numbers = list(batch.running)
        emitted = batch.emit(block_BT, block, drafts.drafted, accepted)
        self.decoder.length.learn(drafts.drafted, accepted)
        self.target.seen = [length - 1 for length in batch.lengths]
        if self.draft is not None:
            self.draft.commit(accepted, drafts.tokens_BG.shape[1], self.target.features)
        return Round(numbers, emitted, drafts.drafted, accepted, logits_BTV)

    def _account(self, round_: Round, seconds: Seconds) -> None:
        for number, emitted in zip(round_.numbers, round_.emitted, strict=True):
            if emitted:  # a finished row that is still in the batch took no part in this round
                self.completions[number].seconds.add(seconds)
        keep = self.batch.retire()
        if keep:
            self.streams.select(keep)
            for model in (self.target, self.draft):
                if model is not None:
                    model.select(keep)

    def _uniform(self) -> torch.Tensor:
        """This round's uniform random numbers, (B, 2 * most + 1): for drafting, for acceptance and for the token after the
        accepted ones. The count does not depend on how many tokens are drafted, so that a row's random numbers do not
        depend on the rest of the batch."""
        decoder, device = self.decoder, self.decoder.target.device
        if decoder.sampling.greedy and (decoder.draft_sampling.greedy or self.draft is None):
            return torch.empty(len(self.batch.running), 2 * decoder.length.most + 1, device=device)
        return upload(self.streams.take(2 * decoder.length.most + 1), device)
