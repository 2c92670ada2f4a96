"""A target on servers, through the command line. The server is a stand-in that speaks vLLM's protocol."""

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.corpus.prompt_store import open_prompts
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.generation.journal import read_journal
from pipeline.models.loading import load_tokenizer
from tests.integration.conftest import NOBODY, Ended, Place, Smoke
from tests.standin_server import FAULTS, Fault, StandIn, log_p_of, running, sampled_from
from tests.standin_sglang import SglangStandIn

CANARY = "canary-token-0123456789"


@pytest.fixture
def server(smoke: Smoke) -> Iterator[StandIn]:
    """A server whose stop token is the smoke pair's."""
    facts = json.loads((smoke.place.artifact("pair", "first") / "pair.json").read_text())
    with running(StandIn(eos=facts["stop_tokens"][0], model="big-model")) as found:
        yield found


def _write(place: Place, smoke: Smoke, servers: list[StandIn], **server: Any) -> Path:
    pair = smoke.place.artifact("pair", "first")
    endpoints = [one.url for one in servers]
    config = {
        "name": "served",
        "pair": {
            "target": {"source": "server", "tokenizer": str(pair / "tokenizer"), "revision": "v1"},
            "draft": {"source": str(pair / "draft")},
        },
        "corpus": {"sources": [{"path": str(pair / "prompts.jsonl"), "limit": 24}], "chat_template": False},
        "generate": {
            "engine": "server",
            "server": {"endpoints": endpoints, "logprobs": 20, "patience_seconds": 20.0, **server},
            "max_new_tokens": 8,
            "lookahead": 4,
            "shard": 16,
        },
        "promote": {"target_name": "big"},
    }
    path = place.root / "served.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _run(place: Place, config: Path, *more: object) -> Ended:
    """Without tracking, which is a third of what such a run takes."""
    return place.understudy("run", config, *more, MLFLOW_TRACKING_URI=NOBODY)


