"""Which draft tokens are accepted: edges of the rules. What is emitted has the law of the target in `test_exact_law.py`."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pipeline.speculation.verification import (
    VerificationResult,
    acceptance,
    residual,
    verify_block,
    verify_greedy,
    verify_tokens,
)

V = 3


def _law(seed: int, kind: str) -> torch.Tensor:
    """A random distribution: smooth, with a token of no mass, or one-hot."""
    p_V = np.random.default_rng(seed).dirichlet(np.ones(V))
    if kind == "greedy":
        p_V = np.eye(V)[p_V.argmax()]
    if kind == "zeros":
        p_V[p_V.argmin()] = 0
    return torch.from_numpy(p_V / p_V.sum())


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
        p_V, q_V = (_law(seed + 100 * i, kind) for i, kind in enumerate(kinds))
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


def test_a_greedy_round_accepts_up_to_the_first_difference() -> None:
    """The argmax follows after the accepted tokens: at a difference, after all tokens, or at the row's own length."""
    best_BT = torch.tensor([[4, 5, 6], [4, 5, 6], [4, 5, 6], [4, 5, 6]])
    draft_BG = torch.tensor([[4, 5], [4, 0], [0, 5], [4, 5]])
    verdict = verify_greedy(best_BT, draft_BG, torch.tensor([2, 2, 2, 1]))

    assert ([2, 1, 0, 1], [6, 5, 4, 5]) == (verdict.accepted_B.tolist(), verdict.next_B.tolist())
