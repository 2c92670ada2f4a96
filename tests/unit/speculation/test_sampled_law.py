"""Sampled text against the exact distribution: random streams, drawing and verification together."""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from scipy.stats import chi2

from pipeline.drafts.plain import PlainDraft
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import Certain, DraftLength
from pipeline.speculation.sampling import probabilities
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import TableModel, table_model

V, FALSE_ALARM = 4, 1e-7
Text = tuple[int, ...]


def _chi_square(expected: Mapping[Text, float], seen: Counter[Text]) -> None:
    """Cells too rare for the approximation are pooled."""
    total, mass = sum(seen.values()), sum(expected.values())
    assert all(expected.get(text, 0) > 0 for text in seen)
    cells = {text: total * chance / mass for text, chance in expected.items() if total * chance / mass >= 5}
    counts = [*cells.values(), total - sum(cells.values())]
    found = [*(seen[text] for text in cells), total - sum(seen[text] for text in cells)]
    pairs = [(a, b) for a, b in zip(found, counts, strict=True) if b > 1]
    assert chi2.isf(FALSE_ALARM, len(pairs) - 1) > sum((a - b) ** 2 / b for a, b in pairs)


def _p(model: TableModel, ids: Text, sampling: Sampling) -> list[float]:
    """The law of the token after `ids`."""
    law: list[float] = probabilities(model.table_PVW[(len(ids) - 1) % len(model.table_PVW), ids[-1]], sampling).tolist()
    return law


def _exact_law(model: TableModel, prompt: Text, count: int, sampling: Sampling) -> dict[Text, float]:
    """The law of the next `count` tokens of a table model, by multiplication."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(count):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(_p(model, prompt + text, sampling))
        }
    return law


@pytest.mark.parametrize(
    ("gamma", "sampling", "options"),
    [
        (0, Sampling(), {}),
        (3, Sampling(), {}),
        (3, Sampling(), {"verification": "block"}),
        (2, Sampling(), {"draft_sampling": GREEDY}),
        (3, Sampling(0.8, top_p=0.9), {"draft_sampling": Sampling(0.8)}),
        (Certain(3, limit=0.9), Sampling(), {"verification": "block"}),
    ],
    ids=str,
)
def test_sampled_text_has_the_law_of_the_target(
    gamma: int | DraftLength, sampling: Sampling, options: dict[str, Any]
) -> None:
    """Chi-square of three tokens of 2,000 completions, whose rounds began at different places, against the exact law
    (false alarm 1e-7 for each of six cases, were the seeds drawn anew)."""
    target, draft = table_model(V, 1, positions=3), table_model(V, 2, positions=3)
    requests = [Request([2, 1], 3, seed) for seed in range(2000)]
    decoder = Decoder(target, PlainDraft(draft, V), sampling=sampling, gamma=gamma, vocabulary=V, **options)
    seen = Counter(tuple(completion.tokens) for completion in decoder.decode(requests))

    _chi_square({text: p for text, p in _exact_law(target, (2, 1), 3, sampling).items() if p > 0}, seen)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_neighbouring_tokens_are_independent_draws(verification: Any) -> None:
    """Two equal uniform laws on both sides: pairs of tokens of one text, within a round and across its end, are uniform
    over all pairs (chi-square, false alarm 1e-7 for each of four): one number that served twice would show."""
    even = TableModel(table_model(V, 1).table_PVW * 0)
    decoder = Decoder(even, PlainDraft(even, V), sampling=Sampling(), gamma=3, vocabulary=V, verification=verification)
    completions = decoder.decode([Request([1], 8, seed) for seed in range(1000)])
    for begin in (0, 3):
        pairs = Counter(tuple(completion.tokens[begin : begin + 2]) for completion in completions)
        _chi_square(dict.fromkeys(itertools.product(range(V), repeat=2), 1.0), pairs)
