"""`python -m tests.benchmarks gpu_waits`: how often the host waits for a device, counted on the pretend one of tests/device.

What was counted before a change is kept under its commit (`before` in the JSON file).
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import RESULTS, write

_ROUNDS = ((0, 1), (0, 8), (5, 1), (5, 8))  # draft length and batch
_STEPS = (200, 250)  # of two trainings, whose difference leaves out what begins and ends one
_TOKENS = (16, 48)  # of two generations
NAME = "gpu_waits"


def main() -> None:
    path = RESULTS / f"{NAME}.json"
    before = json.loads(path.read_text())["figure"]["before"] if path.exists() else None
    now = {"rounds": _rounds(), "training": _training(), "generation": _generation()}
    write(NAME, f"python -m tests.benchmarks {NAME}", {"before": before, "now": now})


def _rounds() -> list[dict[str, Any]]:
    """Waits and kernels a round."""
    from pipeline.drafts.plain import PlainDraft
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder
    from pipeline.speculation.settings import GREEDY, Sampling
    from tests.device import pretend
    from tests.fakes import tiny_pair

    target, draft = (model.float().to(pretend.device()) for model in tiny_pair(0, 0.02))
    found = []
    for name, sampling in (("sampled", Sampling()), ("greedy", GREEDY)):
        for llama_forward in (True, False):
            for gamma, batch in _ROUNDS:
                drafting = PlainDraft(draft, 32, llama_forward) if gamma else None
                options: dict[str, Any] = {"sampling": sampling, "vocabulary": 32, "gamma": gamma}
                decoder = Decoder(target, drafting, llama_forward=llama_forward, **options)
                requests = [Request(list(range(2, 12 + 7 * number % 13)), 60, number) for number in range(batch)]
                decoder.decode(requests[:1])
                rounds = list[Any]()
                with pretend.counted() as counts:
                    decoder.decode(requests, lambda one, rounds=rounds: rounds.append(one.numbers))  # type: ignore[misc]
                found.append(
                    {
                        "sampling": name,
                        "forward": "ours" if llama_forward else "the model's",
                        "gamma": gamma,
                        "batch": batch,
                        "waits": sum(counts.waits.values()) / len(rounds),
                        "kernels": sum(counts.launches.values()) / len(rounds),
                    }
                )
    return found


def _training() -> dict[str, float]:
    """Waits a step."""
    from tests.device import pretend
    from tests.integration.trained import SETTINGS, trained

    counts = []
    for steps in _STEPS:
        settings = SETTINGS.model_copy(update={"max_steps": steps, "save_every": steps, "evaluate_every": steps})
        with tempfile.TemporaryDirectory() as work, pretend.counted() as counted:
            trained(settings, 7, Path(work), prepared=lambda model: model.to(pretend.device()))
        counts.append(sum(counted.waits.values()))
    return {"waits": (counts[1] - counts[0]) / (_STEPS[1] - _STEPS[0])}


def _generation() -> dict[str, float]:
    """Waits a token of sampled generation."""
    from pipeline.generation.completion_plan import CompletionRequest
    from pipeline.generation.generate import generate_completions
    from pipeline.speculation.settings import Sampling
    from tests.device import pretend
    from tests.fakes import generation_settings, tiny_llama
    from tests.served import some_prompts

    model, counts = tiny_llama(3, vocabulary=512).float().to(pretend.device()), []
    requests = [CompletionRequest(prompt, Sampling()) for prompt in some_prompts(4)]
    for tokens in _TOKENS:
        settings = generation_settings(sampling=Sampling(), max_new_tokens=tokens)
        generate_completions(model, requests, settings, 512, [], lambda done: None)
        with pretend.counted() as counted:
            generate_completions(model, requests, settings, 512, [], lambda done: None)
        counts.append(sum(counted.waits.values()))
    return {"waits": (counts[1] - counts[0]) / (_TOKENS[1] - _TOKENS[0])}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    before, now = figure["before"], figure["now"]
    yield "## How often the host waits for the device\n"
    yield (
        "Counted on the pretend device of `tests/device`, which knows waits and kernels and no times. A tiny pair, 60 tokens; "
        f"before: at commit {before['commit']}. Bounds on all of these are tests (`make test-device`).\n"
    )
    yield "| | before | now | kernels a round, before | now |"
    yield "|---|---|---|---|---|"
    for old, new in zip(before["rounds"], now["rounds"], strict=True):
        what = f"a round: {new['sampling']}, {new['forward']} forward, gamma {new['gamma']}, batch {new['batch']}"
        yield f"| {what} | {old['waits']:.1f} | {new['waits']:.1f} | {old['kernels']:.0f} | {new['kernels']:.0f} |"
    for what, part in (
        ("a training step between logged ones", "training"),
        ("a token of sampled generation", "generation"),
    ):
        yield f"| {what} | {before[part]['waits']:.1f} | {now[part]['waits']:.1f} | | |"
    yield ""
