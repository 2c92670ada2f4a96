"""Work under a limit of memory (RLIMIT_AS), for `test_limited_memory.py`: prints what came of it as JSON."""

import dataclasses
import json
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.config.evaluate import EvaluateConfig
from pipeline.corpus.prompt_store import Prompt
from pipeline.drafts.directory import NOTHING
from pipeline.drafts.named_pair import NamedPair
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import Examiner
from pipeline.examination.one_decode import DecodeSettings, OneDecode
from pipeline.examination.probe import complete
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import read_completions
from pipeline.generation.generate import attempt_batch, generate
from pipeline.models.out_of_memory import SmallerBatches, batch_named
from pipeline.speculation.batch import Request
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import generation_settings, quiet, stored_completion

MIB = 1 << 20
VOCABULARY = 32


@contextmanager
def limit(mebibytes: int) -> Iterator[None]:
    """This much address space more than the process has now."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + mebibytes * MIB, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def llama(seed: int, layers: int, hidden: int, intermediate: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def requests(count: int, length: int) -> list[CompletionRequest]:
    found = []
    for number in range(count):
        tokens = tuple((number + 7 * at) % VOCABULARY for at in range(length))
        prompt = Prompt(f"{number:016x}", "train", "code", 0, tokens, text_id=f"{number}", conversation=f"{number}")
        found.append(CompletionRequest(prompt, Sampling()))
    return found


def generation() -> dict[str, Any]:
    """More completions at once than the KV cache has room for; then as many as the error says."""
    model, asked = llama(0, layers=4, hidden=256, intermediate=256), requests(256, length=10)
    settings = generation_settings(sampling=Sampling(), max_new_tokens=60, batch=256, shard=256)

    def run(batch: int) -> int:
        part = asked[:batch]
        attempt = attempt_batch(model, part, settings, VOCABULARY, [])
        with tempfile.TemporaryDirectory() as out, batch_named("generate.batch", batch, attempt):
            changed = dataclasses.replace(settings, batch=batch)
            generate(model, part, changed, VOCABULARY, [], Path(out), quiet())
            return len(list(read_completions(Path(out))))
        raise AssertionError

    run(2)
    with limit(90):
        try:
            return {"made": run(256)}
        except UnderstudyError as error:
            said = str(error)
        fits = int(said.split("set generate.batch to ")[1].split()[0])
        return {"said": said, "fits": fits, "made": run(fits)}


def examination() -> dict[str, Any]:
    """More tokens at once than the activations have room for: named with its key, and in smaller batches."""
    model = llama(0, layers=1, hidden=16, intermediate=4096)
    stored = [stored_completion(range(10), [(n + 3 * at) % VOCABULARY for at in range(90)]) for n in range(100)]
    examiner, lines = Examiner(Sampling(), EvaluateConfig(batch_tokens=10_000)), list[str]()
    expected = examiner.summary(PlainDraft(model, VOCABULARY), stored)
    with limit(120):
        try:
            with batch_named(
                "evaluate.batch_tokens", 10_000, examiner.attempt_batch(PlainDraft(model, VOCABULARY), iter(stored))
            ):
                examiner.summary(PlainDraft(model, VOCABULARY), stored)
            said = ""
        except UnderstudyError as error:
            said = str(error)
        fits = int(said.split("evaluate.batch_tokens to ")[1].split()[0])
        named = examiner.in_batches(fits).summary(PlainDraft(model, VOCABULARY), stored)
        batches = SmallerBatches("examine", 10_000, lines.append)
        found = batches.run(lambda tokens: examiner.in_batches(tokens).summary(PlainDraft(model, VOCABULARY), stored))
    figures = {"expected": expected[:2], "named": named[:2], "found": found[:2]}
    return {"said": said, "lines": lines, "smaller": batches.size, **figures}


def decoding() -> dict[str, Any]:
    """A prompt whose activations have no room at once."""
    target, draft = llama(0, 1, 16, 1 << 15), llama(1, 1, 16, 32)
    pair = NamedPair(
        target=target,
        drafts={"d": PlainDraft(draft, VOCABULARY)},
        tokenizer=None,
        vocabulary=VOCABULARY,
        context=256,
        stop_tokens=[],
        trained_on=NOTHING,
    )
    request = Request([at % VOCABULARY for at in range(230)], 12, 0)

    def decode() -> tuple[list[int], list[str]]:
        one = OneDecode(pair, request, DecodeSettings(sampling=GREEDY, gamma=2))
        completion, rounds = one.begin()
        for _ in rounds:
            pass
        return completion.tokens, one.limits

    expected, _ = decode()
    prompts = [item.prompt for item in requests(32, length=40)]
    with limit(50):
        found, lines = decode()
    with tempfile.TemporaryDirectory() as out:
        with limit(100):
            complete(pair, prompts, Sampling(), 4, Path(out), quiet())
        completed = len(list(read_completions(Path(out))))
    return {"expected": expected, "found": found, "lines": lines, "completed": completed}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({work.__name__: work() for work in (generation, examination, decoding)}))
