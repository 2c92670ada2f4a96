"""Evidence that completions are not samples of the distributions that the server reports: of other weights, of another
temperature, of other prompts, of a broken sampler. Torch-free.

If a token x is sampled from p, then e = w(x) / sum over v of p(v) w(v) has mean 1 for any weights w >= 0 that depend on p only,
whatever came before. So the product over the tokens of a completion has mean 1, wherever it ends, and so has the product over
completions. Such a product is a test martingale: by Ville's inequality it ever exceeds 1/a with probability at most a, so it may
be looked at after each completion. A mean of such products is one too.

Here w = p^-lambda: lambda > 0 is evidence for a flatter distribution than p, lambda < 0 for a sharper one. A token that is not
listed counts as the least likely listed one, so that w is known for every token, and e still has mean 1. Some of the
alternatives concern the first tokens only, because an answer to another prompt soon explains the rest of itself, and a share s
of the completions only: if E is the product of a completion, 1 - s + s E has mean 1 too.

Answers that stand beside other prompts are likelier to be found by q(x) / p(x) of their first token, where q is how often the
answers before this one began with x: it has mean 1 (or less) for any q that does not depend on x, and needs p of x only.

A right log may also have tokens that the target cannot choose, because of rounding or because a text was tokenised again: up to
a tolerated share of its answers. Answers beyond that share are evidence as well (a likelihood ratio of Bernoulli variables).

Shapes: N tokens, K listed tokens, C alternatives.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

FALSE_ALARM = 1e-4
"""The most probable false alarm: a right log is ever refused with at most this probability."""

# Nats per token by which the mean of log p may differ. Noise of the weights that moves log p by 0.03 on average, the most that
# the check of a 16-bit target's identity takes for rounding, moves its mean by 0.0019 (docs/decisions/corpus.md).
ROUNDING = 0.002
CUT_OFF = 0.007  # where log p after cut-offs is known to 0.005 nats (`cut_offs.py`)
TEXT = 0.03  # a text that was tokenised again: not always into the tokens that were sampled

_LAMBDAS = (0.004, 0.01, 0.025, 0.06, 0.15, 0.4, 1.0)  # all tokens of all completions
_PART_LAMBDAS = (0.1, 0.2, 0.4, 0.8)
_OPENINGS = (4, 16, None)  # first tokens of a completion; None: all
_SHARES = (1.0, 0.1, 0.02)  # of the completions
_MIXED_SHARES = (0.3, 0.1, 0.03)  # of the answers, which stand beside other prompts
_MOST = 50.0  # q / p of a first token: no answer alone decides
_IMPOSSIBLE = {True: 0.02, False: 0.2}  # tolerated share of answers, by whether their token ids are known
_MORE_IMPOSSIBLE = {True: (0.06, 0.12, 0.25, 0.6), False: (0.3, 0.4, 0.6, 0.9)}
_POWER = 1.28  # standard errors: nine in ten logs of an alternative that is said to be found are found


class Alternative(NamedTuple):
    """What the completions may be instead of samples."""

    power: float  # lambda; 0: it is of another kind
    opening: int | None = None
    share: float = 1.0
    mixed: bool = False  # answers beside other prompts; else, without a power, answers with impossible tokens

    @property
    def text(self) -> str:
        """The alternative in words, for messages."""
        if self.mixed:
            return f"about {self.share:.0%} of them begin as the others do, and not as their prompts ask for"
        if not self.power:
            return "too many have tokens that the target cannot choose"
        who = "tokens are" if self.opening is None else f"the first {self.opening} tokens are"
        some = "" if self.share == 1 else f" in about {self.share:.0%} of them"
        return f"{who} {'less' if self.power > 0 else 'more'} likely than samples{some}"


def _signed(powers: tuple[float, ...]) -> list[float]:
    return [*powers, *(-power for power in powers)]


_OF_ALL = [Alternative(power) for power in _signed(_LAMBDAS)]
_OF_PART = [
    Alternative(power, opening, share) for opening in _OPENINGS for share in _SHARES for power in _signed(_PART_LAMBDAS)
]
_OF_MIXED = [Alternative(0.0, share=share, mixed=True) for share in _MIXED_SHARES]
_OF_IMPOSSIBLE = [Alternative(0.0) for _ in _MORE_IMPOSSIBLE[True]]
ALTERNATIVES = (*_OF_ALL, *_OF_PART, *_OF_MIXED, *_OF_IMPOSSIBLE)
_OTHERS = len(_OF_MIXED) + len(_OF_IMPOSSIBLE)
_LOG_PRIOR_C = np.concatenate(
    [
        np.full(len(group), math.log(weight / len(group)))
        for weight, group in ((0.4, _OF_ALL), (0.2, _OF_PART), (0.2, _OF_MIXED), (0.2, _OF_IMPOSSIBLE))
    ]
)


@dataclass(frozen=True, kw_only=True)
class CompletionEvidence:
    """Evidence of some completions; the sum of two is that of both."""

    completions: int
    tokens: int
    log_e_C: NDArray[np.float64]  # log of the product, by alternative
    # Sums over tokens: the variance of log p, its covariance with p, (1 - sum of p^2) / 2, and the tolerance.
    moments: NDArray[np.float64]
    texts: int = 0  # answers whose token ids are not known
    impossible: int = 0  # answers with a token that the target cannot choose

    def __add__(self, other: "CompletionEvidence") -> "CompletionEvidence":
        return CompletionEvidence(
            completions=self.completions + other.completions,
            tokens=self.tokens + other.tokens,
            log_e_C=self.log_e_C + other.log_e_C,
            moments=self.moments + other.moments,
            texts=self.texts + other.texts,
            impossible=self.impossible + other.impossible,
        )

    @property
    def log_e(self) -> float:
        """log of the mean of the products, which has mean 1 for samples."""
        return float(np.logaddexp.reduce(self.log_e_C + _LOG_PRIOR_C))

    @property
    def refuted(self) -> bool:
        """Whether they are no samples, at the error rate `FALSE_ALARM`."""
        return self.log_e > -math.log(FALSE_ALARM)

    @property
    def strongest(self) -> Alternative:
        """The alternative for which there is most evidence."""
        return ALTERNATIVES[int(np.argmax(self.log_e_C + _LOG_PRIOR_C))]

    def to_json(self) -> str:
        """The evidence as it is stored."""
        known = {"completions": self.completions, "tokens": self.tokens, "texts": self.texts}
        arrays = {"log_e": self.log_e_C.tolist(), "moments": self.moments.tolist(), "impossible": self.impossible}
        return json.dumps({**known, **arrays})

    @classmethod
    @reads_own_files("metadata of a shard, which the manifest hashes, or a journal's record, which has a checksum")
    def from_json(cls, text: str | bytes) -> "CompletionEvidence":
        """The reverse of `to_json`."""
        facts = parse_json(text)
        return cls(
            log_e_C=np.array(facts.pop("log_e"), dtype=np.float64),
            moments=np.array(facts.pop("moments"), dtype=np.float64),
            **facts,
        )


NO_EVIDENCE = CompletionEvidence(completions=0, tokens=0, log_e_C=np.zeros(len(ALTERNATIVES)), moments=np.zeros(4))


def of_tokens(
    tokens_N: NDArray[np.int32], ids_NK: NDArray[np.int32], log_p_NK: NDArray[np.float32], tolerance: float
) -> CompletionEvidence:
    """Evidence of the tokens of a completion. `log_p_NK`: of the distributions as sampled from; -inf for tokens that cannot be
    sampled. `tolerance`: nats per token by which their mean log p may differ from that of what was sampled from."""
    listed_NK = np.isfinite(log_p_NK)
    log_p_NK = np.where(listed_NK, log_p_NK, 0.0).astype(np.float64)
    p_NK = np.where(listed_NK, np.exp(log_p_NK), 0.0)
    is_it_NK = (ids_NK == tokens_N[:, None]) & listed_NK
    rest_N, least_N = np.maximum(1.0 - p_NK.sum(1), 0.0), log_p_NK.min(1)
    found_N = np.where(is_it_NK.any(1), (is_it_NK * log_p_NK).sum(1), least_N)

    def log_e(powers: list[float]) -> NDArray[np.float64]:
        by_power = []
        for power in powers:
            mean_N = (p_NK * np.exp(-power * log_p_NK)).sum(1) + rest_N * np.exp(-power * least_N)
            by_power.append(-power * found_N - np.log(mean_N) - abs(power) * tolerance)
        return np.stack(by_power, -1)

    log_e_C = np.concatenate(
        [log_e(_signed(_LAMBDAS)).sum(0), *_of_part(log_e(_signed(_PART_LAMBDAS))), np.zeros(_OTHERS)]
    )
    mean_N, squares_N = (p_NK * log_p_NK).sum(1) + rest_N * least_N, (p_NK**2).sum(1)
    variance_N = (p_NK * log_p_NK**2).sum(1) + rest_N * least_N**2 - mean_N**2
    covariance_N = (p_NK**2 * log_p_NK).sum(1) - squares_N * mean_N
    count = len(tokens_N)
    moments = np.array(
        [variance_N.sum(), covariance_N.sum(), 0.5 * (1.0 - squares_N).sum(), tolerance * count], dtype=np.float64
    )
    return CompletionEvidence(completions=1, tokens=count, log_e_C=log_e_C, moments=moments)


def _of_part(log_e_NL: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """log e of each opening and share of `_OF_PART`, in its order."""
    log_e_of_parts = []
    for opening in _OPENINGS:
        log_e_L = log_e_NL[:opening].sum(0)
        for share in _SHARES:
            log_e_of_parts.append(
                log_e_L if share == 1 else np.logaddexp(math.log1p(-share), math.log(share) + log_e_L)
            )
    return log_e_of_parts


class FirstToken(NamedTuple):
    """The first token of an answer, with its log p as sampled from."""

    token: int
    log_p: float


class FirstTokens:
    """How often answers began with which token."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def evidence(self, first: FirstToken, vocabulary: int) -> CompletionEvidence:
        """Evidence of the next answer, which is counted then. A token that no answer began with has its part of the share that
        new tokens have had so far (as in prediction by partial matching, method C)."""
        new, seen = max(len(self._counts), 1), self._counts.total()
        q = (self._counts[first.token] + new / vocabulary) / (seen + new)
        self._counts[first.token] += 1
        excess = min(q * math.exp(-first.log_p), _MOST) - 1.0
        log_e_C = np.zeros(len(ALTERNATIVES))
        log_e_C[-_OTHERS : -len(_OF_IMPOSSIBLE)] = [math.log1p(share * excess) for share in _MIXED_SHARES]
        return replace(NO_EVIDENCE, log_e_C=log_e_C)


