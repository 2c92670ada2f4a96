"""Which draft tokens are accepted: the exact distribution of emitted tokens, without sampling."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.speculation.sampling import check_weight_sums
from pipeline.speculation.verification import (
    VerificationResult,
    acceptance,
    residual,
    verify_block,
    verify_greedy,
    verify_imposed,
    verify_tokens,
)

V, EDGE = 3, 1e-9
Prefix = tuple[int, ...]
Law = Callable[[Prefix], NDArray[np.float64]]
Length = Callable[[Prefix, int], int]  # how many tokens of a draft count
KINDS = [
    ("smooth", "smooth"),
    ("smooth", "zeros"),
    ("zeros", "smooth"),
    ("zeros", "zeros"),
    ("smooth", "greedy"),
    ("zeros", "greedy"),
    ("greedy", "smooth"),
    ("greedy", "greedy"),
]


def _law(seed: int, kind: str) -> Law:
    """A distribution for every prefix: smooth, with zeros, or one-hot."""

    @cache
    def of(prefix: Prefix) -> NDArray[np.float64]:
        p_V = np.random.default_rng([seed, *prefix, len(prefix)]).dirichlet(np.ones(V))
        if kind == "greedy":
            p_V = np.eye(V)[p_V.argmax()]
        if kind == "zeros":
            p_V[p_V.argmin()] = 0
        return np.array(p_V / p_V.sum())

    return of


def _cells(weights_V: NDArray[np.float64]) -> Iterator[tuple[float, float]]:
    """The uniform numbers just inside each token's cell, at both ends, each with half of the cell's width."""
    ends = np.cumsum(weights_V / weights_V.sum())
    for low, high in zip([0.0, *ends[:-1]], ends, strict=True):
        if high > low:
            yield low + EDGE, (high - low) / 2
            yield high - EDGE, (high - low) / 2


def _whole(draft: Prefix, gamma: int) -> int:
    return gamma


def _ragged(draft: Prefix, gamma: int) -> int:
    """A length that depends on what was drafted so far: never less than was looked at, as a stopping rule must."""
    return next((index + 1 for index, token in enumerate(draft) if token == 0), gamma)


def _none(draft: Prefix, gamma: int) -> int:
    return 0


class _Outcomes:
    """One representative of every outcome a round can have, with its probability: drafts from q, cells of the uniform
    numbers from the definition of either rule."""

    def __init__(self, p: Law, q: Law, gamma: int, length: Length) -> None:
        self.p, self.q, self.gamma = p, q, gamma
        self.drafts: list[Prefix] = []
        self.drafted: list[int] = []
        self.uniforms: list[list[float]] = []
        self.weights: list[float] = []
        for draft in itertools.product(range(V), repeat=gamma):
            q_GV = np.array([q(draft[:i]) for i in range(gamma)])
            chance = float(np.prod([q_GV[i, token] for i, token in enumerate(draft)]))
            if chance > 0:
                self.start(draft, length(draft, gamma), chance)

    def start(self, draft: Prefix, drafted: int, chance: float) -> None:
        raise NotImplementedError

    def add(self, draft: Prefix, drafted: int, weight: float, stands: list[float], left_V: NDArray[np.float64]) -> None:
        """All cells of the token that follows, where the uniform numbers before it are `stands`."""
        padded = [min(max(value, 0.0), 1 - EDGE) for value in stands] + [0.0] * (self.gamma - len(stands))
        for uniform, share in _cells(left_V):
            self.drafts.append(draft)
            self.drafted.append(drafted)
            self.uniforms.append([*padded, uniform])
            self.weights.append(weight * share)

    def verdict(self, rule: Callable[..., VerificationResult]) -> VerificationResult:
        p_BTV = np.array([[self.p(draft[:i]) for i in range(self.gamma + 1)] for draft in self.drafts])
        q_BGV = np.array([[self.q(draft[:i]) for i in range(self.gamma)] for draft in self.drafts])
        verdict = rule(
            torch.from_numpy(p_BTV),
            torch.from_numpy(q_BGV),
            torch.tensor(self.drafts),
            torch.tensor(self.drafted),
            torch.tensor(self.uniforms, dtype=torch.float64),
        )
        check_weight_sums(verdict.sums_B)
        return verdict

    def law(self, rule: Callable[..., VerificationResult]) -> dict[Prefix, float]:
        """The law of the next gamma + 1 tokens: one round, then p where it was shorter."""
        law: dict[Prefix, float] = defaultdict(float)
        verdict = self.verdict(rule)
        rows = zip(self.drafts, self.weights, verdict.accepted_B.tolist(), verdict.next_B.tolist(), strict=True)
        for draft, weight, accepted, following in rows:
            said = (*draft[:accepted], following)
            for rest in itertools.product(range(V), repeat=self.gamma + 1 - len(said)):
                law[said + rest] += weight * _chance(self.p, said + rest, len(said))
        return law

    def accepted(self, rule: Callable[..., VerificationResult]) -> float:
        """Expected number of drafted tokens that stand."""
        return float(np.dot(self.weights, self.verdict(rule).accepted_B.numpy()))


class _TokenOutcomes(_Outcomes):
    """Accepted below min(1, p/q) and nowhere above."""

    def start(self, draft: Prefix, drafted: int, chance: float) -> None:
        p_GV = [self.p(draft[:i]) for i in range(drafted + 1)]
        q_GV = [self.q(draft[:i]) for i in range(drafted)]
        a = [min(1.0, p_GV[i][draft[i]] / q_GV[i][draft[i]]) for i in range(drafted)]
        for stood in range(drafted + 1):
            if 0 in a[:stood] or (stood < drafted and a[stood] == 1):
                continue
            weight = chance * float(np.prod(a[:stood])) * (1 if stood == drafted else 1 - a[stood])
            left_V = p_GV[stood] if stood == drafted else np.maximum(p_GV[stood] - q_GV[stood], 0)
            stands = [value - EDGE if index < stood else value + EDGE for index, value in enumerate(a)]
            self.add(draft, drafted, weight, stands, left_V)


class _BlockOutcomes(_Outcomes):
    """arXiv 2403.10444, algorithm 2, read literally: tau is the last i whose number is below h_i, whatever came before."""

    def start(self, draft: Prefix, drafted: int, chance: float) -> None:
        w = [1.0]
        for i in range(drafted):
            w.append(min(1.0, w[-1] * self.p(draft[:i])[draft[i]] / self.q(draft[:i])[draft[i]]))
        h = []
        for i in range(1, drafted + 1):
            left = np.maximum(w[i] * self.p(draft[:i]) - self.q(draft[:i]), 0).sum() if i < drafted else 0.0
            below = left + 1 - w[i]
            h.append(w[i] if i == drafted else left / below if below > 0 else 1.0)
        for keeps in itertools.product((False, True), repeat=drafted):
            weight = chance * float(np.prod([h_i if keep else 1 - h_i for h_i, keep in zip(h, keeps, strict=True)]))
            if weight == 0:
                continue
            tau = max((i + 1 for i, keep in enumerate(keeps) if keep), default=0)
            p_V, q_V = self.p(draft[:tau]), self.q(draft[:tau])
            left_V = p_V if tau == drafted else np.maximum(w[tau] * p_V - q_V, 0)
            if left_V.sum() < 1e-13:  # what only rounding can ask for
                assert weight < 1e-12
                continue
            stands = [h_i - EDGE if keep else h_i + EDGE for h_i, keep in zip(h, keeps, strict=True)]
            self.add(draft, drafted, weight, stands, left_V)


OUTCOMES = {"token": (_TokenOutcomes, verify_tokens), "block": (_BlockOutcomes, verify_block)}


def _chance(p: Law, text: Prefix, begin: int = 0) -> float:
    return float(np.prod([p(text[:i])[text[i]] for i in range(begin, len(text))]))


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(("target", "draft"), KINDS)
@pytest.mark.parametrize("method", OUTCOMES)
def test_what_is_emitted_has_the_law_of_the_target(method: str, gamma: int, target: str, draft: str) -> None:
    """Over all drafts and all cells of uniform numbers, emitted tokens have exactly the target's distribution, also for
    rows with no, all, or an adaptive number of draft tokens."""
    outcomes, rule = OUTCOMES[method]
    lengths: list[Length] = [_whole, _ragged, _none] if gamma < 3 else [_whole, _ragged]
    for seed, length in itertools.product(range(2), lengths):
        p, q = _law(seed, target), _law(seed + 100, draft)
        law = outcomes(p, q, gamma, length).law(rule)
        for text in itertools.product(range(V), repeat=gamma + 1):
            assert _chance(p, text) == pytest.approx(law[text], abs=1e-12)


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(("target", "draft"), KINDS)
def test_a_block_accepts_at_least_as_many_tokens(gamma: int, target: str, draft: str) -> None:
    """In expectation at least as many, and strictly more for smooth distributions and more than one token; with one token
    both rules are equal."""
    gains = []
    for seed in range(3):
        laws = _law(seed, target), _law(seed + 100, draft)
        by = {name: kind(*laws, gamma, _whole).accepted(rule) for name, (kind, rule) in OUTCOMES.items()}
        gains.append(by["block"] - by["token"])

    assert min(gains) > -1e-12
    assert (max(gains) > 1e-3) == (gamma > 1 and (target, draft) in KINDS[:4])


@pytest.mark.parametrize("rule", [verify_tokens, verify_block])
def test_a_draft_equal_to_the_target_is_fully_accepted(rule: Callable[..., VerificationResult]) -> None:
    """With q = p every token is accepted, even at the largest uniform number, where block verification divides 0 by 0."""
    p_BTV = torch.full((1, 4, V), 1 / 3, dtype=torch.float64)
    ones = torch.full((1, 4), 1 - 2.0**-53, dtype=torch.float64)
    for drafted in range(4):
        verdict = rule(p_BTV, p_BTV[:, :3], torch.tensor([[0, 2, 1]]), torch.tensor([drafted]), ones)
        assert ([drafted], [2]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())


@pytest.mark.parametrize("rule", [verify_tokens, verify_block])
@pytest.mark.parametrize("side", ["p", "q"])
@pytest.mark.parametrize("uniform", [0.0, 0.999])
def test_a_distribution_of_nan_shows_in_what_is_drawn_from(
    rule: Callable[..., VerificationResult], side: str, uniform: float
) -> None:
    """NaN of the target always reaches the checked sums; NaN of the draft does too, or no token of it is accepted."""
    p_BTV = torch.full((1, 3, V), 1 / 3, dtype=torch.float64)
    q_BGV = p_BTV[:, :2].clone()
    (p_BTV if side == "p" else q_BGV).fill_(torch.nan)
    uniforms = torch.full((1, 3), uniform, dtype=torch.float64)
    verdict = rule(p_BTV, q_BGV, torch.tensor([[0, 1]]), torch.tensor([2]), uniforms)

    assert not bool(torch.isfinite(verdict.sums_B)) or (side == "q" and verdict.accepted_B.tolist() == [0])


@pytest.mark.parametrize("rule", [verify_tokens, verify_block])
def test_padding_behind_a_row_does_not_matter(rule: Callable[..., VerificationResult]) -> None:
    """Padding after `drafted` tokens, NaN included, changes neither the accepted tokens nor the next one."""
    generator = torch.Generator().manual_seed(0)
    p_BTV = torch.rand(64, 4, V, generator=generator, dtype=torch.float64).softmax(-1)
    q_BGV = torch.rand(64, 3, V, generator=generator, dtype=torch.float64).softmax(-1)
    draft_BG = torch.randint(V, (64, 3), generator=generator)
    uniform_BT = torch.rand(64, 4, generator=generator, dtype=torch.float64)
    for drafted in range(1, 3):
        cut = [*range(drafted), 3]
        short = rule(
            p_BTV[:, : drafted + 1],
            q_BGV[:, :drafted],
            draft_BG[:, :drafted],
            torch.full((64,), drafted),
            uniform_BT[:, cut],
        )
        p_BTV[:, drafted + 1 :], q_BGV[:, drafted:] = torch.nan, torch.nan
        long = rule(p_BTV, q_BGV, draft_BG, torch.full((64,), drafted), uniform_BT)
        for name, expected in short._asdict().items():
            assert torch.equal(expected, getattr(long, name)), name
        p_BTV, q_BGV = torch.nan_to_num(p_BTV, nan=1 / 3), torch.nan_to_num(q_BGV, nan=1 / 3)


@pytest.mark.parametrize("kinds", [("smooth", "smooth"), ("zeros", "greedy"), ("greedy", "zeros"), ("zeros", "zeros")])
def test_identity_of_speculative_sampling(kinds: tuple[str, str]) -> None:
    """min(p, q) + (1 - sum min(p, q)) * residual = p, also where either has no mass."""
    for seed in range(50):
        p_V, q_V = (torch.from_numpy(_law(seed + 7 * i, kind)((i,))) for i, kind in enumerate(kinds))
        both_V, left_V = torch.minimum(p_V, q_V), residual(p_V[None], q_V[None], p_V[None])[0]

        torch.testing.assert_close(p_V, both_V + (1 - both_V.sum()) * left_V / left_V.sum(), atol=1e-15, rtol=0)


def test_no_mass_is_left_where_draft_equals_target() -> None:
    """The residual of p against itself is p: rounding may lead to it, and it must be a distribution."""
    p_BV = torch.tensor([[0.25, 0.75]])

    assert torch.equal(p_BV, residual(p_BV, p_BV, p_BV))


def test_acceptance_at_its_edges() -> None:
    """0 where p is 0 (for any q), 1 where only q is 0 or p exceeds q, p / q in between; NaN stays NaN."""
    p, q = torch.tensor([0.0, 0.0, 0.3, 0.6, 0.1]), torch.tensor([0.5, 0.0, 0.0, 0.3, 0.4])

    torch.testing.assert_close(torch.tensor([0.0, 0.0, 1.0, 1.0, 0.25]), acceptance(p, q))
    assert bool(acceptance(torch.tensor([torch.nan]), torch.tensor([0.5])).isnan().all())


def test_gamma_zero_emits_from_the_target() -> None:
    """Without a draft a round draws one token from p."""
    p_BTV = torch.tensor([[[0.25, 0.75]], [[0.25, 0.75]]], dtype=torch.float64)
    uniform = torch.tensor([[0.2], [0.3]], dtype=torch.float64)
    nothing = torch.zeros(2, 0, dtype=torch.long)
    verdict = verify_tokens(p_BTV, p_BTV[:, :0], nothing, torch.zeros(2, dtype=torch.long), uniform)

    assert ([0, 0], [0, 1]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())


def test_nothing_is_accepted_after_the_first_rejection() -> None:
    """Tokens after a rejected one are dropped, even if they would have been accepted."""
    p = torch.tensor([[[0.1, 0.9], [0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]], dtype=torch.float64)
    verdict = verify_tokens(p, q, torch.tensor([[0, 0]]), torch.tensor([2]), torch.tensor([[0.5, 0.0, 0.0]]))

    assert ([0], [1]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())


def test_a_greedy_round_accepts_up_to_the_first_difference() -> None:
    """The argmax follows after the accepted tokens: at a difference, after all tokens, or at the row's own length."""
    best_BT = torch.tensor([[4, 5, 6], [4, 5, 6], [4, 5, 6], [4, 5, 6]])
    draft_BG = torch.tensor([[4, 5], [4, 0], [0, 5], [4, 5]])
    verdict = verify_greedy(best_BT, draft_BG, torch.tensor([2, 2, 2, 1]))

    assert ([2, 1, 0, 1], [6, 5, 4, 5]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())


def test_imposed_acceptance_is_what_is_accepted() -> None:
    """The accepted share by position is the product of the imposed rates, for any p and q (six standard deviations of
    20,000 rows at each of four lengths: false alarm below 1e-8); no row accepts more than it drafted."""
    imposed, rows = torch.tensor([0.9, 0.5, 0.7]), 20_000
    generator = torch.Generator().manual_seed(3)
    p_BTV = torch.rand(rows, 4, V, generator=generator, dtype=torch.float64).softmax(-1)
    q_BGV = torch.rand(rows, 3, V, generator=generator, dtype=torch.float64).softmax(-1)
    uniform_BT = torch.rand(rows, 4, generator=generator, dtype=torch.float64)
    draft_BG = torch.randint(V, (rows, 3), generator=generator)
    for drafted in range(4):
        count_B = torch.full((rows,), drafted)
        verdict = verify_imposed(imposed, p_BTV, q_BGV, draft_BG, count_B, uniform_BT)
        for position in range(3):
            chance = float(imposed[: position + 1].prod()) if position < drafted else 0.0
            found = float((verdict.accepted_B > position).double().mean())
            assert abs(chance - found) <= 6 * (chance * (1 - chance) / rows) ** 0.5
