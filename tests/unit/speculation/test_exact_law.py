"""The law of decoded text, exactly: every path of the decoder is walked once and weighed, nothing is sampled.

In place of uniform numbers the decoder gets numbered choices. Where it draws a token the choice says which one, where it
compares with a probability the choice says whether the number lies below; each multiplies the path's weight by the chance
that the real number would have decided so (that `draw` inverts the cumulative sum is shown in test_sampling).
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.speculation import decoder as decoder_module
from pipeline.speculation import rules as rules_module
from pipeline.speculation import verification as verification_module
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.draft_length import Certain, Confident, DraftLength, Fallback, LengthSchedule
from pipeline.speculation.sampling import probabilities
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import TableModel, decoder_of, table_model

Text = tuple[int, ...]
_CHOICES, _COLUMNS = 8, 64  # more than any vocabulary and any round here


class _Choices(torch.Tensor):
    """Stands for uniform numbers: path * 512 + column * 8 + choice. Only `draw` and `<` may look at it."""

    walk: "_Walk"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.lt, torch.Tensor.__lt__):
            return cls.walk.below(args[0], args[1])
        return super().__torch_function__(func, types, args, kwargs or {})


class _Walk:
    """All paths at once, one a row of `paths`: the choice of every column of every round."""

    def __init__(self, paths: Sequence[Sequence[Sequence[int]]]) -> None:
        self.weights = torch.ones(len(paths), dtype=torch.float64)
        self.codes = torch.tensor(paths)  # (path, round, column)
        count, _, columns = self.codes.shape
        self.codes += (torch.arange(count)[:, None, None] * _COLUMNS + torch.arange(columns)) * _CHOICES
        self.used = torch.zeros(count, _COLUMNS, dtype=torch.bool)  # this round: a number may decide one thing only
        self.round = torch.zeros(count, dtype=torch.long)

    def take(self, numbers: torch.Tensor) -> torch.Tensor:
        codes_BN = self.codes[numbers, self.round[numbers]]
        self.round[numbers] += 1
        self.used[numbers] = False
        return codes_BN

    def draw(self, weights_V: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        path, choice = self._read(codes)
        sums, chance = weights_V.sum(-1), weights_V.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
        self.weights[path] *= weights_V.shape[-1] * (chance / sums).double()
        return choice, sums

    def below(self, codes: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
        path, choice = self._read(codes)
        chance = chance.double().expand(path.shape)
        for column in range(path.shape[1]):  # a path has one factor a column, and advanced indexing would drop repeats
            taken = torch.where(choice[:, column] == 1, chance[:, column], 1 - chance[:, column])
            self.weights[path[:, column]] *= 2 * taken
        return choice == 1

    def _read(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plain = codes.as_subclass(torch.Tensor)
        path, column, choice = plain // (_COLUMNS * _CHOICES), plain // _CHOICES % _COLUMNS, plain % _CHOICES
        assert not self.used[path, column].any(), "one number decided twice"
        self.used[path, column] = True
        return path, choice


class _Streams:
    """In place of `sampling.RandomStreams`; a request's seed is the number of its path."""

    def __init__(self, seeds: list[int]) -> None:
        self.paths = seeds

    def take(self, count: int) -> torch.Tensor:
        codes_BN = _Choices.walk.take(torch.tensor(self.paths))
        assert count == codes_BN.shape[1]
        return codes_BN.as_subclass(_Choices)

    def select(self, rows: list[int]) -> None:
        self.paths = [self.paths[row] for row in rows]


@pytest.fixture(autouse=True)
def _walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "RandomStreams", _Streams)
    for module in (rules_module, verification_module):
        monkeypatch.setattr(module, "draw", lambda weights_V, codes: _Choices.walk.draw(weights_V, codes))


def _every_path(most: int, rooms: Sequence[int], vocabulary: int) -> list[list[list[int]]]:
    """All choices of as many rounds as `rooms`, with at most so many drafts each: most drafts, most comparisons, one more
    token a round. Columns that no round can reach have the choice 0."""
    rounds = []
    for room in rooms:
        free, idle = min(most, room), [[0]] * (most - min(most, room))
        columns = [range(vocabulary)] * free + idle + [range(2)] * free + idle + [range(vocabulary)]
        rounds.append([list(choices) for choices in itertools.product(*columns)])
    return [list(path) for path in itertools.product(*rounds)]


def _exact(model: TableModel, prompt: Sequence[int], count: int, sampling: Sampling) -> dict[Text, float]:
    """The law of the next `count` tokens of a table model, by multiplication."""
    p_PVV = probabilities(model.table_PVW, sampling).tolist()
    law = {}
    for text in itertools.product(range(len(p_PVV[0])), repeat=count):
        whole, chance = [*prompt, *text], 1.0
        for position in range(len(prompt) - 1, len(whole) - 1):
            chance *= p_PVV[position % len(p_PVV)][whole[position]][whole[position + 1]]
        law[text] = chance
    return law


