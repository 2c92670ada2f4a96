"""Recorded answers of a log: how a row's answer is read, which tokens it has, and what the target's servers say of them."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from pipeline.config.corpus import PromptSource
from pipeline.corpus.accepted_rows import AcceptedRow
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answer_store import StoredAnswer, StoredAnswers, write_answers
from pipeline.corpus.answers import LoggedAnswer, parse_answer
from pipeline.corpus.prompt_store import Prompt
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import RowBuffer
from pipeline.corpus.rows import parse_row
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.generation.logged import LoggedAnswers
from pipeline.generation.sample_test import stored_test
from pipeline.generation.served import generate_by_servers
from pipeline.generation.served_completion import Served
from pipeline.planning.log_columns import LogColumns
from pipeline.servers.connect import connect
from pipeline.servers.limits import BudgetSpent
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import quiet
from tests.served import NEW, QUICK, config_of, generate, identity_of, settings_of, some_prompts
from tests.standin_server import EOS, VOCABULARY, StandIn, log_p_of, running

SOURCE = PromptSource(path="log.jsonl", use_answers=True, finish_reason="stop")
ASKED = {"role": "user", "content": "How do I sort a list?"}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"answer": "Use sorted."}, LoggedAnswer("Use sorted.")),
        ({"answer": {"role": "assistant", "content": "Use sorted."}}, LoggedAnswer("Use sorted.")),
        ({"messages": [ASKED, {"role": "assistant", "content": "Use"}]}, LoggedAnswer("Use")),
        ({"answer": "Use", "finish_reason": "length"}, LoggedAnswer("Use", cut=True)),
        (
            {"answer": {"choices": [{"message": {"content": "Use"}, "finish_reason": "length"}]}},
            LoggedAnswer("Use", cut=True),
        ),
        (
            {"answer": {"body": {"choices": [{"text": "Use", "token_ids": [3, 4], "prompt_token_ids": [1, 2]}]}}},
            LoggedAnswer("", tokens=(3, 4), prompt_tokens=(1, 2), completes=True),
        ),
        (
            {"answer": {"choices": [{"text": "caf\ufffd", "token_ids": [3]}]}},
            LoggedAnswer("", tokens=(3,), completes=True),
        ),
        (
            {"answer": {"prompt_token_ids": [1], "choices": [{"message": {"content": "Use"}, "token_ids": [3]}]}},
            LoggedAnswer("", tokens=(3,), prompt_tokens=(1,)),
        ),
        (
            {"answer": "Use", "temperature": 0.7, "top_k": -1, "top_p": None},
            LoggedAnswer("Use", stated={"temperature": 0.7, "top_k": 0.0}),
        ),
        ({"answer": "Use", "presence_penalty": 0.0, "repetition_penalty": 1, "stop": None}, LoggedAnswer("Use")),
        (
            {"answer": {"choices": [{"text": "Use", "token_ids": [3, 4], "stop_reason": 4}]}},
            LoggedAnswer("", tokens=(3, 4), completes=True),
        ),
    ],
)
def test_an_answer_is_read_from_the_forms_that_logs_have(row: dict[str, Any], expected: LoggedAnswer) -> None:
    """A column, the last message, or the answer of an OpenAI API; with token ids and sampling settings where they are there."""
    assert expected == parse_answer(row, SOURCE)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [ASKED]}, "no answer"),
        ({"answer": {"choices": []}}, "no answer"),
        ({"answer": {"content": None, "tool_calls": [{"function": {}}]}}, "tool calls of an unknown form"),
        ({"answer": {"content": None, "tool_calls": {"name": "f"}}}, "tool calls of an unknown form"),
        ({"answer": {"content": None, "tool_calls": [3]}}, "tool calls of an unknown form"),
        ({"answer": {"content": None, "function_call": "f"}}, "tool calls of an unknown form"),
        ({"answer": {"content": "Use", "reasoning_content": ["They ask"]}}, "no text"),
        (
            {"answer": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '"caf\ufffd"'}}]}},
            "characters that were cut off",
        ),
        ({"answer": {"content": [{"type": "image_url"}]}}, "no text"),
        ({"answer": "caf\ufffd"}, "characters that were cut off"),
        ({"answer": {"choices": [{"text": "Use", "stop_reason": "###"}]}}, "a stop string"),
        ({"answer": "Use", "stop_reason": "###"}, "a stop string"),
        ({"answer": "Use", "stop": ["###"]}, "a request with stop"),
        ({"answer": "Use", "repetition_penalty": 1.1}, "a request with repetition_penalty"),
        ({"answer": "Use", "logit_bias": {"5": 100}}, "a request with logit_bias"),
        ({"answer": "Use", "temperature": 10**400}, "invalid sampling settings"),
        ({"answer": "Use", "top_p": float("nan")}, "invalid sampling settings"),
        ({"answer": {"choices": [{"text": "Use", "token_ids": [2**40]}]}}, "invalid token ids"),
        ({"answer": "Use", "finish_reason": "content_filter"}, "finish_reason content_filter"),
        ({"messages": [ASKED, *[{"role": "assistant", "content": "a"}] * 2]}, "several answers"),
    ],
)
def test_other_answers_are_not_used(row: dict[str, Any], reason: str) -> None:
    """What the target gave is not known exactly, and the reason says why."""
    with pytest.raises(UnusableAnswer) as caught:
        parse_answer(row, SOURCE)
    assert reason == str(caught.value)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Byte-level BPE with special tokens and a chat template."""
    bpe = ByteLevelBPETokenizer()
    text = ["Use sorted or list.sort; sort a list in Python. How do I sort a list?"] * 20
    bpe.train_from_iterator(text, vocab_size=400, special_tokens=["<|user|>", "<|assistant|>", "<|end|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.save(str(path))
    special = ["<|user|>", "<|assistant|>"]
    return PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|end|>", additional_special_tokens=special)


def _stored(tokenizer: Any, row: dict[str, Any], answer: LoggedAnswer, template: str | None) -> StoredAnswer:
    tokenizer.chat_template = template
    renderer = Renderer(tokenizer, None, {})
    prompt = parse_row(row, SOURCE)
    (ids,) = renderer.token_ids([renderer.text(prompt)])
    return renderer.answer_ids(prompt, ids, answer)


@pytest.mark.parametrize(
    ("row", "template"),
    [({"messages": [ASKED]}, TEMPLATE), ({"prompt": "sort a"}, TEMPLATE), ({"prompt": "sort a"}, None)],
)
def test_an_answer_ends_as_the_target_ends_it(tokenizer: Any, row: dict[str, Any], template: str | None) -> None:
    """With the end of the chat template, or with EOS after plain text."""
    stored = _stored(tokenizer, row, LoggedAnswer(" Use sorted."), template)
    assert " Use sorted.<|end|>" == tokenizer.decode(stored.tokens).removesuffix("\n")
    assert not stored.cut


def test_a_cut_answer_has_no_end(tokenizer: Any) -> None:
    """Its last token is left out too: it may be another one than the target's."""
    stored = _stored(tokenizer, {"messages": [ASKED]}, LoggedAnswer("Use sorted.", cut=True), TEMPLATE)
    assert stored.cut
    assert tokenizer("Use sorted.")["input_ids"][:-1] == list(stored.tokens)


def test_token_ids_of_the_log_are_taken_as_they_are(tokenizer: Any) -> None:
    """Not those of the text, which may be written with other tokens; if the prompt's are there, they must be ours."""
    row = {"messages": [ASKED]}
    stored = _stored(tokenizer, row, LoggedAnswer("Use", tokens=(5, 6, 2)), TEMPLATE)
    assert StoredAnswer((5, 6, 2), cut=False) == stored
    with pytest.raises(UnusableAnswer, match="other prompt_token_ids"):
        _stored(tokenizer, row, LoggedAnswer("", tokens=(5, 6, 2), prompt_tokens=(1,)), TEMPLATE)


def test_the_completions_api_applies_no_template(tokenizer: Any) -> None:
    """Its answer is not to the prompt that the template makes of the text; without the template it is."""
    row, answer = {"prompt": "sort a"}, LoggedAnswer(" Use sorted.", completes=True)
    with pytest.raises(UnusableAnswer, match="completions API"):
        _stored(tokenizer, row, answer, TEMPLATE)
    assert " Use sorted.<|end|>" == tokenizer.decode(_stored(tokenizer, row, answer, None).tokens)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"choices": [{"text": "Use"}]}, False),
        ({"choices": [{"message": {"content": "Use"}}]}, None),
        ({"choices": [{"message": {"content": "Use"}, "token_ids": [1]}], "prompt_token_ids": "with"}, True),
        ({"choices": [{"text": "Use", "token_ids": [1], "prompt_token_ids": "without"}]}, False),
        ({"choices": [{"message": {"content": "Use"}, "token_ids": [1]}], "prompt_token_ids": [1]}, None),
    ],
)
def test_a_log_tells_how_prompts_are_rendered(tokenizer: Any, answer: dict[str, Any], expected: bool | None) -> None:
    """By its prompt_token_ids, with the chat template or without, else by the API that gave the answer."""
    tokenizer.chat_template = TEMPLATE
    row = {"prompt": "sort a", "response": json.loads(json.dumps(answer))}
    prompt = parse_row(row, SOURCE)
    for place in (row["response"], row["response"]["choices"][0]):
        if isinstance(how := place.get("prompt_token_ids"), str):
            renderer = Renderer(tokenizer, how == "with", {})
            (place["prompt_token_ids"],) = renderer.token_ids([renderer.text(prompt)])
    log = LogColumns()
    log.add(row, prompt)
    assert expected is log.has_template(tokenizer)


