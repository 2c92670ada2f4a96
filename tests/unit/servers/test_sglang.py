"""SGLang as a server of the target. The server is a stand-in that speaks its protocol."""

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.errors import UsageError
from pipeline.generation.journal import read_journal
from pipeline.servers.answers import BadAnswer
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.pool import EndpointsDown
from pipeline.servers.sglang import Sglang
from pipeline.speculation.settings import GREEDY, Sampling
from tests.served import check_greedy, check_log_p, config_of, generate, identity_of, some_prompts
from tests.standin_server import FAULTS, VOCABULARY, Fault, StandIn, log_p_of, running, sampled_from
from tests.standin_sglang import SglangStandIn

REQUEST = GenerateRequest(prompt=[20, 30, 40], sampling=Sampling(), max_tokens=4, stop_tokens=[7], kept=3)
SCORE = ScoreRequest(ids=[20, 30, VOCABULARY - 1, 50], start=2, kept=3)


def test_greedy_completions_are_the_models(tmp_path: Path) -> None:
    """They end with the stop token, and examination prompts go on past it."""
    with running(SglangStandIn()) as server:
        found = generate(config_of(server, api="sglang"), some_prompts(12, "examination"), tmp_path / "out")
    check_greedy(found)


@pytest.mark.parametrize(
    ("sampling", "scaled"),
    [
        (Sampling(), True),
        (Sampling(0.7, top_p=0.9), True),
        (Sampling(0.7, top_k=1), True),
        (Sampling(0.7, top_k=10, min_p=0.05), True),
        (Sampling(0.7, top_k=10), False),
        (GREEDY, True),
    ],
)
def test_log_p_is_exact_at_the_deployments_sampling(tmp_path: Path, sampling: Sampling, scaled: bool) -> None:
    """log p is that of the distribution as sampled from, and the stored distributions are those at temperature 1."""
    with running(SglangStandIn(scaled=scaled)) as server:
        config = config_of(server, api="sglang", logprobs=128)
        found = generate(config, some_prompts(4, "dev"), tmp_path / "out", sampling)
    check_log_p(found, sampling)


@pytest.mark.parametrize(
    ("sampling", "options", "said"),
    [
        (Sampling(0.7, top_k=20, top_p=0.8), {}, "sglang applies top_p to the distribution before top_k"),
        (Sampling(0.7), {"scaled": False}, "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"),
        (Sampling(0.7), {"speculates": True}, "give an endpoint without speculation"),
    ],
)
def test_what_the_server_cannot_give_is_refused(
    tmp_path: Path, sampling: Sampling, options: dict[str, Any], said: str
) -> None:
    """In one line that says what to do, before anything is generated."""
    with running(SglangStandIn(**options)) as server, pytest.raises(UsageError, match=said):
        generate(config_of(server, api="sglang"), some_prompts(2), tmp_path / "out", sampling)


def test_every_setting_is_exact_where_the_whole_vocabulary_is_listed(tmp_path: Path) -> None:
    """Also of a vLLM that gives raw log-probabilities, which is refused otherwise."""
    sampling = Sampling(0.7, top_p=0.9)
    with running(StandIn(max_logprobs=VOCABULARY)) as server:
        found = generate(config_of(server, logprobs=VOCABULARY), some_prompts(4), tmp_path / "out", sampling)
    for item in found:
        plain = log_p_of(item.prompt.tolist())
        assert sampled_from(plain, vars(sampling))[item.tokens[0]] == pytest.approx(item.log_p[0], abs=1e-5)


@pytest.mark.parametrize("weights", [0, 1])
def test_a_journal_of_another_model_is_not_continued(tmp_path: Path, weights: int) -> None:
    """A run ends in the middle. What the target's weights made is kept; log p that is scaled tells what other weights made."""
    sampling, out = Sampling(0.7, top_p=0.9), tmp_path / "out"
    with running(SglangStandIn()) as server:
        config = config_of(server, api="sglang", logprobs=128, patience_seconds=0.5)
        identity = identity_of(config)
        before = len(server.requests)

        def end(number: int) -> Fault | None:
            server.weights = weights if number >= before + 8 else 0  # its check is over
            return FAULTS["500"] if number >= before + 22 else None

        server.faults = end
        with pytest.raises(EndpointsDown):
            generate(config, some_prompts(20), out, sampling, identity, shard=20)
        kept = len(read_journal(out / "shard-00000.journal"))
        server.weights, server.faults = 0, lambda number: None
        server.served.clear()
        found = generate(config, some_prompts(20), out, sampling, identity, shard=20)
        asked = sum(len(prompt) < 32 for prompt, _ in server.served)
    assert 20 == len(found)
    assert 4 < kept < 20
    assert asked == (20 if weights else 20 - kept)


