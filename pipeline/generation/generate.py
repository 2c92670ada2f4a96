"""The target plays its part: completions of prompts, shard by shard, with the distributions a draft learns from.

Knows no stage. What a shard holds depends on the prompts, the settings and the seed alone, so a resumed run writes the
bytes that an unbroken one would have written.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.corpus.store import Prompt
from pipeline.generation.store import Spoken, canonical, shard_exists, write_shard
from pipeline.progress import Progress
from pipeline.speculation.batch import Completion, Request, Round
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.sampling import GREEDY, Sampling, log_probabilities


@dataclass(frozen=True)
class Wanted:
    """One completion to generate."""

    prompt: Prompt
    sampling: Sampling


@dataclass(frozen=True)
class Settings:
    """What is asked of the target and what is kept."""

    sampling: Sampling  # the deployment's
    max_new_tokens: int
    lookahead: int  # target tokens past the end, on examination prompts
    top_k: int
    batch: int
    shard: int
    seed: int


def plan_completions(prompts: Sequence[Prompt], deployed: Sampling, also_at: Sequence[Sampling] = ()) -> list[Wanted]:
    """One completion a prompt at the deployment's settings; for each examination prompt a greedy one and one at each
    further tuple.

    Sorted by kind, then length, so that sequences of a batch end their prefill together and little is padded.
    """
    kinds = list(dict.fromkeys(map(canonical, (deployed, GREEDY, *also_at))))
    wanted = [
        Wanted(prompt, sampling)
        for number, sampling in enumerate(kinds)
        for prompt in prompts
        if number == 0 or prompt.split == "examination"
    ]
    return sorted(
        wanted,
        key=lambda item: (
            kinds.index(item.sampling),
            item.prompt.split != "examination",
            len(item.prompt.tokens),
            item.prompt.id,
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
) -> None:
    """Write all shards that are not there yet.

    A shard never mixes sampling tuples. Progress is in tokens of the longest possible output.
    """
    shards = _shards(wanted, settings.shard)
    most = settings.max_new_tokens
    done = sum(len(shard) for name, shard in shards if shard_exists(out, name)) * most
    with progress.track("generate", len(wanted) * most, "tokens", done) as track:
        for name, shard in shards:
            if shard_exists(out, name):
                continue
            # Made once a shard: it packs the model's small weights.
            decoder = Decoder(model, None, sampling=shard[0].sampling, vocabulary=vocabulary, stop_tokens=stop_tokens)
            spoken: list[Spoken] = []
            for begin in range(0, len(shard), settings.batch):
                spoken += _complete(decoder, shard[begin : begin + settings.batch], settings)
                track.advance(len(shard[begin : begin + settings.batch]) * most)
            write_shard(out, name, spoken)


def _shards(wanted: Sequence[Wanted], size: int) -> list[tuple[str, list[Wanted]]]:
    samplings = dict.fromkeys(item.sampling for item in wanted)
    kinds = [[item for item in wanted if item.sampling == sampling] for sampling in samplings]
    parts = [kind[begin : begin + size] for kind in kinds for begin in range(0, len(kind), size)]
    return [(f"shard-{number:05d}", part) for number, part in enumerate(parts)]


def _complete(decoder: Decoder, wanted: Sequence[Wanted], settings: Settings) -> list[Spoken]:
    requests = [
        Request(
            item.prompt.tokens,
            settings.max_new_tokens,
            _seed(settings, item),
            settings.lookahead if item.prompt.split == "examination" else 0,
        )
        for item in wanted
    ]
    recorder = _Recorder(len(wanted), settings, decoder.sampling)
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
    digest = hashlib.sha256(f"{settings.seed}/{item.prompt.id}/{kind}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


class _Recorder:
    """Keeps, for every emitted token, what the store wants to know of the distribution it came from."""

    def __init__(self, rows: int, settings: Settings, sampling: Sampling) -> None:
        width, top_k = settings.max_new_tokens + settings.lookahead, settings.top_k
        self._sampling, self._top_k = sampling, top_k
        self._filled = np.zeros(rows, dtype=np.int64)
        self._log_p = np.zeros((rows, width), dtype=np.float32)
        self._top_ids = np.zeros((rows, width, top_k), dtype=np.int32)
        self._top_log_p = np.zeros((rows, width, top_k), dtype=np.float16)
        self._tail_log_p = np.zeros((rows, width), dtype=np.float16)

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
        top_BK = log_p1_BV.topk(self._top_k, dim=-1)
        tail_B = (1 - top_BK.values.double().exp().sum(-1)).clamp(min=1e-7).log()
        at = (numbers, self._filled[numbers])
        self._log_p[at] = log_p_BV.gather(1, tokens_B1).squeeze(1).cpu().numpy()
        self._top_ids[at] = top_BK.indices.cpu().numpy()
        self._top_log_p[at] = top_BK.values.cpu().numpy().clip(min=-60000)  # fp16 has no -inf to train on
        self._tail_log_p[at] = tail_B.cpu().numpy()
        self._filled[numbers] += 1

    def spoken(self, row: int, item: Wanted, completion: Completion) -> Spoken:
        count = len(completion.tokens)
        return Spoken(
            item.prompt.id,
            item.prompt.split,
            item.prompt.domain,
            item.sampling,
            np.array(item.prompt.tokens, dtype=np.int32),
            completion.length,
            completion.stopped,
            np.array(completion.tokens, dtype=np.int32),
            self._log_p[row, :count],
            self._top_ids[row, :count],
            self._top_log_p[row, :count],
            self._tail_log_p[row, :count],
        )
