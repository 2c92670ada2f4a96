"""Is this draft any good here? Completions of some prompts, an examination of each draft, and what its figures are worth
at this machine's forward times. Works without a config or a store."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.figures import Tally
from pipeline.config.corpus import PromptSource
from pipeline.config.evaluate import EvaluateConfig
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.corpus.store import Prompt
from pipeline.errors import BrokenDraft, UsageError
from pipeline.generation.examination import examine_stored, look_up_stored
from pipeline.generation.generate import Settings, generate, plan_completions
from pipeline.generation.store import read_completions, stored_samplings
from pipeline.latency.speedup import ForwardTimes, best_gamma, break_even_acceptance, from_cost_ratio
from pipeline.latency.times import measure_times
from pipeline.openpair import OpenPair
from pipeline.progress import Progress
from pipeline.speculation.sampling import Sampling

LOOKUP = "prompt-lookup"
_GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_LEAST_PROMPTS = 40  # below it an interval is not to be trusted with a verdict (DESIGN, statistics)


@dataclass(frozen=True)
class Finding:
    """What is known of one draft. `speedup` is predicted from forward times alone, at the best draft length."""

    name: str
    figures: Mapping[str, Any]  # as in acceptance.json
    domains: Mapping[str, Any]
    cost_ratio: float  # a draft pass over a target pass
    gamma: int
    speedup: Mapping[str, float | None]  # value, low, high: the interval of tokens per target call carried over
    break_even: float | None  # acceptance rate at which it would pay nothing
    verdict: str
    pays: bool | None  # None: cannot be told


def read_prompts(path: Path, pair: OpenPair, chat: bool | None, count: int, most_tokens: int) -> list[Prompt]:
    """`count` prompts of a JSONL or Parquet file or a `datasets` directory, the same whatever their order, as token ids;
    too long ones and repetitions are left out. Raises UsageError for an unreadable row, or where no prompt is left."""
    if not path.exists():
        raise UsageError(f"--prompts {path}: no such file or directory")
    source = PromptSource(path=str(path))
    renderer, found, longer = Renderer(pair.tokenizer, chat, {}), {}, 0
    for row in SourceReader(0, source, path):
        try:
            request = parse_row(row.value, source)
            tokens = renderer.token_ids([renderer.text(request)])[0]
        except BadRow as bad:
            raise UsageError(f"--prompts {path}: row {row.number}: {bad}") from None
        if not 0 < len(tokens) <= most_tokens:
            longer += 1
            continue
        digest = hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).hexdigest()[:16]
        found[digest] = Prompt(digest, "examination", request.domain, 0, tuple(tokens))
    if not found:
        left_out = f"; {longer} have no token or more than {most_tokens}, all that the context leaves" if longer else ""
        raise UsageError(f"--prompts {path}: no prompt to complete{left_out}")
    return [found[digest] for digest in sorted(found)[:count]]


def complete(
    pair: OpenPair, prompts: list[Prompt], sampling: Sampling, new_tokens: int, out: Path, progress: Progress
) -> None:
    """What the target says after each prompt, into `out`."""
    settings = Settings(sampling, new_tokens, lookahead=0, top_k=1, batch=32, shard=128, seed=0)
    wanted = [item for item in plan_completions(prompts, sampling) if item.sampling == sampling]
    generate(pair.target, wanted, settings, pair.vocabulary, pair.stop_tokens, out, progress)


def check_completions(directory: Path, sampling: Sampling) -> None:
    """Raise UsageError unless `directory` holds examination completions at `sampling`."""
    stored = stored_samplings(directory, {"examination"})
    if sampling not in stored:
        has = ", ".join(map(str, stored)) or "nothing"
        raise UsageError(
            f"--completions {directory}: holds {has}, and not {sampling}; set --temperature and the filters"
        )


def probe(
    pair: OpenPair,
    completions: Path,
    sampling: Sampling,
    settings: EvaluateConfig,
    cost_ratio: float | None,
    count: int,
    progress: Progress,
) -> list[Finding]:
    """Every draft on the same completions, prompt-lookup last. `cost_ratio` None measures forward times here."""

    def stored() -> Iterable[Any]:
        return islice(read_completions(completions, {"examination"}, sampling), count)

    total = sum(1 for _ in stored())
    tallies, broken = {name: Tally(settings.max_gamma) for name in pair.drafts}, {}
    with progress.track("examine", total * len(tallies), "completions") as track:
        for window in examine_stored(pair.drafts, stored(), sampling, settings, pair.vocabulary, track.advance):
            for name, counts in window.items():
                if isinstance(counts, BrokenDraft):
                    broken[name] = counts
                else:
                    tallies[name].add(counts)
    if broken:
        name, reason = next(iter(broken.items()))
        raise BrokenDraft(f"--draft {name}: {reason}")
    lookup = Tally(settings.max_gamma)
    for counts in look_up_stored(stored(), settings):
        lookup.add(counts)
    times = {name: _times(pair, draft, cost_ratio) for name, draft in pair.drafts.items()}
    found = [_finding(name, tally, times[name], settings) for name, tally in tallies.items()]
    anyone = next(iter(times.values()))  # looking up costs nothing beside a forward pass
    return [*found, _finding(LOOKUP, lookup, ForwardTimes(anyone.target, 0.0), settings)]


def _times(pair: OpenPair, draft: Any, cost_ratio: float | None) -> ForwardTimes:
    if cost_ratio is not None:
        return from_cost_ratio(cost_ratio, max(_GAMMAS))
    context = min(128, pair.context - max(_GAMMAS) - 1)
    widths = [gamma + 1 for gamma in _GAMMAS]
    return measure_times(pair.target, draft, pair.vocabulary, widths, context=context, repeats=7)


def _finding(name: str, tally: Tally, times: ForwardTimes, settings: EvaluateConfig) -> Finding:
    figures = tally.figures(settings.confidence)
    gammas = [gamma for gamma in _GAMMAS if gamma <= settings.max_gamma]
    omega = {gamma: figures["tokens_per_target_call"][str(gamma)] for gamma in gammas}
    gamma, speedup = best_gamma({gamma: entry["value"] for gamma, entry in omega.items()}, times)
    bounds = {
        side: None if omega[gamma][side] is None else speedup * omega[gamma][side] / omega[gamma]["value"]
        for side in ("low", "high")
    }
    pays = _pays(figures["prompts"], bounds["low"], bounds["high"])
    return Finding(
        name,
        figures,
        tally.domains(gamma, settings.confidence),
        times.cost_ratio,
        gamma,
        {"value": speedup, **bounds},
        break_even_acceptance(times, gammas),
        _verdict(name, figures, pays, gamma, speedup),
        pays,
    )


def _pays(prompts: int, low: float | None, high: float | None) -> bool | None:
    if prompts < _LEAST_PROMPTS or low is None or high is None:
        return None
    return True if low > 1 else False if high < 1 else None


def _verdict(name: str, figures: Mapping[str, Any], pays: bool | None, gamma: int, speedup: float) -> str:
    if pays:
        return f"{name} pays here: draft {gamma} tokens a round, about {speedup:.2f} times the target alone"
    if pays is False:
        return (
            f"{name} does not pay here: at its best draft length ({gamma}) about {speedup:.2f} times the target alone"
        )
    if figures["prompts"] < _LEAST_PROMPTS:
        return f"{name}: {figures['prompts']} prompts are too few for a verdict; give at least {_LEAST_PROMPTS}"
    return f"{name}: too close to call, about {speedup:.2f} times the target alone; give more prompts"