def of_answer(possible: bool, exact: bool, sampled: CompletionEvidence = NO_EVIDENCE) -> CompletionEvidence:
    """Evidence of an answer: whether the target can have chosen every token, and what `of_tokens` states of them. `exact`: its
    token ids are known."""
    chosen = _of_choice(possible, exact)
    return replace(chosen + sampled, completions=1)


def _of_choice(possible: bool, exact: bool) -> CompletionEvidence:
    log_e_C, tolerated = np.zeros(len(ALTERNATIVES)), _IMPOSSIBLE[exact]
    log_e_C[-len(_OF_IMPOSSIBLE) :] = [
        math.log((1 - share) / (1 - tolerated)) if possible else math.log(share / tolerated)
        for share in _MORE_IMPOSSIBLE[exact]
    ]
    return replace(NO_EVIDENCE, completions=1, log_e_C=log_e_C, texts=int(not exact), impossible=int(not possible))


class SamplePower(NamedTuple):
    """What nine in ten such tests find."""

    shift: float  # of mean log p, in nats per token
    kl_temperature: float  # the KL divergence, in nats per token, of the temperature that shifts it by so much
    kl_noise: float  # that of independent normal noise of every logit that does


def power(evidence: CompletionEvidence) -> SamplePower | None:
    """What completions like these, as many and as long, find; None where nothing is sampled.

    In a product with lambda, n tokens whose mean log p is lower by `shift` add n (lambda (shift - tolerance) - lambda^2 V / 2),
    with a standard deviation of lambda sqrt(n V), where V is the variance of log p. A temperature shifts it by V per unit of
    inverse temperature. Noise of variance s^2 shifts it by s^2 Cov(p, log p) and has the KL divergence s^2 (1 - sum of p^2) / 2.
    """
    if not evidence.tokens:
        return None
    variance, covariance, spread, tolerance = evidence.moments / evidence.tokens
    if variance <= 0 or covariance <= 0:
        return None
    needed = -math.log(FALSE_ALARM) - float(_LOG_PRIOR_C[0])
    shift = min(
        needed / (evidence.tokens * exponent)
        + exponent * variance / 2
        + tolerance
        + _POWER * math.sqrt(variance / evidence.tokens)
        for exponent in _LAMBDAS
    )
    return SamplePower(shift, shift**2 / (2 * variance), shift / covariance * spread)


def findable_share(evidence: CompletionEvidence) -> float:
    """The smallest share of answers with impossible tokens that a log of as many answers is refused for, on average."""
    exact = evidence.completions - evidence.texts
    needed = -math.log(FALSE_ALARM) - float(_LOG_PRIOR_C[-1])

    def log_e(share: float) -> float:
        both = [
            (share * _of_choice(False, is_exact).log_e_C + (1 - share) * _of_choice(True, is_exact).log_e_C) * count
            for is_exact, count in ((True, exact), (False, evidence.texts))
        ]
        return float((both[0] + both[1])[-len(_OF_IMPOSSIBLE) :].max())

    shares = np.linspace(0.0, 1.0, 1001)
    enough = [float(share) for share in shares if log_e(float(share)) > needed]
    return enough[0] if enough else 1.0