def _same(expected: dict[Text, float], found: dict[Text, float]) -> None:
    assert set(found) <= set(expected)
    assert expected == pytest.approx({text: found.get(text, 0.0) for text in expected}, abs=1e-12)


PAIR = {v: (table_model(v, 1, positions=5), table_model(v, 2, positions=5)) for v in (2, 3)}
METHODS: dict[str, dict[str, Any]] = {
    "token": {"sampling": Sampling()},
    "block": {"sampling": Sampling(), "verification": "block"},
    "greedy draft": {"sampling": Sampling(), "draft_sampling": GREEDY},
    "greedy draft, block": {"sampling": Sampling(), "draft_sampling": GREEDY, "verification": "block"},
    "filters": {"sampling": Sampling(0.7, top_p=0.8), "draft_sampling": Sampling(1.4, top_k=2)},
    "filters, block": {
        "sampling": Sampling(0.7, top_k=2),
        "draft_sampling": Sampling(1.4, top_k=2),
        "verification": "block",
    },
}
METHOD = pytest.mark.parametrize("method", METHODS)


def _round_law(gamma: int | DraftLength, vocabulary: int, prompt: list[int], limit: int, **options: Any) -> None:
    """The law of one round of the decoder, continued by the target's own, is the target's, whatever the draft length."""
    target, draft = PAIR[vocabulary]
    decoder = Decoder(target, PlainDraft(draft, vocabulary), gamma=gamma, vocabulary=vocabulary, **options)
    most = decoder.length.most
    paths = _every_path(most, [limit - 1], vocabulary)
    _Choices.walk = walk = _Walk(paths)
    round_ = next(iter(Decoding(decoder, [Request(prompt, limit, path) for path in range(len(paths))])))
    found: dict[Text, float] = defaultdict(float)
    for number, emitted in enumerate(round_.emitted):
        assert round_.drafted[number] <= min(most, limit - 1)
        rest = _exact(target, [*prompt, *emitted], limit - len(emitted), options["sampling"])
        for text, chance in rest.items():
            found[(*emitted, *text)] += float(walk.weights[number]) / len(paths) * chance
    _same(_exact(target, prompt, limit, options["sampling"]), found)


@METHOD
@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_a_round_continued_by_the_target_has_the_law_of_the_target(method: str, gamma: int) -> None:
    """For every draft length and method, with more room than needed, with exactly enough, and clipped at the limit."""
    for limit in {1, gamma, gamma + 1} - {0}:
        _round_law(gamma, 3, [1, 0], limit, **METHODS[method])


def _emitted(verification: Any, gamma: int, vocabulary: int) -> dict[str, dict[Text, float]]:
    """The law of what one round of the decoder emits, apart for rounds that end with a correction and with a bonus."""
    target, draft = PAIR[vocabulary]
    decoder = decoder_of(target, draft, gamma, Sampling(), vocabulary=vocabulary, verification=verification)
    paths = _every_path(gamma, [gamma], vocabulary)
    _Choices.walk = walk = _Walk(paths)
    round_ = next(iter(Decoding(decoder, [Request([1, 0], gamma + 1, path) for path in range(len(paths))])))
    found: dict[str, dict[Text, float]] = {"correction": defaultdict(float), "bonus": defaultdict(float)}
    for number, emitted in enumerate(round_.emitted):
        branch = "bonus" if round_.accepted[number] == gamma else "correction"
        if walk.weights[number] > 0:
            found[branch][tuple(emitted)] += float(walk.weights[number]) / len(paths)
    return found


def _branches(block: bool, gamma: int, vocabulary: int) -> dict[str, dict[Text, float]]:
    """The same in closed form.

    Token: prefix x stands with prod min(p, q), a correction y comes with (p - q)+. Block: prefix x with q(x) w(x), where
    w clips the ratio on the way, and y with q(x) (w p - q)+."""
    found: dict[str, dict[Text, float]] = {"correction": {}, "bonus": {}}
    prefixes: dict[Text, tuple[float, float]] = {(): (1.0, 1.0)}  # q of the prefix, w of the prefix
    for drafted in range(gamma + 1):
        longer: dict[Text, tuple[float, float]] = {}
        for prefix, (q_x, w) in prefixes.items():
            p_V, q_V = (_exact(model, [1, 0, *prefix], 1, Sampling()) for model in PAIR[vocabulary])
            for token in range(vocabulary):
                p, q = p_V[token,], q_V[token,]
                if drafted == gamma:
                    found["bonus"][(*prefix, token)] = q_x * w * p
                    continue
                longer[(*prefix, token)] = q_x * q, min(1.0, w * p / q) if block else w * min(1.0, p / q)
                left = w * p - q if block else w * (p - q)
                if left > 0:
                    found["correction"][(*prefix, token)] = q_x * left
        prefixes = longer
    return found


