"""Completions of the target with its distributions, generated shard by shard: the training data of the draft.

Does not depend on stages. A shard's content depends only on the prompts, the settings and the seed, so a resumed run writes the
same bytes as an uninterrupted one.
"""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_plan import CompletionRequest, shards_of
from pipeline.generation.completion_store import StoredCompletion, shard_exists, write_shard
from pipeline.generation.distributions import ENTRY_BYTES, Selection, SparseDistribution, pack, sparse_tensors
from pipeline.models.devices import download, upload
from pipeline.progress import Progress
from pipeline.speculation.batch import Completion, Request, Round
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.forward import PREFILL
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling

_PAST_END = "/past the end"  # other random numbers than the completion's


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of `generate`. Lengths are in tokens; `batch` and `shard` are numbers of completions."""

    sampling: Sampling  # of the deployment
    max_new_tokens: int
    lookahead: int  # tokens generated past the end of a completion, for examination prompts only
    distribution_tokens: int  # entries stored for each of the target's distributions
    distribution_selection: Selection  # how these entries are chosen
    batch: int  # decoded at once
    shard: int  # in one file
    seed: int


def generate(
    model: Any,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    vocabulary: int,
    stop_tokens: Sequence[int],
    out: Path,
    progress: Progress,
) -> None:
    """Generate the completions of `requests` with `model` (the target) and write them as shards to the directory `out`.

    Shards that exist are not generated again. `read_completions` returns the completions in the order of `requests`, if these
    are sorted by sampling settings: all completions of a shard have the same. `vocabulary`: number of shared tokens.
    The progress bar counts `max_new_tokens` tokens per completion.
    """
    shards = shards_of(requests, settings.shard, turn=1)
    most = settings.max_new_tokens
    done = sum(len(shard) for name, shard in shards if shard_exists(out, name)) * most
    with progress.track("generate", len(requests) * most, "tokens", done) as track:
        for name, shard in shards:
            if not shard_exists(out, name):
                rows = generate_completions(model, list(shard), settings, vocabulary, stop_tokens, track.advance)
                write_shard(out, name, rows)


def generate_completions(
    model: Any,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    vocabulary: int,
    stop_tokens: Sequence[int],
    advance: Callable[[float], None],
) -> list[StoredCompletion]:
    """The completions of requests that have the same sampling settings, such as those of one shard. `advance` is called with the
    tokens of each batch, as `generate` counts them."""
    # Created once, because it packs the model's small weights.
    decoder = Decoder(model, None, sampling=requests[0].sampling, vocabulary=vocabulary, stop_tokens=stop_tokens)
    completions: list[StoredCompletion] = []
    for begin in range(0, len(requests), settings.batch):
        batch = requests[begin : begin + settings.batch]
        completions += _complete(decoder, batch, settings)
        advance(len(batch) * settings.max_new_tokens)
    return completions


def generate_past_end(
    model: Any,
    requests: Sequence[CompletionRequest],
    before: Sequence[Sequence[int]],
    settings: GenerationSettings,
    vocabulary: int,
) -> list[dict[str, NDArray[Any]]]:
    """What is stored of the `lookahead` tokens past the end of completions that are there already: by name, tokens and what the
    target's logits decide. `before`: prompt and completion of each request. All have the same sampling settings."""
    columns: list[dict[str, NDArray[Any]]] = []
    if not requests:
        return columns
    decoder = Decoder(model, None, sampling=requests[0].sampling, vocabulary=vocabulary, stop_tokens=())
    for begin in range(0, len(requests), settings.batch):
        rows = slice(begin, begin + settings.batch)
        decode_requests = [
            Request(tokens, settings.lookahead, seed_of(settings, item, _PAST_END), 0, item.prompt.domain)
            for item, tokens in zip(requests[rows], before[rows], strict=True)
        ]
        recorder = _Recorder([request.seed for request in decode_requests], settings, decoder)
        completions = decoder.decode(decode_requests, recorder.observe)
        columns += [recorder.columns(row, completion) for row, completion in enumerate(completions)]
    return columns


