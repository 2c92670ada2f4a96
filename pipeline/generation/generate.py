"""The target plays its part: completions of prompts, shard by shard, with the distributions a draft learns from.

Knows no stage. What a shard holds depends on the prompts, the settings and the seed alone, so a resumed run writes the
bytes that an unbroken one would have written.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.corpus.prompt_store import Prompt
from pipeline.generation.completion_store import StoredCompletion, canonical, shard_exists, write_shard
from pipeline.generation.distributions import ENTRY_BYTES, Keep, keep, pack
from pipeline.progress import Progress
from pipeline.speculation.batch import Completion, Request, Round
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.sampling import GREEDY, Sampling, log_probabilities


@dataclass(frozen=True)
class Wanted:
    """One completion to generate."""

    prompt: Prompt
    sampling: Sampling
    number: int = 0  # of the prompt's completions at this tuple


@dataclass(frozen=True)
class Settings:
    """What is asked of the target and what is kept."""

    sampling: Sampling  # the deployment's
    max_new_tokens: int
    lookahead: int  # target tokens past the end, on examination prompts
    kept: int  # tokens of each distribution
    keep: Keep
    batch: int
    shard: int
    seed: int


def plan_completions(
    prompts: Sequence[Prompt],
    deployed: Sampling,
    also_at: Sequence[Sampling] = (),
    train_at: Sequence[Sampling] = (),
) -> list[Wanted]:
    """A completion for each entry of `train_at` for a train prompt (one at the deployment's settings where that is empty), one
    at the deployment's for the others, and for each examination prompt a greedy one and one at each further tuple.

    Sorted by kind, then length, so that sequences of a batch end their prefill together and little is padded.
    """
    deployed, train_at = canonical(deployed), [canonical(sampling) for sampling in train_at or (deployed,)]
    examined = list(dict.fromkeys(map(canonical, (deployed, GREEDY, *also_at))))
    kinds = list(dict.fromkeys([*examined, *train_at]))
    asked = {"train": train_at, "examination": examined}
    wanted = []
    for prompt in prompts:
        samplings = asked.get(prompt.split, [deployed])
        wanted += [Wanted(prompt, one, samplings[:place].count(one)) for place, one in enumerate(samplings)]
    return in_order(wanted, kinds)


def in_order(wanted: Iterable[Wanted], kinds: Sequence[Sampling]) -> list[Wanted]:
    """By kind, then length."""
    return sorted(
        wanted,
        key=lambda item: (
            kinds.index(item.sampling),
            item.prompt.split != "examination",
            len(item.prompt.tokens),
            item.prompt.id,
            item.number,
        ),
    )


def generate(
    model: Any,
    wanted: Sequence[Wanted],
    settings: Settings,
    vocabulary: int,
    stop_tokens: Sequence[int],
    out: Path,
    progress: Progress,
    turn: int = 1,
) -> None:
    """Write all shards of a turn that are not there yet; its completions are read back in the order of `wanted`.

    A shard never mixes sampling tuples. Progress is in tokens of the longest possible output.
    """
    shards = _shards(wanted, settings.shard, turn)
    most = settings.max_new_tokens
    done = sum(len(shard) for name, shard in shards if shard_exists(out, name)) * most
    with progress.track("generate", len(wanted) * most, "tokens", done) as track:
        for name, shard in shards:
            if shard_exists(out, name):
                continue
            # Made once a shard: it packs the model's small weights.
            decoder = Decoder(model, None, sampling=shard[0].sampling, vocabulary=vocabulary, stop_tokens=stop_tokens)
            spoken: list[StoredCompletion] = []
            for begin in range(0, len(shard), settings.batch):
                spoken += _complete(decoder, shard[begin : begin + settings.batch], settings)
                track.advance(len(shard[begin : begin + settings.batch]) * most)
            write_shard(out, name, spoken)


def shard_prefix(turn: int) -> str:
    """How the names of a turn's shards begin."""
    return "shard-" if turn == 1 else f"turn-{turn:03d}-shard-"


def _shards(wanted: Sequence[Wanted], size: int, turn: int) -> list[tuple[str, list[Wanted]]]:
    samplings = dict.fromkeys(item.sampling for item in wanted)
    kinds = [[item for item in wanted if item.sampling == sampling] for sampling in samplings]
    parts = [kind[begin : begin + size] for kind in kinds for begin in range(0, len(kind), size)]
    return [(f"{shard_prefix(turn)}{number:05d}", part) for number, part in enumerate(parts)]


def _complete(decoder: Decoder, wanted: Sequence[Wanted], settings: Settings) -> list[StoredCompletion]:
    requests = [
        Request(
            item.prompt.tokens,
            settings.max_new_tokens,
            _seed(settings, item),
            settings.lookahead if item.prompt.split == "examination" else 0,
        )
        for item in wanted
    ]
    recorder = _Recorder([request.seed for request in requests], settings, decoder)
    completions = decoder.decode(requests, recorder.observe)
    return [
        recorder.spoken(row, item, completion)
        for row, (item, completion) in enumerate(zip(wanted, completions, strict=True))
    ]


def _seed(settings: Settings, item: Wanted) -> int:
    """The stream of a completion: its own, whatever batch it is decoded in."""
    sampling = item.sampling
    if sampling in (GREEDY, settings.sampling):  # which of the two, so that another deployment draws the same numbers
        kind = str(sampling.greedy)
    else:
        kind = f"{sampling.temperature!r}/{sampling.top_k}/{sampling.top_p!r}/{sampling.min_p!r}"
    name = f"{settings.seed}/{item.prompt.id}/{kind}" + (f"/{item.number}" if item.number else "")
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big")


class _Recorder:
    """Keeps, for every emitted token, what the store wants to know of the distribution it came from."""

    def __init__(self, seeds: Sequence[int], settings: Settings, decoder: Decoder) -> None:
        rows, width = len(seeds), settings.max_new_tokens + settings.lookahead
        self._settings, self._sampling, self._vocabulary = settings, decoder.sampling, decoder.vocabulary
        # Of its own: what is kept must not change what is said.
        self._uniform = np.stack([np.random.default_rng([seed, 1]).random(width) for seed in seeds])
        self._filled = np.zeros(rows, dtype=np.int64)
        self._log_p = np.zeros((rows, width), dtype=np.float32)
        self._entries = np.zeros((rows, width, settings.kept, ENTRY_BYTES), dtype=np.uint8)
        self._certain = np.zeros((rows, width), dtype=np.uint8)
        self._rest_log_p = np.zeros((rows, width), dtype=np.float16)

    def observe(self, round_: Round) -> None:
        """Hears of every round of the decoder; with gamma 0 one token a row."""
        rows = [row for row, emitted in enumerate(round_.emitted) if emitted]
        if not rows:
            return
        numbers = np.array([round_.numbers[row] for row in rows])
        logits_BV = round_.logits_BTV[rows, 0]
        log_p1_BV = logits_BV.float().log_softmax(-1)
        tokens_B1 = torch.tensor([round_.emitted[row][:1] for row in rows], device=logits_BV.device)
        log_p_BV = log_p1_BV if self._sampling == Sampling() else log_probabilities(logits_BV, self._sampling)
        at = (numbers, self._filled[numbers])
        kept = keep(log_p1_BV, self._settings.kept, self._settings.keep, self._uniform[at])
        self._log_p[at] = log_p_BV.gather(1, tokens_B1).squeeze(1).cpu().numpy()
        self._entries[at] = pack(kept, self._vocabulary)
        self._certain[at], self._rest_log_p[at] = kept.certain_N, kept.rest_log_p_N
        self._filled[numbers] += 1

    def spoken(self, row: int, item: Wanted, completion: Completion) -> StoredCompletion:
        count = len(completion.tokens)
        return StoredCompletion(
            item.prompt.id,
            item.prompt.split,
            item.prompt.domain,
            item.sampling,
            np.array(item.prompt.tokens, dtype=np.int32),
            completion.length,
            completion.stopped,
            np.array(completion.tokens, dtype=np.int32),
            self._log_p[row, :count],
            self._entries[row, :count],
            self._certain[row, :count],
            self._rest_log_p[row, :count],
            self._vocabulary,
        )
