"""A target behind llama-server, against a stand-in that speaks its protocol: completions, scorings, identity, refusals."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.server import ServerConfig
from pipeline.errors import UsageError
from pipeline.examination.served_model import served_model
from pipeline.servers.answers import BadAnswer, Generated
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.by_token import _joined
from pipeline.servers.connect import connect
from pipeline.servers.engines import asking_of
from pipeline.servers.identity import OtherWeights
from pipeline.servers.llama_cpp import Incomplete, LlamaCpp
from pipeline.servers.target import read_model
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import quiet
from tests.served import check_greedy, check_log_p, config_of, generate, identity_of, opened, some_prompts
from tests.standin_llama import StandInLlama, is_incomplete
from tests.standin_server import EOS, VOCABULARY, log_p_of, running


def _config(*servers: StandInLlama, **changes: Any) -> ServerConfig:
    return config_of(*servers, api="llama.cpp", **changes)


def test_greedy_completions_are_the_models(tmp_path: Path) -> None:
    """Ids, the length at EOS, the tokens past the end of examination prompts and the likeliest tokens, although the server ends
    at EOS and leaves out log-probabilities of tokens that end within a character."""
    with running(StandInLlama()) as server:
        found = generate(_config(server), some_prompts(12, "examination"), tmp_path / "out")
    assert 12 == len(found)
    check_greedy(found)
    assert any(is_incomplete(token) for item in found for token in item.tokens.tolist())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=10, top_p=0.8, min_p=0.05)])
def test_log_p_is_that_of_the_distribution_as_sampled_from(tmp_path: Path, sampling: Sampling) -> None:
    """At temperature 1, and with a top_k that the server can list."""
    with running(StandInLlama()) as server:
        found = generate(_config(server), some_prompts(4), tmp_path / "out", sampling)
    check_log_p(found, sampling)


def test_requests_state_what_the_servers_defaults_would_decide() -> None:
    """The samplers that run and their order, as we apply them; the server's own ignore_eos is never used."""
    api = asking_of("llama.cpp", "target", VOCABULARY).api
    sampling = Sampling(0.7, top_k=10, top_p=0.8, min_p=0.05)
    request = GenerateRequest(
        prompt=[1, 2], sampling=sampling, max_tokens=3, stop_tokens=(EOS,), ignore_eos=True, kept=20
    )
    path, body = api.generate(request, "target")
    assert "/completion" == path
    assert ["temperature", "top_k", "top_p", "min_p"] == body["samplers"]
    stated = {
        "temperature": 0.7,
        "top_k": 10,
        "top_p": 0.8,
        "min_p": 0.05,
        "n_probs": 20,
        "n_predict": 3,
        "ignore_eos": False,
    }
    assert stated.items() <= body.items()


def test_any_token_is_scored() -> None:
    """log p is exact of unlikely tokens, of those without log-probabilities of their own, and of the end of sequence."""
    ids = [30, 31, *range(8), 5, 500, EOS, 13]

    async def scored(server: StandInLlama) -> Any:
        async with opened(_config(server)) as endpoint:
            request = ScoreRequest(ids=ids, start=2, kept=3)
            return await asking_of("llama.cpp", "target", VOCABULARY).score(endpoint, request)

    with running(StandInLlama()) as server:
        found, _ = asyncio.run(scored(server))
    assert [log_p_of(ids[:place])[ids[place]] for place in range(2, len(ids))] == pytest.approx(found.log_p_N, abs=1e-5)
    assert (len(ids) - 2, 3) == found.likeliest.ids_NK.shape


def test_what_the_server_says_of_its_model() -> None:
    """Context length of a slot, version and path come from /props."""

    async def read(server: StandInLlama) -> Any:
        async with opened(_config(server)) as endpoint:
            return await read_model(endpoint, None)

    with running(StandInLlama(context=300)) as server:
        found = asyncio.run(read(server))
    assert ("target", "/models/t.gguf", 300, "b11434-test") == (found.name, found.root, found.context, found.version)


def test_other_weights_are_found() -> None:
    """A server that was restarted with other weights is refused; the same weights are known again."""

    async def open_pool(config: ServerConfig, identity: Any) -> None:
        async with connect(config, identity, VOCABULARY, quiet()):
            pass

    with running(StandInLlama()) as server:
        config = _config(server)
        identity = identity_of(config)
        asyncio.run(open_pool(config, identity))
        server.weights = 1
        with pytest.raises(OtherWeights, match="serves other weights"):
            asyncio.run(open_pool(config, identity))


def test_served_model_gives_distributions() -> None:
    """In the place of a loaded target, for the cross-check: log p of the listed tokens is exact."""
    prompt = [20, 21, 22, 23, 24]
    with running(StandInLlama()) as server:
        config = _config(server)
        with served_model(config, identity_of(config), VOCABULARY, quiet()) as model:
            logits_2V = model.logits([prompt], 2)[0]
    for place, row_V in zip((4, 5), logits_2V, strict=True):
        exact = log_p_of(prompt[:place])
        best = np.argsort(-exact, kind="stable")[:20]
        assert exact[best] == pytest.approx(row_V[best].numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("server", "sampling", "message"),
    [
        (StandInLlama(), Sampling(0.7), r"temperature 0.7: .* at temperature 1 only; use temperature 0 or 1"),
        (
            StandInLlama(speculates=True),
            GREEDY,
            "gives no log-probabilities while it speculates; give an endpoint without",
        ),
        (StandInLlama(context=33), GREEDY, "start it with more --ctx-size"),
    ],
    ids=["sampling", "speculation", "context"],
)
def test_what_the_server_cannot_give_is_refused(
    tmp_path: Path, server: StandInLlama, sampling: Sampling, message: str
) -> None:
    """In one line that says what to do."""
    with running(server), pytest.raises(UsageError, match=message) as refused:
        generate(_config(server), some_prompts(2), tmp_path / "out", sampling)
    assert 1 == len(str(refused.value).splitlines())


