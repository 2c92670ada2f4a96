"""Examples for reviewers: completions with what a speculative decode does with each token, for two drafts side by side."""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.outcomes import draw_outcomes
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import CONVENTIONS, Convention, Floats
from pipeline.acceptance.schema import read_profile
from pipeline.config.evaluate import ConventionName
from pipeline.drafts.kinds import KINDS
from pipeline.examination.prompt_parts import last_characters, prompt_parts, prompt_title
from pipeline.examination.token_acceptance import read_token_acceptance
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions
from pipeline.models.token_text import token_texts
from pipeline.speculation.settings import Sampling

SCHEMA = 2
WORST = 10  # examples with the lowest gain come first
_MAX_TOKENS, _MAX_PROMPT = 256, 1500  # shown of a completion, and characters of a prompt


def choose_examples(candidate: Sequence[PromptCounts], baseline: Sequence[PromptCounts], count: int) -> list[str]:
    """Ids of `count` prompts: those with the lowest gain first, then a fixed choice in turn from each domain."""
    ours, theirs = CountTable.of(candidate), CountTable.of(baseline)
    gain_N = _rates(ours) - _rates(theirs)
    gains = {name: gain for name, gain in zip(ours.ids, gain_N.tolist(), strict=True) if not math.isnan(gain)}
    worst = sorted(gains, key=lambda name: (gains[name], name))[: min(WORST, count)]
    by_domain: dict[str, list[str]] = {}
    for name, domain in sorted(zip(ours.ids, ours.domains, strict=True), key=lambda item: _order(item[0])):
        if name in gains and name not in worst:
            by_domain.setdefault(domain, []).append(name)
    turns = [(place, domain, name) for domain, names in by_domain.items() for place, name in enumerate(names)]
    return [*worst, *(name for _, _, name in sorted(turns))][:count]


def examples_of(
    chosen: Sequence[str],
    examinations: Mapping[str, Path],
    completions: Path,
    deployed: Sampling,
    tokenizer: Callable[[], Any],
    gamma: int,
    convention: ConventionName,
) -> dict[str, Any]:
    """Examples of stored completions. None where whether a token is accepted depends on where its round began."""
    if not all(KINDS[read_profile(directory).draft.kind].by_token for directory in examinations.values()):
        return {"examples": []}
    stored = read_completions(completions, {"examination"}, canonical(deployed))
    return make_examples(chosen, stored, examinations, tokenizer(), gamma, CONVENTIONS[convention])


def make_examples(
    chosen: Sequence[str],
    completions: Iterable[StoredCompletion],
    examinations: Mapping[str, Path],
    tokenizer: Any,
    gamma: int,
    convention: Convention,
) -> dict[str, Any]:
    """The content of `examples.json`: the `chosen` prompts in their order. `examinations`: by side (candidate, baseline), the
    evaluate artifact. Both sides use the same random numbers, so that they differ only where the drafts do."""
    a = {side: read_token_acceptance(directory, set(chosen)) for side, directory in examinations.items()}
    wanted = {item.id: item for item in completions if _is_wanted(item.id, chosen, a.values())}
    return {
        "schema": SCHEMA,
        "gamma": gamma,
        "examples": [
            _example(wanted[name], {side: values[name] for side, values in a.items()}, tokenizer, gamma, convention)
            for name in chosen
            if name in wanted
        ],
    }


def _is_wanted(name: str, chosen: Collection[str], a: Iterable[Collection[str]]) -> bool:
    return name in chosen and all(name in values for values in a)


def _example(
    item: StoredCompletion, a: Mapping[str, Any], tokenizer: Any, gamma: int, convention: Convention
) -> dict[str, Any]:
    uniforms_T = np.random.default_rng(int.from_bytes(_order(item.id)[:8], "big")).random(item.length)
    parts = prompt_parts(tokenizer, item.prompt.tolist())
    sides = {}
    for side, values in a.items():
        a_T: Floats = values.astype(np.float64)
        letters = draw_outcomes(a_T, uniforms_T, gamma, convention)
        sides[side] = {"acceptance_rate": round(float(a_T.mean()), 4), "outcomes": letters[:_MAX_TOKENS]}
    return {
        "id": item.id,
        "domain": item.domain,
        "title": prompt_title(parts),
        "prompt": [[part.text, part.template] for part in last_characters(parts, _MAX_PROMPT)],
        "length": item.length,
        "tokens": token_texts(tokenizer, item.tokens[: min(item.length, _MAX_TOKENS)].tolist()),
        **sides,
    }


def _rates(counts: CountTable) -> Floats:
    """The acceptance rate of each prompt; NaN where no token was examined."""
    examined_N = counts.columns["examined"]
    rates_N: Floats = np.where(examined_N > 0, counts.columns["accepted"] / np.maximum(examined_N, 1e-300), np.nan)
    return rates_N


def _order(name: str) -> bytes:
    return hashlib.sha256(f"example {name}".encode()).digest()
