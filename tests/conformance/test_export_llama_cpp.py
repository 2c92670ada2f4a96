"""An export in GGUF served by llama-server: greedy token ids are the target's, and its counters are those of the examination.

llama.cpp's convention, read in tools/server/server-context.cpp: the prefill emits token 0 without a draft. A round at token t
drafts min(gamma, limit - t - 1) tokens; limit is the most tokens of the request (`n_predict`). A round without draft tokens is
not counted. An end of sequence clips nothing: tokens accepted past it are counted.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.examine import acceptance_probabilities
from pipeline.drafts.plain import PlainDraft
from pipeline.engines.facts import FACTS
from pipeline.models.loading import load_model
from pipeline.speculation.settings import GREEDY
from tests.conformance.deterministic import TIE, Floats
from tests.conformance.exported import CONVERTER, Exported, divergences, export_champion, near_ties
from tests.conformance.served_llama_cpp import FP32, FP32_DRAFT, complete, llama_server
from tests.conformance.servers import counters
from tests.conformance.texts import BATCH_TOKENS


@pytest.fixture(scope="session")
def exported(llama_cpp: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The champion, exported for llama.cpp."""
    out = tmp_path_factory.mktemp("export") / "llama-cpp"
    return export_champion("llama.cpp", out, "--converter", str(CONVERTER))


@pytest.fixture(scope="session")
def draft(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same champion in Hugging Face's form."""
    out = tmp_path_factory.mktemp("export") / "transformers"
    return load_model(export_champion("transformers", out).directory / "draft", "float32", torch.device("cpu"))


@pytest.mark.parametrize("gamma", [5, 2])
def test_counters_of_the_served_export_are_those_of_the_examination(
    exported: Exported,
    gguf_target: Path,
    draft: Any,
    llama_cpp: Path,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    gamma: int,
) -> None:
    """Of the champion."""
    rows.append(check_served(exported, gguf_target, draft, llama_cpp, tmp_path, gamma))


def check_served(
    exported: Exported, gguf_target: Path, draft: Any, llama_cpp: Path, place: Path, gamma: int
) -> dict[str, Any]:
    """At temperature 0: completions equal the stored ones, and the counters of each answer (`draft_n`, `draft_n_accepted`) equal
    the prediction, up to near-ties, which are listed. The counters of /metrics are their sums. `draft`: the exported weights,
    loaded here."""
    limit = exported.config.generate.max_new_tokens
    prompts = [item.prompt.tolist() for item in exported.completions]
    command: list[str | Path] = [exported.directory / "launch.sh", *FP32, *FP32_DRAFT, "--spec-draft-n-max", str(gamma)]
    context = ("--ctx-size", str(4 * (max(map(len, prompts)) + limit + gamma + 2)))
    path = f"{llama_cpp / 'build' / 'bin'}:/usr/bin:/bin"
    with llama_server([*command, *context], place / "log", TARGET=str(gguf_target), PATH=path) as server:
        answers = complete(server.url, prompts, limit)
        metrics = counters(server.url, asdict(exported.expected.counters))
    tokens = [answer["tokens"] for answer in answers]
    timings = [answer["timings"] for answer in answers]
    counted = [(one.get("draft_n", 0), one.get("draft_n_accepted", 0)) for one in timings]
    a = acceptance_probabilities(
        PlainDraft(draft, exported.completions[0].vocabulary), exported.completions, GREEDY, GREEDY, BATCH_TOKENS
    )
    rounds = [
        llama_cpp_rounds(a_T, item.length, gamma, limit) for a_T, item in zip(a, exported.completions, strict=True)
    ]
    predicted = [(sum(drafted for drafted, _ in one), sum(accepted for _, accepted in one)) for one in rounds]
    ties_of_the_target, ties_of_the_draft = divergences(exported, tokens), near_ties(exported, draft)
    row = {
        "engine": "llama.cpp",
        "version": FACTS["llama.cpp"].checked,
        "build": "llama-server, served from an export",
        "temperature": 0.0,
        "draft_sampling": "greedy",
        "gamma": gamma,
        "prompts": len(prompts),
        "tokens": sum(map(len, tokens)),
        "predicted": {
            "drafts": sum(map(len, rounds)),
            "draft_tokens": sum(drafted for drafted, _ in predicted),
            "accepted": sum(accepted for _, accepted in predicted),
            "per_position": per_position(rounds, gamma),
        },
        "counted": metrics,
        "identical": predicted == counted,
        "unexplained": [],
        "near_ties_of_the_target": ties_of_the_target,
        "near_ties_of_the_draft": ties_of_the_draft,
    }
    print(json.dumps({name: row[name] for name in ("predicted", "counted", "identical")}))
    assert all(tie["gap"] < TIE for tie in ties_of_the_target)
    explained = {tie["prompt"] for tie in (*ties_of_the_target, *ties_of_the_draft)}
    assert [] == [
        number
        for number, (one, other) in enumerate(zip(predicted, counted, strict=True))
        if one != other and number not in explained
    ]
    assert [sum(one) for one in zip(*counted, strict=True)] == [metrics["draft_tokens"], metrics["accepted"]]
    assert row["predicted"] == metrics or explained
    return row


def llama_cpp_rounds(a_T: Floats, length: int, gamma: int, limit: int) -> list[tuple[int, int]]:
    """Draft tokens and accepted tokens of each round with a draft, where every a_t is 0 or 1."""
    rounds, position = [], 1
    while position < length:
        drafted = min(gamma, limit - position - 1)
        accepted_T = a_T[position : position + drafted] > 0
        assert drafted == len(accepted_T)  # the completion has enough tokens past its end
        accepted = drafted if accepted_T.all() else int(np.argmin(accepted_T))
        if drafted:
            rounds.append((drafted, accepted))
        position += accepted + 1
    return rounds


def per_position(rounds: Sequence[Sequence[tuple[int, int]]], gamma: int) -> list[int]:
    """The number of rounds whose draft token i was accepted."""
    return [sum(accepted > place for one in rounds for _, accepted in one) for place in range(gamma)]