def test_generation_by_a_server(smoke: Smoke, place: Place, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run --until generate`: completions of every prompt; a second run asks only what tells the weights; the gateway's token is
    in no file."""
    server.token = CANARY
    config = _write(place, smoke, [server], key_variable="GATEWAY")
    ended = place.understudy("run", config, "--until", "generate", "--run", "last", GATEWAY=CANARY)
    assert 0 == ended.code, ended.err
    found = list(read_completions(place.artifact("generate", "last")))
    assert len({item.id for item in found}) > 15
    asked = len(server.requests)
    again = place.understudy("run", config, "--until", "generate", GATEWAY=CANARY)
    assert "skipped" == again.states["generate"]
    assert len(server.requests) - asked == 4  # the known sequences are scored
    texts = [path for path in place.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert ([], False, False) == (texts, CANARY in ended.err, CANARY in ended.out)
    server.scale = 0.9  # retrained a little: the greedy tokens are as before
    retrained = place.understudy("run", config, "--until", "generate", GATEWAY=CANARY)
    assert "done" == retrained.states["generate"]
    server.scale = 1.0
    without = place.understudy("run", config, "--until", "generate")
    assert (2, True) == (without.code, "the environment variable GATEWAY is not set" in without.complaint)


def _unused(place: Place, run: str, stage: str = "corpus") -> tuple[int, dict[str, int]]:
    manifest = json.loads((place.artifact(stage, run) / "manifest.json").read_text())
    reasons = manifest["notes"]["unused_answers"]
    assert stage == "corpus" or sum(reasons.values()) == manifest["figures"]["unused_answers"]
    return sum(reasons.values()), reasons


def test_a_log_of_the_deployment(smoke: Smoke, place: Place, server: StandIn) -> None:
    """Recorded answers with their token ids are scored, not generated again, and a log of another target is refused. A row with
    an e-mail address is redacted, so the target answers it."""
    config = _write(place, smoke, [server])
    assert 0 == place.understudy("run", config, "--until", "generate", "--run", "first").code
    first = {item.id: item for item in read_completions(place.artifact("generate", "first")) if not item.greedy}
    prompts = {prompt.id: prompt for prompt in open_prompts(place.artifact("corpus", "first"))}
    tokenizer = load_tokenizer(smoke.place.artifact("pair", "first") / "tokenizer")

    def row(item: StoredCompletion) -> dict[str, Any]:
        choice = {"text": "", "token_ids": item.tokens[: item.length].tolist()}
        finished = {"finish_reason": "stop" if item.stopped else "length"}
        return {"prompt": tokenizer.decode(prompts[item.id].tokens), "response": {"choices": [choice | finished]}}

    rows = [row(item) for item in first.values()]
    rows[0]["prompt"] += " ask a@example.com"
    log = place.root / "log.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in rows))
    source = {"path": str(log), "use_answers": True, "answer_field": "response", "redact": True}
    raw = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(raw | {"corpus": {"sources": [source], "chat_template": False}}))
    asked = len(server.requests)
    ended = _run(place, config, "--until", "generate", "--run", "second")
    assert 0 == ended.code, ended.err
    assert "replaced by `redact`: 1 e-mail" in ended.err
    assert f"{len(rows) - 1} of" in ended.err
    assert f"{len(rows) - 1} prompts with a recorded answer; not used, 1 redacted" in ended.err
    generated = sum(body["max_tokens"] == 8 and body["temperature"] == 1 for body in server.requests[asked:])
    assert 1 == generated
    second = {item.id: item for item in read_completions(place.artifact("generate", "second")) if not item.greedy}
    same = [name for name in first if name in second]
    assert len(rows) - 1 == len(same)
    kept = [{name: found[name].tokens[: found[name].length].tolist() for name in same} for found in (first, second)]
    assert kept[0] == kept[1]
    manifest = json.loads((place.artifact("generate", "second") / "manifest.json").read_text())
    assert len(rows) - 1 == manifest["figures"]["recorded_answers"]
    assert (1, {"redacted": 1}) == _unused(place, "second")
    log.write_text("".join(json.dumps(one | {"temperature": 0.7}) + "\n" for one in rows))
    asked = len(server.requests)
    otherwise = _run(place, config, "--until", "generate")
    assert (2, True) == (otherwise.code, "recorded answers can be used: " in otherwise.complaint)
    assert "were sampled with temperature 0.7, and `sampling` is temperature 1" in otherwise.complaint
    assert len(server.requests) - asked <= 4  # what finds out which target it is
    some = [one | ({"temperature": 0.7} if place < 5 else {}) for place, one in enumerate(rows)]
    log.write_text("".join(json.dumps(one) + "\n" for one in some))
    partly = _run(place, config, "--until", "generate", "--run", "third")
    assert (0, True) == (partly.code, "not used: 4 sampled with temperature 0.7" in partly.err), partly.err
    assert (4, {"sampled with temperature 0.7": 4}) == _unused(place, "third", "generate")
    assert "pass a test that refuses one right log in 10,000" in partly.err
    log.write_text("".join(json.dumps({"prompt": one["prompt"]}) + "\n" for one in rows))
    without = _run(place, config, "--until", "generate")
    assert (2, True) == (without.code, "no recorded answer can be used: not used, " in without.complaint)
    choice = {"text": "x", "finish_reason": "stop", "prompt_token_ids": [1, 2]}
    log.write_text("".join(json.dumps(one | {"response": {"choices": [choice]}}) + "\n" for one in rows))
    otherwise = _run(place, config, "--until", "generate")
    assert (2, True) == (otherwise.code, "prompts that were rendered otherwise than here" in otherwise.complaint)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 130)]
)
def test_a_killed_run_goes_on(smoke: Smoke, place: Place, server: StandIn, sent: signal.Signals, code: int) -> None:
    """What was received before SIGKILL, Ctrl-C or a scheduler's SIGTERM is not asked for again."""
    server.latency = 0.02
    config = _write(place, smoke, [server], concurrency=2)
    process = place.start("run", config, "--until", "generate")
    until = time.monotonic() + 120
    while sum(len(read_journal(path)) for path in place.store.glob("work/generate-*/*.journal")) < 5:
        assert (None, True) == (process.poll(), time.monotonic() < until)
        time.sleep(0.02)
    process.send_signal(sent)
    _, said = process.communicate()
    assert (code, False) == (process.returncode, "Traceback" in said), said
    kept = {
        path.name.partition(".")[0]: len(read_journal(path)) for path in place.store.glob("work/generate-*/*.journal")
    }
    server.latency, before = 0.0, len(server.served)
    ended = place.process("run", config, "--until", "generate", "--run", "last")
    assert 0 == ended.code, ended.err
    items = list(read_completions(place.artifact("generate", "last")))
    requests = sum(2 if item.split == "examination" else 1 for item in items)
    asked = len(server.served) - before - 2  # two are asked of the server's abilities
    assert asked <= requests - sum(kept.values())
    assert len({(item.id, item.sampling) for item in items}) == len(items)


def test_servers_that_fail_in_mid_run(smoke: Smoke, place: Place, server: StandIn) -> None:
    """Exit 1 in one line that says what is kept; when a server answers again, only the rest is asked for."""
    completions: list[int] = []

    def fail_after_12(number: int) -> Fault | None:
        if server.requests[number]["max_tokens"] == 8:  # not those that ask for the weights and abilities
            completions.append(number)
        return FAULTS["500"] if len(completions) > 12 else None

    server.faults = fail_after_12
    config = _write(place, smoke, [server], patience_seconds=2.0)  # counted from the first failure
    ended = _run(place, config, "--until", "generate")
    assert (1, True) == (ended.code, ended.complaint.startswith("generate.server: the endpoint is down for 2 s"))
    kept = re.search(r"start a server and run again; (\d+) of \d+ completions are kept$", ended.complaint)
    assert kept is not None, ended.complaint
    server.faults = lambda number: None
    asked = len(server.requests)
    again = _run(place, config, "--until", "generate", "--run", "last")
    assert 0 == again.code, again.err
    items = list(read_completions(place.artifact("generate", "last")))
    assert len(items) - int(kept[1]) == sum(body["max_tokens"] == 8 for body in server.requests[asked:])


def test_faults_change_nothing(smoke: Smoke, place: Place, server: StandIn) -> None:
    """Greedy completions through a second server that fails in many ways are those of one sound server, byte for byte."""
    stored, kinds = [], sorted(set(FAULTS) - {"silence", "one byte at a time"})
    for faulty in (False, True):
        with running(StandIn(eos=server.eos, model="big-model")) as bad:
            config = _write(place, smoke, [server, bad] if faulty else [server])
            bad.faults = lambda number: FAULTS[kinds[number // 2 % len(kinds)]] if number > 24 and number % 2 else None
            arguments = ("--set", "sampling.temperature=0", "--set", "pair.generation_config=ignore")
            ended = _run(place, config, "--until", "generate", "--run", f"run-{faulty}", *arguments)
            assert 0 == ended.code, ended.err
            out = place.artifact("generate", f"run-{faulty}")
            stored.append({path.name: path.read_bytes() for path in out.glob("*.arrow")})
            if not faulty:
                shutil.rmtree(out)
    assert stored[0] == stored[1]


def test_nobody_answers(smoke: Smoke, place: Place) -> None:
    """Exit 1 in one line; nothing has been made."""
    config = _write(place, smoke, [StandIn(url="http://127.0.0.1:9")], patience_seconds=0.5)
    ended = _run(place, config)
    assert (1, True) == (
        ended.code,
        ended.complaint.startswith("generate.server: no endpoint answers: http://127.0.0.1:9: "),
    )
    dry = _run(place, config, "--dry-run")
    assert (1, True) == (dry.code, dry.complaint.startswith("generate.server: no endpoint answers"))


def test_retrained_weights_are_another_target(smoke: Smoke, place: Place, server: StandIn) -> None:
    """The completions of the old weights stay, and the new ones get their own."""
    config = _write(place, smoke, [server])
    for weights in (0, 1, 0):
        server.weights = weights
        ended = _run(place, config, "--until", "generate")
        assert 0 == ended.code, ended.err
    assert "skipped" == ended.states["generate"]
    assert 2 == len(list((place.store / "artifacts").glob("generate-*")))


def test_a_deployment_that_samples_otherwise_is_refused(smoke: Smoke, place: Place, server: StandIn) -> None:
    """The server's sampling defaults are not `sampling`: exit 2, with the key to set."""
    server.defaults = {"temperature": 0.3}
    config = _write(place, smoke, [server])
    ended = _run(place, config, "--until", "generate")
    assert 2 == ended.code
    assert "a request without sampling settings is not sampled with temperature 1" in ended.complaint
    ignored = _run(place, config, "--until", "generate", "--set", "pair.generation_config=ignore")
    assert 0 == ignored.code, ignored.err


def test_init_from_a_url(smoke: Smoke, place: Place, server: StandIn) -> None:
    """A server's URL, a tokenizer directory, a draft and a log are enough for a config that runs; comments name what can be used
    of the log."""
    pair = smoke.place.artifact("pair", "first")
    rows = [json.loads(line) for line in (pair / "prompts.jsonl").read_text().splitlines()]
    log = place.root / "log.jsonl"
    log.write_text("".join(json.dumps(row | {"response": "x = 1", "created_at": 1.7e9}) + "\n" for row in rows))
    server.context = 200  # less than the draft's
    arguments = ("--target", server.url, "--tokenizer", pair / "tokenizer", "--draft", pair / "draft")
    made = place.understudy("init", *arguments, "--prompts", log, store=False)
    assert 0 == made.code, made.err
    config = yaml.safe_load(made.out)
    (source,) = config["corpus"]["sources"]
    assert (False, "response", False) == (source["use_answers"], source["answer_field"], source["redact"])
    assert "by time_field: created_at" in made.out
    assert ("server", "big-model") == (config["pair"]["target"]["source"], config["generate"]["server"]["model"])
    assert "big-model" == config["promote"]["target_name"]
    path = place.root / "made.yaml"
    path.write_text(made.out)
    planned = place.understudy("plan", path, "--set", "generate.server.logprobs=20")
    assert (0, True) == (planned.code, "generation runs on 1 endpoint" in planned.out), planned.err
    ended = _run(place, path, "--until", "pair", "--set", "pair.target.dtype=float32")
    assert 0 == ended.code, ended.err
    assert "has no config.json of the target; exports to vLLM, SGLang and others need it" in ended.err
    again = _run(place, path, "--until", "pair")
    assert "declared with revision None and dtype float32, and now with revision None and dtype bfloat16" in again.err
    exported = _run(place, path, "--until", "pair", "--set", "promote.export={engine: vllm, out: exported}")
    assert (2, True) == (exported.code, "promote.export.engine is vllm, and " in exported.complaint)
    elsewhere = shutil.copytree(pair / "tokenizer", place.root / "tokenizer")
    small = json.loads((pair / "draft" / "config.json").read_text()) | {"vocab_size": 100}
    (elsewhere / "config.json").write_text(json.dumps(small))
    other = _run(place, path, "--until", "pair", "--set", f"pair.target.tokenizer={elsewhere}")
    assert (2, True) == (other.code, "tokenizer and config.json are of different models" in other.complaint), other.err
    wrong = place.understudy("init", *arguments[:2], *arguments[4:], "--prompts", pair / "prompts.jsonl", store=False)
    assert (2, True) == (wrong.code, "--tokenizer" in wrong.complaint)


def test_a_target_on_sglang(smoke: Smoke, place: Place) -> None:
    """`api: sglang` at temperature 0.7 with a top_p: log p is that after the cut-off, which the server does not give. A
    second run asks only what tells the weights. `init` writes the engine that answers."""
    facts = json.loads((smoke.place.artifact("pair", "first") / "pair.json").read_text())
    pair = smoke.place.artifact("pair", "first")
    with running(SglangStandIn(eos=facts["stop_tokens"][0])) as server:
        models = ("--target", server.url, "--tokenizer", pair / "tokenizer", "--draft", pair / "draft")
        made = place.understudy("init", *models, "--prompts", pair / "prompts.jsonl", store=False)
        written = yaml.safe_load(made.out)["generate"]["server"]
        assert ("sglang", False) == (written["api"], "model" in written)
        config = _write(place, smoke, [server], api="sglang", logprobs=128)
        raw = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump(raw | {"sampling": {"temperature": 0.7, "top_p": 0.9}}))
        ended = _run(place, config, "--until", "generate", "--run", "first")
        assert 0 == ended.code, ended.err
        asked = len(server.requests)
        again = _run(place, config, "--until", "generate")
        assert ("skipped", 4) == (again.states["generate"], len(server.requests) - asked)
    described = json.loads((place.artifact("pair", "first") / "pair.json").read_text())
    assert "scaled" == described["target"]["log_probabilities"]["mode"]
    found = [item for item in read_completions(place.artifact("generate", "first")) if not item.greedy]
    assert len(found) > 15
    for item in found[:8]:
        for at, token in enumerate(item.tokens.tolist()):
            plain = log_p_of([*item.prompt.tolist(), *item.tokens[:at].tolist()])
            expected = sampled_from(plain, {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0})[token]
            assert expected == pytest.approx(item.log_p[at], abs=0.01)
