"""One prompt decoded with a named pair: what `understudy decode` shows and measures. Uses models, and no terminals."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from pipeline.acceptance.decoding_speed import Measured, of_turns
from pipeline.drafts.named_pair import NamedPair
from pipeline.errors import UsageError
from pipeline.examination.cross_check import NEAR_TIE, first_divergence
from pipeline.models.out_of_memory import SmallerBatches
from pipeline.speculation.batch import Completion, Request, Round
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.draft_length import Certain, Confident, DraftLength, Fallback, Fixed
from pipeline.speculation.forward import PREFILL
from pipeline.speculation.settings import GREEDY, Sampling, Verification

_LENGTHS: dict[str, Callable[[int], DraftLength]] = {"never": Fixed, "confidence": Confident, "entropy": Certain}


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """How a prompt is decoded. `break_even`: the acceptance rate below which the fallback drafts less; None: no fallback."""

    sampling: Sampling
    greedy_draft: bool = False
    gamma: int = 5
    stop_drafting: Literal["never", "confidence", "entropy"] = "never"
    break_even: float | None = None
    verification: Verification = "token"


@dataclass(frozen=True)
class SpeedComparison:
    """Tokens per second with the draft and of the target alone, in the same turns. One prompt has no speedup."""

    speculative: Measured
    plain: Measured
    turns: int


class OneDecode:
    """A pair, a prompt as token ids, and the settings. `notes` gets what the fallback did."""

    def __init__(self, pair: NamedPair, request: Request, settings: DecodeSettings) -> None:
        self.pair, self.request, self.settings = pair, request, settings
        draft = next(iter(pair.drafts.values()))
        if draft.longest is not None and settings.gamma > draft.longest:
            raise UsageError(
                f"--gamma {settings.gamma}: the draft proposes at most {draft.longest} tokens; give {draft.longest} or fewer"
            )
        self.notes: list[str] = []
        self.speculating, self.plain = self._decoder(self.draft_length()), self._decoder(0)
        self.limits: list[str] = []  # what the memory did not allow
        at_once = min(PREFILL, len(request.prompt))
        self._prefill = SmallerBatches("decode: prompt tokens of a pass", at_once, self.limits.append, least=16)

    def draft_length(self) -> DraftLength:
        """A new rule for the draft length, with an empty window."""
        chosen = _LENGTHS[self.settings.stop_drafting](self.settings.gamma)
        if self.settings.break_even is None:
            return chosen
        return Fallback(chosen, break_even=self.settings.break_even, on_change=self._note)

    def _note(self, change: str) -> None:
        self.notes.append(f"fallback: {change}")

    def _decoder(self, length: int | DraftLength) -> Decoder:
        return Decoder(
            self.pair.target,
            next(iter(self.pair.drafts.values())) if length else None,
            sampling=self.settings.sampling,
            draft_sampling=GREEDY if self.settings.greedy_draft else None,
            vocabulary=self.pair.vocabulary,
            gamma=length,
            verification=self.settings.verification,
            stop_tokens=self.pair.stop_tokens,
        )

    def begin(self) -> tuple[Completion, Iterator[Round]]:
        """The rounds of the decode with the draft, and its completion, which grows meanwhile."""
        return self._begin(self.speculating, self.request)

    def _begin(self, decoder: Decoder, request: Request) -> tuple[Completion, Iterator[Round]]:
        """Begin a decode. Where memory runs out at the prompt, which takes the most of it, fewer of its tokens are processed at
        once."""

        def first(prefill: int) -> tuple[Completion, Iterator[Round]]:
            self.speculating.prefill = self.plain.prefill = prefill
            decoding = Decoding(decoder, [request])
            rounds = iter(decoding)
            return decoding.completions[0], chain([next(rounds)], rounds)

        return self._prefill.run(first)

    def warm_up(self) -> None:
        """Decode once, so that no measurement includes the first use of the weights."""
        for decoder in (self.plain, self.speculating):
            _, rounds = self._begin(
                decoder, Request(self.request.prompt, min(8, self.request.limit), self.request.seed)
            )
            deque(rounds, maxlen=0)
        self.speculating.length = self.draft_length()

    def compare(self, turns: int) -> SpeedComparison:
        """Tokens per second after the prefill, with the draft and without it, in alternating order. No notes are taken."""
        ours, plain = list[float](), list[float]()
        for turn in range(turns):
            self.speculating.length, order = self.draft_length(), [(ours, self.speculating), (plain, self.plain)]
            for rates, decoder in order if turn % 2 else reversed(order):
                completion = decoder.decode([self.request])[0]
                rates.append(_tokens_per_second(completion))
        self.notes.clear()
        return SpeedComparison(of_turns(ours), of_turns(plain), turns)

    def too_short(self) -> str | None:
        """Why the fallback could not have changed anything; None if it could."""
        length = self.speculating.length
        if self.notes or not isinstance(length, Fallback) or length.examined >= length.needed:
            return None
        return (
            f"fallback: nothing changed; {length.examined} draft tokens were verified and {length.needed} are needed "
            "(raise --max-new-tokens)"
        )

    def why_other(self, speculative: Completion, alone: Completion) -> str:
        """Why the text of the target alone is another one, as its title."""
        if not self.settings.sampling.greedy:
            return "the target alone (another sample from the same distribution)"
        length = min(len(speculative.tokens), len(alone.tokens))
        divergence = first_divergence(
            self.pair.target,
            self.request.prompt,
            alone.tokens[:length],
            speculative.tokens[:length],
            self.pair.vocabulary,
        )
        if divergence is None:
            return "the target alone (stopped at another length)"
        position, gap = divergence
        why = (
            "a tie within rounding error"
            if gap < NEAR_TIE
            else "more than fp32 rounding explains, common in lower precision"
        )
        return (
            f"the target alone (differs from token {position}, where its two highest logits differ by {gap:.1e}: {why})"
        )


def _tokens_per_second(completion: Completion) -> float:
    seconds = completion.seconds.total - completion.seconds.prefill
    return (completion.length or len(completion.tokens)) / max(seconds, 1e-9)
