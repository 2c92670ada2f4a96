"""Which drafted tokens stand: the law of what is emitted, without sampling."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.speculation.verification import acceptance, residual, verify_tokens

V, EDGE = 3, 1e-9
Prefix = tuple[int, ...]
Law = Callable[[Prefix], NDArray[np.float64]]


def _law(seed: int, kind: str) -> Law:
    """A distribution for every prefix: smooth, with zeros, or one-hot."""

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


def _rounds(p: Law, q: Law, gamma: int) -> Iterator[tuple[Prefix, list[float], float]]:
    """(draft, uniform numbers, probability) of one representative of every outcome a round can have, found from the
    definition: drafts from q, accepted below min(1, p/q) and nowhere above."""
    for draft in itertools.product(range(V), repeat=gamma):
        q_GV = np.array([q(draft[:i]) for i in range(gamma)])
        p_GV = np.array([p(draft[:i]) for i in range(gamma + 1)])
        chance = float(np.prod([q_GV[i, token] for i, token in enumerate(draft)]))
        if chance == 0:
            continue
        a = [min(1.0, p_GV[i, token] / q_GV[i, token]) for i, token in enumerate(draft)]
        for stood in range(gamma + 1):
            if 0 in a[:stood] or (stood < gamma and a[stood] == 1):
                continue
            weight = chance * float(np.prod(a[:stood])) * (1 if stood == gamma else 1 - a[stood])
            left_V = p_GV[stood] if stood == gamma else np.maximum(p_GV[stood] - q_GV[stood], 0)
            stands = [value - EDGE if index < stood else value + EDGE for index, value in enumerate(a)]
            stands = [min(max(value, 0.0), 1 - EDGE) for value in stands]
            for uniform, share in _cells(left_V):
                yield draft, [*stands, uniform], weight * share


def _emitted_law(p: Law, q: Law, gamma: int) -> dict[Prefix, float]:
    """The law of the next gamma + 1 tokens: one round of verify_tokens, then p where the round was shorter."""
    drafts, uniforms, weights = (list(column) for column in zip(*_rounds(p, q, gamma), strict=True))
    with np.errstate(divide="ignore"):
        log_p = np.log([[p(draft[:i]) for i in range(gamma + 1)] for draft in drafts])
        log_q = np.log([[q(draft[:i]) for i in range(gamma)] for draft in drafts])
    verdict = verify_tokens(
        torch.from_numpy(log_p),
        torch.from_numpy(log_q),
        torch.tensor(drafts),
        torch.tensor(uniforms, dtype=torch.float64),
    )
    law: dict[Prefix, float] = defaultdict(float)
    rows = zip(drafts, weights, verdict.accepted_B.tolist(), verdict.next_B.tolist(), strict=True)
    for draft, weight, accepted, following in rows:
        said = (*draft[:accepted], following)
        for rest in itertools.product(range(V), repeat=gamma + 1 - len(said)):
            law[said + rest] += weight * _chance(p, said + rest, len(said))
    return law


def _chance(p: Law, text: Prefix, begin: int = 0) -> float:
    return float(np.prod([p(text[:i])[text[i]] for i in range(begin, len(text))]))


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("smooth", "smooth"),
        ("smooth", "zeros"),
        ("zeros", "smooth"),
        ("zeros", "zeros"),
        ("smooth", "greedy"),
        ("zeros", "greedy"),
        ("greedy", "smooth"),
        ("greedy", "greedy"),
    ],
)
def test_what_is_emitted_has_the_law_of_the_target(gamma: int, target: str, draft: str) -> None:
    """Over all drafts and all cells of uniform numbers, the tokens of a round have exactly the target's law."""
    for seed in range(4):
        p, q = _law(seed, target), _law(seed + 100, draft)
        law = _emitted_law(p, q, gamma)
        for text in itertools.product(range(V), repeat=gamma + 1):
            assert _chance(p, text) == pytest.approx(law[text], abs=1e-12)


@pytest.mark.parametrize("kinds", [("smooth", "smooth"), ("zeros", "greedy"), ("greedy", "zeros"), ("zeros", "zeros")])
def test_identity_of_speculative_sampling(kinds: tuple[str, str]) -> None:
    """min(p, q) + (1 - sum min(p, q)) * residual = p, also where either has no mass."""
    for seed in range(50):
        p_V, q_V = (torch.from_numpy(_law(seed + 7 * i, kind)((i,))) for i, kind in enumerate(kinds))
        both_V, left_V = torch.minimum(p_V, q_V), residual(p_V[None], q_V[None])[0]

        torch.testing.assert_close(p_V, both_V + (1 - both_V.sum()) * left_V / left_V.sum(), atol=1e-15, rtol=0)


def test_no_mass_is_left_where_draft_equals_target() -> None:
    """The residual of p against itself is p: rounding may ask for it, and it must be a distribution."""
    p_BV = torch.tensor([[0.25, 0.75]])

    assert torch.equal(p_BV, residual(p_BV, p_BV))


def test_acceptance_at_its_edges() -> None:
    """0 where p is 0 (whatever q), 1 where only q is 0 or where p exceeds q, p / q between."""
    p, q = torch.tensor([0.0, 0.0, 0.3, 0.6, 0.1]), torch.tensor([0.5, 0.0, 0.0, 0.3, 0.4])

    torch.testing.assert_close(torch.tensor([0.0, 0.0, 1.0, 1.0, 0.25]), acceptance(p.log(), q.log()))


def test_gamma_zero_emits_from_the_target() -> None:
    """Without a draft a round is one draw from p."""
    log_p = torch.tensor([[[0.25, 0.75]], [[0.25, 0.75]]], dtype=torch.float64).log()
    uniform = torch.tensor([[0.2], [0.3]], dtype=torch.float64)
    verdict = verify_tokens(log_p, log_p[:, :0], torch.zeros(2, 0, dtype=torch.long), uniform)

    assert ([0, 0], [0, 1]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())


def test_nothing_stands_after_the_first_rejection() -> None:
    """Tokens behind a rejected one are dropped, even where they would have been accepted."""
    p = torch.tensor([[[0.1, 0.9], [0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]], dtype=torch.float64)
    verdict = verify_tokens(p.log(), q.log(), torch.tensor([[0, 0]]), torch.tensor([[0.5, 0.0, 0.0]]))

    assert ([0], [1]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())