def test_a_template_that_refuses_plain_prompts_is_not_the_deployments(tokenizer: Any) -> None:
    """It is tried on a prompt of the log, and fails; the prompt's token ids are those without it."""
    tokenizer.chat_template = "{{ messages.missing.attribute }}"
    row: dict[str, Any] = {"prompt": "sort a"}
    ids = tokenizer("sort a")["input_ids"]
    row["response"] = {"choices": [{"text": "b", "token_ids": [1], "prompt_token_ids": ids}]}
    log = LogColumns()
    log.add(row, parse_row(row, SOURCE))
    assert log.has_template(tokenizer) is False


@pytest.mark.parametrize(
    ("answer", "template", "reason"),
    [
        (" Use ", TEMPLATE.replace("m.content", "m.content | trim"), "another chat template"),
        ("Use", TEMPLATE.replace("{{ m.content }}", "<think></think>{{ m.content }}"), "another chat template"),
        ("rt lists", None, "a token of both prompt and answer"),
    ],
)
def test_an_answer_whose_tokens_are_not_known_is_not_used(
    tokenizer: Any, answer: str, template: str | None, reason: str
) -> None:
    """The template writes answers in another way than they are generated, or a token spans the prompt's end."""
    row = {"prompt": "so"} if template is None else {"messages": [ASKED]}
    with pytest.raises(UnusableAnswer) as caught:
        _stored(tokenizer, row, LoggedAnswer(answer), template)
    assert reason == str(caught.value)


