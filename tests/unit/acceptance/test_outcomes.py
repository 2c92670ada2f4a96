"""One decode drawn from acceptance probabilities: what became of each token."""

import numpy as np
import pytest

from pipeline.acceptance.outcomes import draw_outcomes
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds


@pytest.mark.parametrize(
    ("convention", "a", "expected"),
    [
        (
            "transformers",
            [1, 0, 1, 1, 1, 1],
            "acaabp",
        ),  # a correction, then a full block; nothing is drafted for the last token
        ("transformers", [0, 0, 0], "ccp"),  # nothing is drafted for the last token
        ("user", [1, 1, 1, 1], "paab"),  # the prefill emits the first token
        ("vllm", [1, 1, 1, 1, 1], "paaba"),  # blocks are not clipped at the end
        ("user", [], ""),
    ],
)
def test_letters_follow_the_rounds(convention: str, a: list[float], expected: str) -> None:
    """Rounds of gamma 2 under each convention, where acceptance is certain."""
    a_T = np.array(a, dtype=np.float64)
    assert expected == draw_outcomes(a_T, np.full(len(a), 0.5), 2, CONVENTIONS[convention])


@pytest.mark.parametrize("convention", ["transformers", "user", "vllm"])
def test_the_mean_number_of_rounds_is_the_examinations(convention: str) -> None:
    """Over 4,000 draws. Tolerance: 5 standard errors, so a false alarm has a chance below 1e-6."""
    rng, rule = np.random.default_rng(0), CONVENTIONS[convention]
    a_T = np.append(rng.random(20), [0.0, 0.0])  # tokens past the end are rejected, so that every round ends inside
    drawn = np.array([_rounds(draw_outcomes(a_T[:20], rng.random(20), 3, rule), rule.start) for _ in range(4000)])
    expected = expected_rounds(a_T[None], np.array([20]), 3, rule).rounds_B[0]
    assert abs(drawn.mean() - expected) < 5 * drawn.std() / 4000**0.5


def _rounds(letters: str, start: int) -> int:
    """Each round ends with a correction, a bonus token or a token without a draft; the last one may be cut at the end."""
    after = letters[start:]
    return sum(letter != "a" for letter in after) + after.endswith("a")


def test_lengths_must_agree() -> None:
    """Each token needs its own random number."""
    with pytest.raises(ValueError, match="one uniform number for each token"):
        draw_outcomes(np.ones(3), np.ones(2), 2, CONVENTIONS["user"])
