"""The examined draft beside what an engine counted; what the draft does on a text is given here."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.explained_counts import Drafted
from pipeline.canary.arithmetic import near_ties
from pipeline.canary.asking import Asked, Emitted
from pipeline.canary.choices import Emission
from pipeline.canary.diagnosis import about_draft
from pipeline.canary.drafted import draft_evidence
from pipeline.canary.lengths import ExpectedLengths
from pipeline.canary.schema import DraftEvidence
from pipeline.config.server import Api
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError
from pipeline.servers.target import ServedModel
from pipeline.watch.increments import Increment, WatchedReplica

GAMMA, TOKENS = 3, 9
# The prefill emits the first of 9 tokens, so two rounds of 3 accepted and one of the target's own emit the others.
RIGHT = Counts(drafts=2.0, draft_tokens=6.0, accepted=6.0)
WRONG = Counts(drafts=4.0, draft_tokens=12.0, accepted=4.0)


def _evidence(
    counts: list[Counts | None],
    lengths: tuple[int, ...] = (TOKENS, TOKENS),
    pooled: Counts | None = None,
    margin: float = 1.0,
    dtype: str = "float32",
    api: Api = "vllm",
    limit: int = 64,
    exported: tuple[int, ...] = (),
) -> DraftEvidence:
    """Of a draft whose choice is each token that was emitted."""
    completions = [SimpleNamespace(prompt=np.arange(3), id=f"p{number}", domain="d") for number in range(len(lengths))]
    examined: Any = SimpleNamespace(completions=completions, max_tokens=limit)
    asked = Asked(
        model=ServedModel("target", "/t", None, None),
        emitted=[Emitted(list(range(length)), one) for length, one in zip(lengths, counts, strict=True)],
        off_N=np.zeros(0),
        problem="",
        divergences=[],
        text_tokens=0,
        counters=None if pooled is None else Increment(counts=pooled, after=WatchedReplica(seen=0.0, engines={})),
    )
    draft: Any = AlwaysRight(dtype == "float32", margin)
    return draft_evidence(asked, examined, draft, api, ExpectedLengths(exported or (GAMMA,), bool(exported)))


@dataclass
class AlwaysRight:
    """In the place of `ExaminedDraft`: its choice is each token that was emitted, and leads by `margin`."""

    exact: bool
    margin: float

    def on(self, emitted: Sequence[Emission], places: int) -> list[Drafted]:
        found = list[Drafted]()
        for one in emitted:
            margin_N, largest_N = np.full(len(one.tokens), self.margin), np.full(len(one.tokens), 9.0)
            found.append(Drafted(np.ones(len(one.tokens), bool), near_ties(margin_N, largest_N, self.exact)))
        return found


def test_counts_of_answers() -> None:
    """Those of the examined draft are explained; others by other choices of the draft, or by none. The first token of each is no
    position of a draft."""
    never = Counts(drafts=2.0, draft_tokens=6.0, accepted=0.0)
    found = _evidence([RIGHT, WRONG, never], lengths=(TOKENS,) * 3)
    assert ("answers", GAMMA, 3 * (TOKENS - 1), 0) == (found.source, found.gamma, found.positions, found.near_ties)
    assert [[], [1, 2, 4], None] == [one.beyond for one in found.requests]


def test_near_ties_are_by_the_number_format() -> None:
    """Logits of 9 that are 0.1 apart are a tie in bfloat16, and none in float32."""
    found = [_evidence([WRONG, WRONG], margin=0.1, dtype=dtype) for dtype in ("float32", "bfloat16")]
    assert [(True, 0), (False, 2 * (TOKENS - 1))] == [(one.exact, one.near_ties) for one in found]
    assert [(3, 0), (0, 3)] == [(len(one.requests[0].beyond or ()), len(one.requests[0].ties)) for one in found]


def test_an_answer_of_one_token_has_no_draft() -> None:
    """The prefill emitted it."""
    found = _evidence([RIGHT, Counts(drafts=0.0, draft_tokens=0.0, accepted=0.0)], lengths=(TOKENS, 1))
    assert ["p0"] == [one.prompt for one in found.requests]


@pytest.mark.parametrize(
    ("accepted", "margin", "dtype", "beyond"),
    [(12.0, 1.0, "float32", []), (5.0, 1.0, "float32", None), (11.0, 0.1, "bfloat16", [])],
)
def test_counters_of_all_answers(accepted: float, margin: float, dtype: str, beyond: list[int] | None) -> None:
    """Where no answer has counts: within what the draft, with its near-ties either way, can bring them to."""
    pooled = Counts(drafts=4.0, draft_tokens=12.0, accepted=accepted)
    found = _evidence([None, None], pooled=pooled, margin=margin, dtype=dtype)
    assert ("counters", [beyond]) == (found.source, [one.beyond for one in found.requests])
    assert "answers" == _evidence([RIGHT, RIGHT], pooled=pooled).source


def test_the_draft_length() -> None:
    """As the engine counts it, else as it was exported; one that changes is not known."""
    two = Counts(drafts=3.0, draft_tokens=6.0, accepted=6.0)
    uncounted = Counts(drafts=2.0, accepted=6.0)
    found = [_evidence(counts) for counts in ([two, two], [uncounted] * 2, [RIGHT, two])]
    assert [2, GAMMA, None] == [one.gamma for one in found]
    assert [False, False, True] == ["changes its draft length" in one.problem for one in found]
    between = Counts(drafts=2.0, draft_tokens=5.0, accepted=5.0)
    assert None is _evidence([between] * 2).gamma


@pytest.mark.parametrize(("api", "right"), [("vllm", 6.0), ("llama.cpp", 5.0)])
def test_drafts_at_the_end_of_a_request(api: Api, right: float) -> None:
    """llama.cpp drafts no further than the request may go."""
    least = _evidence([RIGHT, RIGHT], api=api, limit=8, lengths=(8, 8)).requests[0].least
    assert right == least.draft_tokens


TWO = Counts(drafts=3.0, draft_tokens=6.0, accepted=6.0)  # the same tokens, two at a time


@pytest.mark.parametrize(
    ("counts", "exported", "gamma", "compared", "others", "said"),
    [
        ([RIGHT, RIGHT], (3,), 3, 2, 0, ""),
        ([TWO, TWO], (3,), 2, 2, 0, "the engine drafts 2 tokens at a time, and its export has 3"),
        ([RIGHT, RIGHT], (2,), 3, 2, 0, "the engine drafts 3 tokens at a time, and its export has 2"),
        ([RIGHT, TWO], (3,), None, 1, 1, ""),  # an engine without room for all tokens drafts fewer
        ([RIGHT, TWO, TWO], (3,), None, 3, 0, "drafts 2 to 3 tokens at a time, and its export has 3"),
        ([RIGHT, TWO], (2,), None, 2, 0, "drafts 2 to 3 tokens at a time, and its export has 2"),
        ([RIGHT, TWO], (2, 3), None, 2, 0, ""),  # a schedule
        ([TWO, TWO], (1, 2, 3), 2, 2, 0, ""),
        ([TWO, TWO], (1, 3), 2, 2, 0, "drafts 2 tokens at a time, and its export has 1 or 3"),
    ],
)
def test_draft_lengths_are_those_of_the_export(
    counts: list[Counts | None],
    exported: tuple[int, ...],
    gamma: int | None,
    compared: int,
    others: int,
    said: str,
) -> None:
    """Each answer's draft tokens over its drafts; counts are compared at the length that an answer had."""
    found = _evidence(counts, lengths=(TOKENS,) * len(counts), exported=exported)
    assert (gamma, compared, others) == (found.gamma, len(found.requests), found.others)
    assert (bool(said), True) == (bool(found.lengths), said in found.lengths)