def _written(directory: Path, answers: dict[str, StoredAnswer]) -> StoredAnswers:
    """As the corpus stage writes them."""
    directory.mkdir(exist_ok=True)
    with RowBuffer(directory, {}) as buffer:
        for name, answer in answers.items():
            buffer.add([AcceptedRow(0, parse_row({"prompt": name}, SOURCE), [1], [1], answer)])
    ids = np.array([int(name, 16) for name in answers], dtype=np.uint64)
    assert len(answers) == write_answers(
        directory / "answers.arrow", buffer.accepted, ids, np.ones(len(answers), dtype=bool)
    )
    return StoredAnswers(directory)


def test_answers_are_found_by_their_prompt(tmp_path: Path) -> None:
    """Over several batches; a prompt without one has none."""
    known = {f"{n * 7919 % 101:016x}": StoredAnswer((n, n + 1), n % 2 == 0, {"temperature": 0.5}) for n in range(20)}
    found = _written(tmp_path, known)
    assert 20 == len(found)
    assert known == {name: found.get(name) for name in known}
    assert found.get("f" * 16) is None
    assert 0 == len(StoredAnswers(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (StoredAnswer((3, 4, EOS), False), ([3, 4, EOS], True)),
        (StoredAnswer((3, EOS, 9, 9), False), ([3, EOS], True)),  # what the template writes after the stop token
        (StoredAnswer((1, 2, 3, 4, 5, 6, 8, EOS), False), ([1, 2, 3, 4, 5, 6], False)),
        (StoredAnswer((3, 4), True), ([3, 4], False)),
        (StoredAnswer((3, 4), False), None),  # its end is not known
        (StoredAnswer((1, 2, 3, 4, 5, 6), False), None),
        (StoredAnswer((3, VOCABULARY, EOS), False), None),
        (StoredAnswer((3, EOS), False, {"temperature": 0.7}), None),
        (StoredAnswer((3, EOS), False, {"temperature": 1.0, "top_k": 0.0}), ([3, EOS], True)),
    ],
)
def test_an_answer_becomes_a_completion(
    tmp_path: Path, answer: StoredAnswer, expected: tuple[list[int], bool] | None
) -> None:
    """Up to its stop token or the length limit; not if it was sampled otherwise, or has a token that the pair does not share."""
    (prompt,) = some_prompts(1)
    logged = LoggedAnswers(_written(tmp_path, {prompt.id: answer}), Sampling(), NEW, [EOS], VOCABULARY)
    found = logged.get(prompt.id, Sampling())
    assert expected == (None if found is None else (found.tokens_N.tolist(), found.stopped))
    assert logged.get(prompt.id, Sampling(0.7)) is None
    assert logged.get(prompt.id, Sampling(), number=1) is None