@pytest.mark.parametrize(("gamma", "vocabulary"), [(1, 3), (2, 3), (3, 2)])
def test_corrections_and_bonuses_each_have_their_law(gamma: int, vocabulary: int) -> None:
    """And so the expected number of accepted tokens: of a block at least as many, and more if it has more than one token."""
    accepted = []
    for verification in ("token", "block"):
        found = _emitted(verification, gamma, vocabulary)
        for branch, law in _branches(verification == "block", gamma, vocabulary).items():
            _same(law, found[branch])
        accepted.append(sum(chance * (len(text) - 1) for law in found.values() for text, chance in law.items()))

    assert accepted[1] - accepted[0] > -1e-12
    assert (accepted[1] - accepted[0] > 1e-3) == (gamma > 1)


RULES = {
    "confident": Confident(3, least=0.6),
    "certain": Certain(3, limit=0.75),
    "schedule": LengthSchedule(((1, 1, 0), (2, 9999, 3))),
    "half": Fallback(Certain(3, limit=0.75), level=1),
}


@pytest.mark.parametrize("method", ["token", "block", "greedy draft, block"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("limit", [3, 4])
def test_the_draft_length_does_not_change_the_law(method: str, rule: str, limit: int) -> None:
    """Rows of one batch draft one, two or three tokens, as the draft's confidence and the limit say."""
    for prompt in ([0], [1, 0]):
        _round_law(RULES[rule], 2, prompt, limit, **METHODS[method])


def test_the_rules_above_are_ragged() -> None:
    """The test above reaches rows of different draft lengths."""
    for rule in ("confident", "certain"):
        paths = _every_path(3, [3], 2)
        _Choices.walk = _Walk(paths)
        decoder = Decoder(PAIR[2][0], PlainDraft(PAIR[2][1], 2), gamma=RULES[rule], vocabulary=2, sampling=Sampling())
        round_ = next(iter(Decoding(decoder, [Request([1, 0], 4, path) for path in range(len(paths))])))
        assert len(set(round_.drafted)) > 1


def _batches(kinds: Sequence[tuple[list[int], int]], paths: int, together: int) -> Iterator[list[Request]]:
    """Batches of so many paths of each kind. The seed of a request is the number of its path."""
    for first in range(0, paths, together):
        yield [
            Request(prompt, limit, kind * paths + path)
            for path in range(first, first + together)
            for kind, (prompt, limit) in enumerate(kinds)
        ]


ONE: list[tuple[list[int], int]] = [([1], 3)]
SEVERAL: list[tuple[list[int], int]] = [*ONE, ([0, 1, 1, 0], 2), ([1, 0], 3)]


@pytest.mark.parametrize(
    ("method", "kinds", "together"),
    [
        *(pytest.param(method, SEVERAL, 16, id=f"batch-{method}") for method in METHODS),
        *(pytest.param(method, ONE, 1, id=f"alone-{method}", marks=pytest.mark.long) for method in METHODS),
    ],
)
def test_a_whole_decode_has_the_law_of_the_target(
    method: str, kinds: list[tuple[list[int], int]], together: int
) -> None:
    """Many rounds with gamma 2, alone and in a batch with rows that finish earlier: each row's text has exactly the
    target's distribution, and no uniform number is used twice."""
    target, draft = PAIR[2]
    decoder = Decoder(target, PlainDraft(draft, 2), gamma=2, vocabulary=2, **METHODS[method])
    paths = _every_path(2, [2, 1, 0], 2)
    _Choices.walk = walk = _Walk(paths * len(kinds))
    assert 0 == len(paths) % together
    found: list[dict[Text, float]] = [defaultdict(float) for _ in kinds]
    for requests in _batches(kinds, len(paths), together):
        for request, completion in zip(requests, decoder.decode(requests), strict=True):
            law = found[request.seed // len(paths)]
            law[tuple(completion.tokens)] += float(walk.weights[request.seed]) / len(paths)
    for law, (prompt, limit) in zip(found, kinds, strict=True):
        _same(_exact(target, prompt, limit, METHODS[method]["sampling"]), law)


@pytest.mark.parametrize("gamma", [0, 1, 3])
@pytest.mark.parametrize("draft_sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_at_temperature_zero_the_law_is_one_text(gamma: int, draft_sampling: Sampling) -> None:
    """For any draft tokens, each row's text is the target's argmax."""
    target, draft = PAIR[3]
    requests = [Request([row, 1][: 1 + row % 2], 3 + row, row) for row in range(3)]
    _Choices.walk = _Walk([[[row] * (2 * gamma + 1)] * 6 for row in range(3)])
    options: dict[str, Any] = {"sampling": GREEDY, "draft_sampling": draft_sampling, "vocabulary": 3}
    completions = Decoder(target, PlainDraft(draft, 3), gamma=gamma, **options).decode(requests)

    for request, completion in zip(requests, completions, strict=True):
        ids = list(request.prompt)
        for _ in range(request.limit):
            ids.append(int(target.table_PVW[(len(ids) - 1) % 5, ids[-1]].argmax()))
        assert ids[len(request.prompt) :] == completion.tokens