def _request(limit: int, *stop_tokens: int, kept: int = 0) -> GenerateRequest:
    return GenerateRequest(prompt=[1], sampling=GREEDY, max_tokens=limit, stop_tokens=stop_tokens, kept=kept)


@pytest.mark.parametrize(
    ("tokens", "with_rows", "known"),
    [
        ([1, 2, 3], [0, 1, 2], [0, 1, 2]),
        ([1, 9, 2, 3], [0, 2, 3], [0, 2, 3]),
        ([1, 9, 1], [0], []),  # the row could be of either
        ([4, 9, 1, 1, 5], [0, 3, 4], [0, 4]),
    ],
)
def test_rows_are_given_to_the_tokens_that_they_are_of(
    tokens: list[int], with_rows: list[int], known: list[int]
) -> None:
    """llama-server leaves out rows without saying which; a row that could be of two tokens is asked for again."""
    rows = [{"id": tokens[place], "logprob": -float(place), "top_logprobs": []} for place in with_rows]
    answer = {"tokens": tokens, "stop_type": "limit", "truncated": False, "completion_probabilities": rows}
    request, api = _request(len(tokens)), LlamaCpp()
    if len(known) == len(tokens):
        assert [0.0, -1.0, -2.0] == api.read_generated(request, answer, VOCABULARY).log_p_N.tolist()
        return
    with pytest.raises(Incomplete) as found:
        api.read_generated(request, answer, VOCABULARY)
    assert known == [place for place, row in enumerate(found.value.rows) if row is not None]
    assert [-float(place) for place in known] == [row.log_p for row in found.value.rows if row is not None]


def test_an_answer_with_other_tokens_is_bad() -> None:
    """Log-probabilities of tokens that the completion does not have."""
    answer = {"tokens": [1], "stop_type": "limit", "truncated": False}
    answer |= {"completion_probabilities": [{"id": 2, "logprob": -1.0, "top_logprobs": []}]}
    with pytest.raises(BadAnswer, match="the token ids of the completion and of its log-probabilities differ"):
        LlamaCpp().read_generated(_request(1), answer, VOCABULARY)


def _completion(tokens: list[int], stop_type: str, truncated: bool = False) -> dict[str, Any]:
    rows = [{"id": token, "logprob": -1.0, "top_logprobs": []} for token in tokens]
    return {"tokens": tokens, "stop_type": stop_type, "truncated": truncated, "completion_probabilities": rows}


def test_a_stop_token_of_the_request_ends_the_completion() -> None:
    """The server stops at the ends of sequence of its file only, and goes on."""
    found = LlamaCpp().read_generated(_request(3, 7), _completion([1, 7, 2], "limit"), VOCABULARY)
    assert ([1, 7], True) == (found.tokens_N.tolist(), found.stopped)


def test_a_completion_that_ends_by_itself_is_whole() -> None:
    """`truncated` is about its prompt's context; only a completion that was cut short is refused."""
    assert LlamaCpp().read_generated(_request(3, 1), _completion([1], "eos", truncated=True), VOCABULARY).stopped


@pytest.mark.parametrize("id", [None, "5", 5.0])
def test_a_listed_id_that_is_none_is_a_bad_answer(id: Any) -> None:
    """It is asked again."""
    answer = _completion([5], "limit")
    answer["completion_probabilities"][0]["top_logprobs"] = [{"id": id, "logprob": -1.0}]
    with pytest.raises(BadAnswer, match="no completion"):
        LlamaCpp().read_generated(_request(1, kept=1), answer, VOCABULARY)


def test_parts_of_a_completion_end_as_the_last_one() -> None:
    """The first part may have stopped at an end of sequence that was to be ignored."""

    def part(stopped: bool) -> Generated:
        return Generated(
            tokens_N=np.array([1], np.int32), log_p_N=np.zeros(1, np.float32), likeliest=None, stopped=stopped
        )

    assert [False, True] == [_joined([part(not last), part(last)]).stopped for last in (False, True)]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([1] * 100_000, "100000 tokens where 3 were asked for"),
        ([1, -1, 2], "token -1 is beyond the vocabulary"),
        ([1, 10**30, 2], "token 10{30} is beyond the vocabulary"),
    ],
    ids=["too many", "negative", "beyond the vocabulary"],
)
def test_log_probabilities_are_asked_for_of_possible_tokens_only(tokens: list[int], said: str) -> None:
    """One request for each token without them, which a wrong answer must not cause."""
    answer = {"tokens": tokens, "stop_type": "limit", "truncated": False}
    with pytest.raises(BadAnswer, match=said) as found:
        LlamaCpp().read_generated(_request(3), answer, VOCABULARY)
    assert not isinstance(found.value, Incomplete)