def attempt_batch(
    model: Any,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    vocabulary: int,
    stop_tokens: Sequence[int],
) -> Callable[[int], None]:
    """A function that does what takes the most memory of a batch of n completions: the last tokens of the longest n of
    `requests`, in caches of their size. Nothing is written. For `out_of_memory.batch_named`."""
    further = settings.max_new_tokens + settings.lookahead
    short = replace(settings, max_new_tokens=2, lookahead=0)

    def attempt(count: int) -> None:
        longest = heapq.nlargest(count, requests, key=lambda item: len(item.prompt.tokens))
        tokens = [item.prompt.tokens for item in longest]
        grown = [
            replace(item, prompt=replace(item.prompt, tokens=(*own, *islice(cycle(own), further - 2))))
            for item, own in zip(longest, tokens, strict=True)
        ]
        decoder = Decoder(model, None, sampling=longest[0].sampling, vocabulary=vocabulary, stop_tokens=stop_tokens)
        decoder.prefill = min(PREFILL, len(tokens[0]))  # as the prompts themselves are processed
        _complete(decoder, grown, short)

    return attempt


def _complete(
    decoder: Decoder, requests: Sequence[CompletionRequest], settings: GenerationSettings
) -> list[StoredCompletion]:
    decode_requests = [
        Request(
            item.prompt.tokens,
            settings.max_new_tokens,
            seed_of(settings, item),
            settings.lookahead if item.prompt.split == "examination" else 0,
            item.prompt.domain,
        )
        for item in requests
    ]
    recorder = _Recorder([request.seed for request in decode_requests], settings, decoder)
    completions = decoder.decode(decode_requests, recorder.observe)
    return [
        item.stored(recorder.columns(row, completion), completion.length, completion.stopped, decoder.vocabulary)
        for row, (item, completion) in enumerate(zip(requests, completions, strict=True))
    ]


def seed_of(settings: GenerationSettings, item: CompletionRequest, part: str = "") -> int:
    """The seed of a completion, or of a part of it, independent of its batch."""
    sampling = item.sampling
    if sampling in (
        GREEDY,
        settings.sampling,
    ):  # not the settings themselves: another deployment then uses the same seeds
        kind = str(sampling.greedy)
    else:
        kind = f"{sampling.temperature!r}/{sampling.top_k}/{sampling.top_p!r}/{sampling.min_p!r}"
    name = f"{settings.seed}/{item.prompt.id}/{kind}" + (f"/{item.number}" if item.number else "") + part
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big")


class _Recorder:
    """Records the stored fields (log p, sparse distribution) of every emitted token."""

    def __init__(self, seeds: Sequence[int], settings: GenerationSettings, decoder: Decoder) -> None:
        rows, width = len(seeds), settings.max_new_tokens + settings.lookahead
        self._settings, self._sampling, self._vocabulary = settings, decoder.sampling, decoder.vocabulary
        # A separate random stream: the sampled entries must not change the completion.
        self._uniform = np.stack([np.random.default_rng([seed, 1]).random(width) for seed in seeds])
        self._filled = np.zeros(rows, dtype=np.int64)
        self._log_p = np.zeros((rows, width), dtype=np.float32)
        self._entries = np.zeros((rows, width, settings.distribution_tokens, ENTRY_BYTES), dtype=np.uint8)
        self._certain = np.zeros((rows, width), dtype=np.uint8)
        self._rest_log_p = np.zeros((rows, width), dtype=np.float16)

    def observe(self, round_: Round) -> None:
        """Called after every round of the decoder; with gamma 0 a round emits one token per row."""
        rows = [row for row, emitted in enumerate(round_.emitted) if emitted]
        if not rows:
            return
        numbers = np.array([round_.numbers[row] for row in rows])
        device = round_.logits_BTV.device
        logits_BV = round_.logits_BTV[upload(rows, device), 0]
        log_p1_BV = logits_BV.float().log_softmax(-1)
        tokens_B1 = upload([round_.emitted[row][:1] for row in rows], device)
        log_p_BV = log_p1_BV if self._sampling == Sampling() else log_probabilities(logits_BV, self._sampling)
        at = (numbers, self._filled[numbers])
        sparse = sparse_tensors(
            log_p1_BV, self._settings.distribution_tokens, self._settings.distribution_selection, self._uniform[at]
        )
        self._log_p[at], *fields = download(log_p_BV.gather(1, tokens_B1).squeeze(1), *sparse)
        kept = SparseDistribution.of(*fields)
        self._entries[at] = pack(kept, self._vocabulary)
        self._certain[at], self._rest_log_p[at] = kept.certain_N, kept.rest_log_p_N
        self._filled[numbers] += 1

    def columns(self, row: int, completion: Completion) -> dict[str, NDArray[Any]]:
        """What is stored of each token of a row, by name."""
        count = len(completion.tokens)
        return {
            "tokens": np.array(completion.tokens, dtype=np.int32),
            "log_p": self._log_p[row, :count],
            "entries": self._entries[row, :count],
            "certain": self._certain[row, :count],
            "rest_log_p": self._rest_log_p[row, :count],
        }
