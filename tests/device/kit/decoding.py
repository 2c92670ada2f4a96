"""Part 2: the decoder against transformers' assisted generation and plain `generate`, and against what forward times allow."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.latency.costs.forward_times import measure_times
from pipeline.latency.costs.ideal_speedup import ForwardTimes, ideal_speedup
from pipeline.models.devices import synchronize
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.choice import proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import Sampling
from pipeline.speculation.statistics import count
from tests.benchmarks import assisted
from tests.device.kit.models import AGREEMENT, PAIRS, Setup

GAMMA, PROMPT, REPEATS = 5, 128, 3
BATCHES = (1, 8, 32)


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for target, draft in PAIRS:
        pair = _Pair(setup, target, draft)
        for batch in BATCHES:
            yield f"{target} with {draft}, batch {batch}", lambda pair=pair, batch=batch: pair.measure(batch)


class _Pair:
    """Loaded at the first measure."""

    def __init__(self, setup: Setup, target: str, draft: str) -> None:
        self._setup, self._names, self._models = setup, (target, draft), list[Any]()
        self._vocabulary, self._tokens = setup.vocabulary(target), setup.size(64, 12)

    def measure(self, batch: int) -> dict[str, Any]:
        """Tokens a second of each way, taking turns, medians; and the share of the ideal speedup that is reached."""
        if not self._models:
            self._models += [self._setup.model(name) for name in self._names]
        target, draft = self._models
        decoders = {gamma: self._decoder(gamma) for gamma in (0, GAMMA)}
        last = list[list[Completion]]()
        ways: dict[str, Callable[[], None]] = {
            "ours": lambda: last.append(self._ours(decoders[GAMMA], batch)),
            "ours, plain": lambda: _ignore(self._ours(decoders[0], batch)),
            "generate": lambda: self._theirs(batch),
        }
        if batch == 1:  # it takes no more
            ways["assisted"] = lambda: _ignore(
                assisted.generate(target, draft, GAMMA, self._prompt(0), self._tokens, True)
            )
        speeds = self._in_turns(ways, batch)
        times = measure_times(
            target, draft, self._vocabulary, [1, GAMMA + 1], batch=batch, context=PROMPT + self._tokens // 2
        )
        found: dict[str, Any] = {
            "tokens_per_second": {name: median(values) for name, values in speeds.items()},
            "tokens_per_target_call": median(count(done).tokens_per_target_call for done in last),
            "forward": proved_way(target, self._vocabulary),
            "milliseconds": _milliseconds(times),
            "settings": {"gamma": GAMMA, "prompt": PROMPT, "tokens": self._tokens, "agreement": AGREEMENT},
        }
        speedup = median(a / b for a, b in zip(speeds["ours"], speeds["ours, plain"], strict=True))
        ideal = ideal_speedup(found["tokens_per_target_call"], GAMMA, times)
        found |= {"speedup": speedup, "ideal_speedup": ideal, "efficiency": speedup / ideal}
        # Prompts, and rows that go on alone at the end of a batch, are in the efficiency above, not in that of a round.
        found["phases"] = phases = phases_of(last[-1])
        passes = GAMMA * times.draft + times.target[GAMMA + 1]
        found["efficiency_of_a_round"] = 1000 * passes / sum(phases[name] for name in ("draft", "verify", "other"))
        for peer in ("assisted", "generate"):
            if peer in speeds:
                found[f"over_{peer}"] = median(a / b for a, b in zip(speeds["ours"], speeds[peer], strict=True))
        found["settings"] |= {"assisted": {**assisted.SETTINGS, "num_assistant_tokens": GAMMA}}
        return found

    def _decoder(self, gamma: int) -> Decoder:
        target, draft = self._models
        drafting = PlainDraft(draft, self._vocabulary) if gamma else None
        return Decoder(target, drafting, sampling=Sampling(), vocabulary=self._vocabulary, gamma=gamma)

    def _prompt(self, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(number)
        return torch.randint(self._vocabulary, (PROMPT,), generator=generator).tolist()

    def _ours(self, decoder: Decoder, batch: int) -> list[Completion]:
        return decoder.decode([Request(self._prompt(number), self._tokens, number) for number in range(batch)])

    def _theirs(self, batch: int) -> None:
        ids_BT = torch.tensor([self._prompt(number) for number in range(batch)], device=self._setup.device)
        options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        tokens = {"max_new_tokens": self._tokens, "min_new_tokens": self._tokens}
        self._models[0].generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **options, **tokens)

    def _in_turns(self, ways: dict[str, Callable[[], None]], batch: int) -> dict[str, list[float]]:
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(REPEATS + 1):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                synchronize(self._setup.device)
                if turn:  # the first is warm-up
                    speeds[name].append(batch * self._tokens / (time.perf_counter() - began))
        return speeds


def phases_of(done: list[Completion]) -> dict[str, float]:
    """Milliseconds of the prompts' passes, and of each phase of a round, of the row that took part in all rounds."""
    longest = max(done, key=lambda one: one.rounds)
    seconds, rounds = longest.seconds, longest.rounds
    other = seconds.total - seconds.draft - seconds.verify - seconds.prefill
    by_round = {"draft": seconds.draft, "verify": seconds.verify, "other": other}
    return {"prompts": 1000 * seconds.prefill, "rounds": rounds} | {
        name: 1000 * value / rounds for name, value in by_round.items()
    }


def _ignore(value: object) -> None:
    del value


def _milliseconds(times: ForwardTimes) -> dict[str, float]:
    return {"draft": 1000 * times.draft} | {f"target, {width}": 1000 * value for width, value in times.target.items()}