def test_the_engine_version_is_known(tmp_path: Path) -> None:
    """From /server_info: two endpoints with different versions are refused."""
    said = r"differ: version 0\.5\.23 and 0\.5\.22"
    with running(SglangStandIn()) as one, running(SglangStandIn(version="0.5.22")) as other:
        config = config_of(one, other, api="sglang")
        with pytest.raises(UsageError, match=said):
            generate(config, some_prompts(2), tmp_path / "out")


def test_a_models_name_cannot_be_given() -> None:
    """/generate has no field for it, so another model would answer."""
    with pytest.raises(ValidationError, match="takes no model name; remove it"):
        config_of(StandIn(url="http://a"), api="sglang", model="adapter")


def _generated() -> dict[str, Any]:
    return SglangStandIn().right_answer(Sglang().generate(REQUEST, "target")[1])


def _set(answer: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(answer)
    *outer, last = path.split("/")
    place: Any = changed
    for name in outer:
        place = place[int(name) if isinstance(place, list) else name]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


def test_a_scoring_is_read_from_the_asked_token_on() -> None:
    """log p of each token. In the place of the vocabulary's last token SGLang writes 0, which is no other prompt."""
    answer = SglangStandIn().right_answer(Sglang().score(SCORE, "target")[1])
    assert 0 == answer["meta_info"]["input_token_logprobs"][1][1]
    found = Sglang().read_scored(SCORE, answer, VOCABULARY)
    expected = [log_p_of(SCORE.ids[:place])[SCORE.ids[place]] for place in (2, 3)]
    assert expected == pytest.approx(found.log_p_N, abs=1e-6)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("meta_info", None, "no meta_info"),
        ("meta_info/prompt_tokens", 4, "the answer is to another prompt"),
        ("meta_info/finish_reason", {"type": "abort", "message": "x"}, "finish_reason is"),
        ("meta_info/finish_reason", {"type": "stop", "matched": "NaN happened"}, "finish_reason is"),
        ("meta_info/finish_reason", None, "no completion"),
        ("output_ids", [1], "differ"),
        ("meta_info/output_token_logprobs/0/0", None, "no completion"),
        ("meta_info/output_token_logprobs/0/0", "x", "no completion"),
        ("meta_info/output_token_logprobs/0/0", float("nan"), "invalid log-probability"),
        ("meta_info/output_top_logprobs", None, "no completion"),
        ("meta_info/output_top_logprobs/0/1/1", float("inf"), "no completion"),
        ("meta_info/output_top_logprobs/0/1/1", "5", "no completion"),
        ("meta_info/output_top_logprobs/0", [], "0 likeliest tokens where 3 were asked for"),
    ],
)
def test_a_wrong_completion_is_named(path: str, value: Any, said: str) -> None:
    """Each fault of an answer is a BadAnswer, which is asked for again."""
    Sglang().read_generated(REQUEST, _generated(), VOCABULARY)
    with pytest.raises(BadAnswer, match=said):
        Sglang().read_generated(REQUEST, _set(_generated(), path, value), VOCABULARY)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("input_token_logprobs", None, "no log-probabilities of the prompt"),
        ("input_token_logprobs", [[None, 30, None]], "no log-probability for each of 2 tokens"),
        ("input_token_logprobs/2/1", 51, "the answer is to another prompt"),
        ("input_top_logprobs/1", None, "no log-probabilities of the prompt"),
    ],
)
def test_a_wrong_scoring_is_named(path: str, value: Any, said: str) -> None:
    """Each fault of an answer is a BadAnswer."""
    answer = SglangStandIn().right_answer(Sglang().score(SCORE, "target")[1])
    with pytest.raises(BadAnswer, match=said):
        Sglang().read_scored(SCORE, _set(answer, f"meta_info/{path}", value), VOCABULARY)


def test_a_probability_of_zero_is_a_low_log_p() -> None:
    """SGLang writes the lowest float32, which no log p of ours holds."""
    answer = _set(_generated(), "meta_info/output_top_logprobs/0/2/0", -3.4028234663852886e38)
    assert -9999 == Sglang().read_generated(REQUEST, answer, VOCABULARY).likeliest.log_p_NK[0, 2]  # type: ignore[union-attr]
