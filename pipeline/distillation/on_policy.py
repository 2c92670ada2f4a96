"""On-policy rounds: the draft writes, the target scores, the draft learns from that (GKD, arXiv 2306.13649).

Offline distillation shows a draft how the target goes on after the target's own words; a round shows it how the target would go
on after the draft's, which is where drafted tokens beyond the first stand.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.distill import DistillConfig
from pipeline.config.generate import GenerateConfig
from pipeline.generation.completion_store import StoredCompletion, read_completions, shard_exists, write_shard
from pipeline.generation.scoring import DraftCompletion, score
from pipeline.progress import Progress
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.sampling import Sampling

Learn = Callable[
    [Sequence[StoredCompletion], DistillConfig, int, Path], list[dict[str, float]]
]  # rows, settings, seed, work
Write = Callable[[Sequence[StoredCompletion], int, Path], list[StoredCompletion]]  # after which prompts, seed, where to


def run_rounds(
    train: Sequence[StoredCompletion], settings: DistillConfig, seed: int, work: Path, write: Write, learn: Learn
) -> Iterator[list[dict[str, float]]]:
    """Every round's log. A round learns from what was written now and from as many of the target's own completions, so that the
    draft is not led away from where deployment begins."""
    own = settings.on_policy
    later = settings.model_copy(
        update={
            "max_steps": own.max_steps,
            "learning_rate": own.learning_rate,
            "evaluate_every": min(settings.evaluate_every, own.max_steps),
        }
    )
    prompts = list({item.id: item for item in train}.values())  # a prompt may have several completions
    for number in range(1, own.rounds + 1):
        chance, place = np.random.default_rng([seed, number]), work / f"round-{number}"
        asked = [prompts[at] for at in chance.permutation(len(prompts))[: own.prompts]]
        replayed = [train[at] for at in chance.permutation(len(train))[: len(asked)]]
        yield learn([*write(asked, seed + number, place / "written"), *replayed], later, seed + number, place)


def write_round(
    draft: Any,
    target: Any,
    prompts: Sequence[StoredCompletion],
    sampling: Sampling,
    settings: GenerateConfig,
    batch_tokens: int,
    seed: int,
    vocabulary: int,
    stop_tokens: Sequence[int],
    out: Path,
    progress: Progress,
) -> list[StoredCompletion]:
    """What `draft` says after `prompts`, at the deployment's `sampling`, with the target's distributions; shard by shard into
    `out`, so that a resumed run repeats no finished one. `batch_tokens` are what a pass of the target takes at most.

    The target's distributions are kept by draws: the bucket of `generate.keep = top` learns from tokens that the target drew,
    and here it drew none.
    """
    out.mkdir(parents=True, exist_ok=True)
    most, items = settings.max_new_tokens, sorted(prompts, key=lambda item: (len(item.prompt), item.id))
    parts = [items[begin : begin + settings.shard] for begin in range(0, len(items), settings.shard)]
    decoder = Decoder(draft, None, sampling=sampling, vocabulary=vocabulary, stop_tokens=stop_tokens)
    with progress.track("on-policy", len(items), "completions") as track:
        for number, part in enumerate(parts):
            if not shard_exists(out, name := f"shard-{number:05d}"):
                written = [
                    one
                    for begin in range(0, len(part), settings.batch)
                    for one in _write(decoder, part[begin : begin + settings.batch], most, seed)
                ]
                write_shard(
                    out, name, score(target, written, sampling, settings.kept, "drawn", vocabulary, batch_tokens)
                )
            track.advance(len(part))
    return list(read_completions(out))


def _write(decoder: Decoder, items: Sequence[StoredCompletion], most: int, seed: int) -> list[DraftCompletion]:
    requests = [Request(tuple(item.prompt.tolist()), most, _seed(seed, item)) for item in items]
    return [
        DraftCompletion(
            id=item.id,
            split=item.split,
            domain=item.domain,
            prompt=item.prompt,
            tokens=np.array(completion.tokens[: completion.length], dtype=np.int32),
            stopped=completion.stopped,
            seed=request.seed,
        )
        for item, request, completion in zip(items, requests, decoder.decode(requests), strict=True)
    ]


def _seed(seed: int, item: StoredCompletion) -> int:
    digest = hashlib.sha256(f"on-policy/{seed}/{item.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