def _rescored(
    server: StandIn,
    prompts: Sequence[Prompt],
    answers: dict[str, StoredAnswer],
    place: Path,
    sampling: Sampling,
    shard: int = 64,
    **settings: Any,
) -> list[StoredCompletion]:
    """Continues what is there."""
    config = config_of(server, **settings)
    logged = LoggedAnswers(_written(place / "answers", answers), sampling, NEW, [EOS], VOCABULARY)

    async def run() -> None:

        async with connect(config, identity, VOCABULARY, quiet(), QUICK) as (target, abilities):
            served = Served(target, abilities, identity, config.logprobs, VOCABULARY, [EOS])
            requests = plan_completions(prompts, sampling)
            await generate_by_servers(
                served, requests, settings_of(sampling, shard=shard), place / "out", quiet(), 1, logged
            )

    (place / "out").mkdir(exist_ok=True)
    identity = identity_of(config)
    asyncio.run(run())
    return list(read_completions(place / "out"))


def _as_log(items: Sequence[StoredCompletion]) -> dict[str, StoredAnswer]:
    return {item.id: StoredAnswer(tuple(item.tokens[: item.length].tolist()), not item.stopped) for item in items}


@pytest.mark.parametrize(
    ("sampling", "split"),
    [
        (Sampling(), "examination"),
        (GREEDY, "examination"),
        (Sampling(0.7, top_k=10, top_p=0.8), "train"),
    ],
)
def test_recorded_answers_are_stored_as_generated_ones(tmp_path: Path, sampling: Sampling, split: str) -> None:
    """Tokens, log p and ends are those of the generation that was recorded; no completion is asked for."""
    prompts = some_prompts(6, split)
    with running(StandIn()) as server:
        first = [
            item for item in generate(config_of(server), prompts, tmp_path / "a", sampling) if item.sampling == sampling
        ]
        asked = len(server.requests)
        again = _rescored(server, prompts, _as_log(first), tmp_path, sampling)
        wanted = [body for body in server.requests[asked:] if body["max_tokens"] == NEW]
    again = [item for item in again if item.sampling == sampling]
    for one, other in zip(first, again, strict=True):
        assert (one.id, one.length, one.stopped) == (other.id, other.length, other.stopped)
        assert one.tokens[: one.length].tolist() == other.tokens[: other.length].tolist()
        np.testing.assert_allclose(one.log_p[: one.length], other.log_p[: other.length], atol=1e-5)
        assert len(one.tokens) == len(other.tokens)
    greedy_too = len(prompts) if split == "examination" and not sampling.greedy else 0
    assert greedy_too == len(wanted)


def test_an_answer_that_is_not_greedy_is_generated_again(tmp_path: Path) -> None:
    """One of 12; the stored completion is the target's."""
    prompts = some_prompts(12)
    with running(StandIn()) as server:
        first = generate(config_of(server), prompts, tmp_path / "a", GREEDY)
        log = _as_log(first)
        log[prompts[3].id] = StoredAnswer((500, EOS), False)
        again = _rescored(server, prompts, log, tmp_path, GREEDY)
    assert [item.tokens.tolist() for item in first] == [item.tokens.tolist() for item in again]


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (Sampling(), "the recorded answers are not samples of the target"),
        (GREEDY, "recorded answers have tokens that the target does not choose"),
        (Sampling(0.7, top_k=10), "recorded answers have tokens that the target does not choose"),
    ],
)
def test_a_log_of_other_weights_is_refused(tmp_path: Path, sampling: Sampling, said: str) -> None:
    """Answers of the target before it was retrained; the message names the window."""
    prompts = some_prompts(30)
    with running(StandIn(weights=1)) as before:
        old = generate(config_of(before), prompts, tmp_path / "a", sampling)
    with running(StandIn()) as server, pytest.raises(UnderstudyError) as caught:
        _rescored(server, prompts, _as_log(old), tmp_path, sampling)
    assert [True, True] == [part in str(caught.value) for part in (said, "corpus.sources.N.since")]


def test_answers_that_stand_beside_other_prompts_are_refused(tmp_path: Path) -> None:
    """A log whose columns were joined wrongly; the message says so."""
    prompts = some_prompts(30)
    with running(StandIn()) as server:
        first = _as_log(generate(config_of(server), prompts, tmp_path / "a", Sampling()))
        names = list(first)
        shifted = dict(zip(names, [first[name] for name in (*names[1:], names[0])], strict=True))
        with pytest.raises(
            UnderstudyError, match=r"recorded answers (are not|do not begin like) samples of the target"
        ):
            _rescored(server, prompts, shifted, tmp_path, Sampling())


