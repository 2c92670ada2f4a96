"""What is read of a server's answers, and every way in which one can be wrong."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.servers.answers import BadAnswer, generated
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.vllm import Vllm
from pipeline.speculation.settings import Sampling
from tests.standin_server import VOCABULARY, StandIn, log_p_of

KEPT = 3
REQUEST = GenerateRequest(
    prompt=[20, 30, 40], sampling=Sampling(), max_tokens=4, seed=5, stop_tokens=[], ignore_eos=True, kept=KEPT
)
SCORE = ScoreRequest(ids=[20, 30, 40, 50], start=1, kept=KEPT)


def _answer(request: GenerateRequest | ScoreRequest) -> dict[str, Any]:
    api, server = Vllm(), StandIn()
    _, body = api.generate(request, "target") if isinstance(request, GenerateRequest) else api.score(request, "target")
    return dict(json.loads(json.dumps(server.right_answer(body))))


GENERATED, SCORED = _answer(REQUEST), _answer(SCORE)


def _read(answer: Any, request: GenerateRequest = REQUEST, vocabulary: int = VOCABULARY) -> Any:
    return Vllm().read_generated(request, answer, vocabulary)


def _read_scored(answer: Any, vocabulary: int = VOCABULARY) -> Any:
    return Vllm().read_scored(SCORE, answer, vocabulary)


def test_a_completion_is_read_with_its_likeliest_tokens() -> None:
    """Ids, log p, and the K likeliest tokens of each distribution, the likeliest first."""
    found = _read(GENERATED)
    ids = [20, 30, 40]
    for place, token in enumerate(found.tokens_N.tolist()):
        exact = log_p_of(ids)
        best = np.argsort(-exact)[:KEPT]
        assert best.tolist() == found.likeliest.ids_NK[place].tolist()
        assert exact[best] == pytest.approx(found.likeliest.log_p_NK[place], abs=1e-6)
        assert exact[token] == pytest.approx(found.log_p_N[place], abs=1e-6)
        ids.append(token)
    assert (7, False) == (len(ids), found.stopped)


def test_a_scoring_is_read_from_the_asked_token_on() -> None:
    """log p of each token, also of one that is not among the likeliest."""
    found = _read_scored(SCORED)
    expected = [log_p_of(SCORE.ids[:place])[SCORE.ids[place]] for place in range(1, 4)]
    assert expected == pytest.approx(found.log_p_N, abs=1e-6)
    assert (3, KEPT) == found.likeliest.ids_NK.shape


def test_tokens_that_the_pair_does_not_share_have_no_mass() -> None:
    """The target's logits may have more columns than the pair: in the place of such a token is another one, with log p -inf,
    last; no token is there twice."""
    top = [{1: -1.0, 32: -0.5, 2: -2.0}, {0: -1.0, 40: -0.5, 50: -2.0}]  # the last one of the pair is 31
    rows = generated([1, 0], [-1.0, -1.0], top, kept=3, stopped=False, may_stop=True, limit=2, vocabulary=32).likeliest
    assert rows is not None
    assert [[1, 2, 0], [0, 1, 2]] == rows.ids_NK.tolist()
    assert [[-1.0, -2.0, -np.inf], [-1.0, -np.inf, -np.inf]] == rows.log_p_NK.tolist()


def _choice(**changes: Any) -> dict[str, Any]:
    answer = copy.deepcopy(GENERATED)
    answer["choices"][0] |= changes
    return answer


def _logprobs(**changes: Any) -> dict[str, Any]:
    return _choice(logprobs=GENERATED["choices"][0]["logprobs"] | changes)


def _top(last: dict[int, Any]) -> dict[str, Any]:
    top = [dict(row) for row in GENERATED["choices"][0]["logprobs"]["top_logprobs"]]
    return _logprobs(top_logprobs=[*top[:-1], {f"token_id:{token}": one for token, one in last.items()}])


def _tokens(*tokens: Any) -> dict[str, Any]:
    found = _logprobs(tokens=[f"token_id:{token}" for token in tokens])
    found["choices"][0]["token_ids"] = list(tokens)
    return found


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "no completion in the answer"),
        ({"choices": [{}, {}]}, "no completion in the answer"),
        (
            _choice(prompt_token_ids=None),
            "no token ids in the answer; the server is older than vLLM 0.11, or is not vLLM",
        ),
        (_choice(prompt_token_ids=[1]), "the answer is to another prompt"),
        (_choice(logprobs=None), r"no completion with token ids and log-probabilities \(TypeError\)"),
        (_logprobs(top_logprobs=None), r"no completion with token ids and log-probabilities \(TypeError\)"),
        (_choice(finish_reason="abort"), "finish_reason is 'abort'"),
        (_choice(finish_reason="error"), "finish_reason is 'error'"),
        (_choice(token_ids=[1, 2, 3, 4]), "the token ids of the completion and of its log-probabilities differ"),
        (_logprobs(token_logprobs=None), "no log-probabilities"),
        (_logprobs(token_logprobs=[-1.0]), "1 log-probabilities for 4 tokens"),
        (_logprobs(token_logprobs={}), "the log-probabilities are not a list"),
        (_logprobs(token_logprobs=[-1, -1, -1, None]), "a log-probability is not a number"),
        (_logprobs(token_logprobs=[-1, -1, -1, float("nan")]), "invalid log-probability nan"),
        (_logprobs(token_logprobs=[-1, -1, -1, 0.5]), "invalid log-probability 0.5"),
        (_logprobs(token_logprobs=[-1, -1, -1, -(10**400)]), "invalid log-probability -1000000000000000000"),
        (_logprobs(top_logprobs=[]), "0 lists of likeliest tokens for 4 tokens"),
        (_top({1: -1.0}), "1 likeliest tokens where 3 were asked for"),
        (_top({1: None, 2: -1.0, 3: -1.0}), "a log-probability is not a number"),
        (_top({1: float("nan"), 2: -1.0, 3: -1.0}), "log-probability nan"),
        (_top({10**30: -1.0, 2: -1.0, 3: -1.0}), "among the likeliest"),
        (_tokens(1, 2, 3), "3 tokens where 4 were asked for"),
        (_tokens(1, 2, 3, VOCABULARY), f"token {VOCABULARY} is beyond the vocabulary of {VOCABULARY} tokens"),
        (_tokens(1, 2, 3, 10**9), f"token {10**9} is beyond the vocabulary of {VOCABULARY} tokens"),
        (_tokens(), "0 tokens where 4 were asked for"),
    ],
)
def test_an_impossible_completion_is_refused(answer: Any, said: str) -> None:
    """With what is wrong, so that it is asked again."""
    with pytest.raises(BadAnswer, match=said):
        _read(answer)


def test_a_continuation_that_ignores_eos_has_all_its_tokens() -> None:
    """A server that stops there does not know `ignore_eos`."""
    answer = _tokens(1, 2, 3)
    answer["choices"][0]["finish_reason"] = "stop"
    answer["choices"][0]["logprobs"]["token_logprobs"].pop()
    answer["choices"][0]["logprobs"]["top_logprobs"].pop()
    with pytest.raises(BadAnswer, match="3 tokens where 4 were asked for"):
        _read(answer)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "no log-probability for each of the 4 tokens of the prompt"),
        ([None], "no log-probability for each of the 4 tokens of the prompt"),
        ([None, None, None, None], r"prompt_logprobs in an unknown form \(AttributeError\)"),
        ([None, *[{str(n): {"logprob": -1.0} for n in range(4)}] * 3], "no log-probability for token 30 of the prompt"),
    ],
)
def test_an_impossible_scoring_is_refused(rows: Any, said: str) -> None:
    """With what is wrong."""
    answer = copy.deepcopy(SCORED)
    answer["choices"][0]["prompt_logprobs"] = rows
    with pytest.raises(BadAnswer, match=said):
        _read_scored(answer)


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, item in inner for one in _places(item, (*path, key)))]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_an_answer_changed_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    """Any JSON in any place: BadAnswer, or a completion of the right shape; never another error."""
    raw, read = data.draw(st.sampled_from([(GENERATED, _read), (SCORED, _read_scored)]))
    answer: Any = {"answer": copy.deepcopy(raw)}
    path = data.draw(st.sampled_from(_places(answer)[1:]))
    place = answer
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(_VALUES)
    try:
        found = read(answer["answer"])
    except BadAnswer:
        return
    assert np.isfinite(found.log_p_N).all()
    assert (len(found.log_p_N), KEPT) == found.likeliest.ids_NK.shape
    assert ((found.likeliest.ids_NK >= 0) & (found.likeliest.ids_NK < VOCABULARY)).all()


def test_more_tokens_than_the_limit_are_refused() -> None:
    """Of an engine that ends a completion late."""
    with pytest.raises(BadAnswer, match="3 tokens where 2 were asked for"):
        generated([1, 2, 3], [-1.0] * 3, None, kept=2, stopped=False, may_stop=True, limit=2, vocabulary=32)
