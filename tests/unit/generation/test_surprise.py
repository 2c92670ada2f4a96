"""Whether completions are samples of the distributions that were reported with them."""

import numpy as np
import pytest

from pipeline.errors import UnderstudyError
from pipeline.generation.surprise import Surprise, require_samples, surprise

COMPLETIONS, TOKENS, LISTED = 128, 64, 20


def _completions(rng: np.random.Generator, wrong: int, listed: int = LISTED) -> list[Surprise]:
    """Samples of random distributions; the first `wrong` tokens of each are drawn from others, as in answers to other prompts.
    The `listed` likeliest of the tokens are known."""
    found = []
    for _ in range(COMPLETIONS):
        p_NK = rng.dirichlet(np.full(LISTED, 0.3), TOKENS)
        drawn_from_NK = p_NK.copy()
        drawn_from_NK[:wrong] = rng.dirichlet(np.full(LISTED, 0.3), wrong)
        tokens_N = (drawn_from_NK.cumsum(1) > rng.random((TOKENS, 1))).argmax(1).astype(np.int32)
        ids_NK = np.argsort(-p_NK, axis=1)[:, :listed].astype(np.int32)
        log_p_NK = np.log(np.take_along_axis(p_NK, ids_NK, 1)).astype(np.float32)
        found.append(surprise(tokens_N, ids_NK, log_p_NK))
    return found


@pytest.mark.parametrize("listed", [8, LISTED])
def test_samples_pass(listed: int) -> None:
    """50 shards; by chance one of a million fails. Tokens that are not listed are sampled too."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        require_samples(_completions(rng, 0, listed), recorded=True)


@pytest.mark.parametrize("listed", [8, LISTED])
def test_answers_to_other_prompts_are_found_by_their_first_tokens(listed: int) -> None:
    """Also where most tokens are not listed. Only the first token tells, and the rest of an answer follows from itself. The
    total over 64 tokens would not show it: the one token moves it by less than 5 standard errors."""
    found = _completions(np.random.default_rng(1), 1, listed)
    with pytest.raises(UnderstudyError, match="they belong to other prompts"):
        require_samples(found, recorded=True)
    totals = [one.total for one in found]
    assert abs(np.sum(totals)) < 5 * np.sqrt(np.sum(np.square(totals)))


def test_a_few_completions_are_no_test() -> None:
    """Below 64 a total says too little."""
    require_samples(_completions(np.random.default_rng(2), TOKENS)[:63])
    with pytest.raises(UnderstudyError, match="does the server's sampler work"):
        require_samples(_completions(np.random.default_rng(2), TOKENS)[:64])


def test_a_small_bias_is_rounding() -> None:
    """0.05 nats per token is the bound; these totals have no spread, so that chance explains nothing."""
    require_samples([Surprise(0.04 * 64, 0.0, 64, 4)] * 128)
    with pytest.raises(UnderstudyError):
        require_samples([Surprise(0.06 * 64, 0.0, 64, 4)] * 128)