def test_filters_do_not_matter_at_temperature_0(tmp_path: Path) -> None:
    """The likeliest token is kept by each of them."""
    (prompt,) = some_prompts(1)
    answer = StoredAnswer((3, EOS), False, {"temperature": 0.0, "top_k": 20.0, "top_p": 0.9})
    logged = LoggedAnswers(_written(tmp_path, {prompt.id: answer}), GREEDY, NEW, [EOS], VOCABULARY)
    assert logged.get(prompt.id, GREEDY) is not None


def test_evidence_is_pooled_over_shards_and_runs(tmp_path: Path) -> None:
    """A log of another temperature, in shards of 8 answers and with an interruption: no shard alone is enough evidence, together
    they are, and a run that goes on is refused by what is stored before it asks for anything."""
    prompts = some_prompts(80)
    with running(StandIn(scale=0.7, draws=0)) as before:
        old = _as_log(generate(config_of(before), prompts, tmp_path / "a", Sampling(), shard=80))
    with running(StandIn()) as server:
        with pytest.raises(BudgetSpent):
            _rescored(server, prompts, old, tmp_path, Sampling(), shard=8, token_budget=200)
        stored = len(list(read_completions(tmp_path / "out")))
        for _ in range(2):
            with pytest.raises(UnderstudyError, match="recorded answers") as caught:
                _rescored(server, prompts, old, tmp_path, Sampling(), shard=8)
    refused = int(re.search(r"after (\d+) of them", str(caught.value))[1])  # type: ignore[index]
    assert 0 < stored < refused
    assert len(list(read_completions(tmp_path / "out"))) <= refused + 8


def test_a_token_at_the_edge_of_the_cut_offs_is_no_evidence(tmp_path: Path) -> None:
    """Rounding may have put it on the other side: the target answers again, and the log is not suspected."""
    sampling, prompts = Sampling(0.7, top_k=10), some_prompts(20)
    with running(StandIn()) as server:
        first = generate(config_of(server), prompts, tmp_path / "a", sampling)
        log = _as_log(first)
        for item in first:
            order = np.argsort(-log_p_of(item.prompt.tolist()), kind="stable")
            gap = np.diff(log_p_of(item.prompt.tolist())[order])[9]
            if gap > -0.2:
                log[item.id] = StoredAnswer((int(order[10]),), cut=True)
        changed = sum(log[item.id].tokens[0] != item.tokens[0] for item in first)
        again = _rescored(server, prompts, log, tmp_path, sampling)
    assert 3 < changed
    assert 20 == len(again)
    assert 0 == stored_test(tmp_path / "out").recorded.impossible


@pytest.mark.parametrize("mode", [{"processed": True}, {"scaled": True}])
def test_an_interrupted_run_keeps_its_recorded_answers(tmp_path: Path, mode: dict[str, bool]) -> None:
    """What is stored of them came from a scoring, at temperature 1, whatever log-probabilities come with completions."""
    sampling, prompts = Sampling(0.7, top_k=5), some_prompts(24)
    with running(StandIn(**mode)) as server:
        answers = _as_log(generate(config_of(server), prompts, tmp_path / "a", sampling))
        with pytest.raises(BudgetSpent):
            _rescored(server, prompts, answers, tmp_path, sampling, token_budget=250)
        asked = len(server.requests)
        again = _rescored(server, prompts, answers, tmp_path, sampling)
        scored = len(server.requests) - asked
    assert 24 == len(again)
    assert scored < 24 + 16  # the missing ones, and what finds out which target it is


def test_a_template_writes_one_end_of_sequence(tokenizer: Any) -> None:
    """Where a log's text has it already, it is not added."""
    found = _stored(tokenizer, {"prompt": "sort a"}, LoggedAnswer(" Use<|end|>"), None)
    assert 1 == list(found.tokens).count(tokenizer.eos_token_id)


def test_the_completions_api_is_used_where_the_log_shows_our_prompt(tokenizer: Any) -> None:
    """A deployment that applied the template itself: the ids of the prompt are those that we render."""
    tokenizer.chat_template = TEMPLATE
    renderer = Renderer(tokenizer, None, {})
    (ids,) = renderer.token_ids([renderer.text(parse_row({"prompt": "sort a"}, SOURCE))])
    answer = LoggedAnswer("", tokens=(5,), prompt_tokens=tuple(ids), completes=True)
    assert (5,) == _stored(tokenizer, {"prompt": "sort a"}, answer, TEMPLATE).tokens