@pytest.mark.parametrize(
    ("exported", "said"), [(3, ""), (5, "the engine drafts 3 tokens at a time, and its export has 5")]
)
def test_an_engine_that_counts_no_drafts(exported: int, said: str) -> None:
    """Its length is that at which its counts are those of the draft; other weights are other weights at every length."""
    right: list[Counts | None] = [Counts(draft_tokens=6.0, accepted=6.0), Counts(draft_tokens=9.0, accepted=9.0)]
    found = _evidence(right, lengths=(TOKENS, 12), exported=(exported,), api="llama.cpp")
    assert (said, [[], []]) == (found.lengths, [one.beyond for one in found.requests])
    never = Counts(draft_tokens=24.0, accepted=0.0)
    assert "" == _evidence([never, never], exported=(exported,), api="llama.cpp").lengths


def test_nothing_is_loaded_where_nothing_was_counted() -> None:
    """The line says what to switch on; a draft that cannot be loaded is no error of the canary."""
    found = _evidence([None, None])
    assert ("nothing", [], 0) == (found.source, found.requests, found.positions)
    assert "--per-request-spec-decode-metrics" in found.problem


def test_a_draft_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer about the target is given all the same, and the line says what is missing."""

    def refuse(*given: Any) -> None:
        raise UnderstudyError("/models/target: no such file")

    monkeypatch.setattr(AlwaysRight, "on", refuse)
    found = about_draft(_evidence([RIGHT, RIGHT]))
    assert ("inconclusive", True) == (found.verdict, found.why.endswith("computed here: /models/target: no such file"))
