"""A target served as an adapter: what is generated and scored is of the adapter, not of the base model."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.generation.completion_store import read_completions
from pipeline.speculation.settings import GREEDY
from tests.conformance.engines import Engine
from tests.conformance.served_runs import artifact, run
from tests.conformance.servers import Server
from tests.conformance.subject import Subject

NEAR_TIE = 1e-4
PROMPTS = 60


@pytest.fixture(scope="module")
def adapter(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A LoRA adapter with random weights, and the target with it merged."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(subject.target, dtype=torch.float32)
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_" in name:
                weight.mul_(3.0)
    directory = tmp_path_factory.mktemp("adapter")
    tuned.save_pretrained(directory)
    return directory, tuned.merge_and_unload().eval()


@pytest.fixture(scope="module")
def server(
    vllm: Engine,
    subject: Subject,
    adapter: tuple[Path, torch.nn.Module],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One vLLM that serves the base model and the adapter."""
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    # vLLM's CPU build 0.32.0 ends at a batch of several requests of an adapter, one of which is prefilled: one at a time.
    flags = ("--max-logprobs", "128", "--max-num-seqs", "1", "--enable-lora", "--lora-modules", f"tuned={adapter[0]}")
    with Server(vllm.interpreter, subject.target, flags, log) as running:
        yield running


@torch.inference_mode()
def test_completions_are_the_adapters(
    subject: Subject, server: Server, adapter: tuple[Path, torch.nn.Module], tmp_path: Path
) -> None:
    """With `generate.server.model: tuned`, greedy tokens are those of the target with the adapter merged, up to near-ties; a
    server with several models and no name is refused."""
    target = {"source": "server", "tokenizer": str(subject.tokenizer), "revision": "tuned-1", "dtype": "float32"}
    config = {
        "name": "adapter",
        "pair": {"target": target, "draft": {"source": str(subject.target.parent / "draft")}},
        "corpus": {
            "sources": [{"path": str(subject.target.parent / "prompts.jsonl"), "limit": PROMPTS}],
            "chat_template": False,
        },
        "generate": {
            "engine": "server",
            "server": {"endpoints": [server.url], "model": "tuned", "patience_seconds": 5.0},
            "max_new_tokens": 24,
        },
        "promote": {"target_name": "adapter"},
    }
    unnamed = run(tmp_path, "unnamed", config, "--until", "generate", "--set", "generate.server.model=null")
    assert (2, True) == (unnamed.returncode, "set generate.server.model to one of" in unnamed.stderr), unnamed.stderr
    ended = run(tmp_path, "adapter", config, "--until", "generate")
    assert 0 == ended.returncode, ended.stderr
    differs = 0
    for item in read_completions(artifact(tmp_path, "adapter", "generate"), sampling=GREEDY):
        ids = torch.tensor([[*item.prompt.tolist(), *item.tokens.tolist()]])
        begin = len(item.prompt) - 1
        ours_NV, base_NV = (
            model(ids).logits[0, begin:-1, : subject.vocabulary] for model in (adapter[1], subject.target_model)
        )
        tokens_N1 = torch.from_numpy(item.tokens.astype(np.int64)).unsqueeze(1)
        gaps_N = ours_NV.max(-1).values - ours_NV.gather(1, tokens_N1).squeeze(1)
        assert float(gaps_N.max()) < NEAR_TIE, json.dumps({"id": item.id, "gap": float(gaps_N.max())})
        differs += bool((base_NV.argmax(-1) != tokens_N1.squeeze(1)).any())
    assert differs > 5  # the adapter changes what the target says
