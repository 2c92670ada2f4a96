"""The canary of a head: tiny heads on a tiny target, and an engine that serves them round by round, without a cache."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.canary import choices as module
from pipeline.canary.asking import Asked, Emitted
from pipeline.canary.choices import KEPT, CanaryDraft
from pipeline.canary.diagnosis import about_draft
from pipeline.canary.drafted import draft_evidence
from pipeline.canary.lengths import ExpectedLengths
from pipeline.canary.schema import DraftEvidence
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.servers.target import ServedModel
from pipeline.store.artifacts import Store
from pipeline.watch.increments import Increment, WatchedReplica
from tests.fakes import greedy_text, tiny_llama
from tests.heads import eagle3_draft, medusa_draft
from tests.standin_pair import HeadSpeculation

VOCABULARY, TOKENS, GAMMA, NAME = 24, 20, 3, "big-draft"
HEADS: dict[str, Callable[[Any], Any]] = {"eagle3": eagle3_draft, "medusa": medusa_draft}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4)


@pytest.fixture(params=HEADS, scope="module")
def make(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return HEADS[request.param]


@pytest.fixture(scope="module")
def texts(target: Any) -> list[tuple[list[int], list[int]]]:
    """Prompts, and what the target emits."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, VOCABULARY, size).tolist() for size in (2, 5, 9, 14)]
    return [(prompt, greedy_text(target, prompt, TOKENS, VOCABULARY)) for prompt in prompts]


@pytest.fixture(scope="module")
def head(target: Any, make: Callable[[Any], Any]) -> Any:
    return make(target)


@pytest.fixture(scope="module")
def counts(head: Any, texts: Any) -> list[Counts]:
    """Of an engine that serves the head which was examined."""
    return counted(head, texts)


def stale(make: Callable[[Any], Any], target: Any) -> Any:
    """The same head with other weights."""
    head = make(target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for weight in head.model.parameters():
            weight.data.add_(weight.std() * torch.randn_like(weight))
    return head


def examined(head: Any, store: Store | None = None, digest: str = "d") -> CanaryDraft:
    """As the champion, loaded from nowhere."""
    pair = SimpleNamespace(target=SimpleNamespace(dtype="float32"), draft=SimpleNamespace(dtype="bfloat16"))
    config = SimpleNamespace(pair=pair, evaluate=SimpleNamespace(batch_tokens=64))
    draft: Any = SimpleNamespace(kind=head.kind, config=config, variant="unquantized", digest=digest, run="one")
    found = CanaryDraft(draft, Progress(terminal=False), store, NAME)
    found.__dict__["_loaded"] = head
    return found


def counted(head: Any, texts: Any) -> list[Counts]:
    """What an engine counts of each answer that drafts with this head."""
    speculation, found = HeadSpeculation(head=head, gamma=GAMMA), list[Counts]()
    for prompt, tokens in texts:
        rounds = speculation.rounds(partial(_target, head.states.target), prompt, tokens)
        found.append(
            Counts(drafts=float(len(rounds)), draft_tokens=float(GAMMA * len(rounds)), accepted=float(sum(rounds)))
        )
    return found


def _target(target: Any, ids: list[int]) -> Any:
    with torch.inference_mode():
        return target(input_ids=torch.tensor([ids])).logits[0, -1].numpy()


def evidence(draft: CanaryDraft, texts: Any, counts: list[Counts], pooled: bool = False) -> DraftEvidence:
    """Of the counts by request, or of their sum where the engine gives none."""
    slice_: Any = SimpleNamespace(
        completions=[
            SimpleNamespace(id=f"p{number}", prompt=np.array(prompt, np.int32), domain="d")
            for number, (prompt, _) in enumerate(texts)
        ],
        max_tokens=TOKENS,
    )
    asked = Asked(
        model=ServedModel("target", "/t", None, None),
        emitted=[Emitted(tokens, None if pooled else one) for (_, tokens), one in zip(texts, counts, strict=True)],
        off_N=np.zeros(0),
        problem="",
        divergences=[],
        text_tokens=0,
        counters=Increment(counts=sum(counts[1:], counts[0]), after=WatchedReplica(seen=0.0, engines={}))
        if pooled
        else None,
    )
    return draft_evidence(asked, slice_, draft, "vllm", ExpectedLengths((GAMMA,), exported=True))


def test_the_examined_head_is_told_from_a_stale_one(
    target: Any, texts: Any, make: Callable[[Any], Any], head: Any, counts: list[Counts]
) -> None:
    """The engine's counts are those of the head that it serves, whether by request or of all together."""
    other = stale(make, target)
    wrong = counted(other, texts)
    assert counts != wrong
    draft = examined(head)
    assert draft.exact  # whatever the head is stored in, it is computed in its target's format
    for pooled in (False, True):
        found = [about_draft(evidence(draft, texts, one, pooled)) for one in (counts, wrong)]
        assert ["as_examined", "not_as_examined"] == [one.verdict for one in found]
    assert "as_examined" == about_draft(evidence(examined(other), texts, wrong)).verdict


def test_what_a_head_chose_is_kept(
    texts: Any,
    head: Any,
    counts: list[Counts],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The target is loaded for new answers alone, which a line says; another draft begins anew."""
    store = Store(tmp_path)
    first = evidence(examined(head, store), texts[:3], counts[:3])
    assert "so the target is loaded here for 3 answers; what it chose is kept in" in capsys.readouterr().err
    assert 3 * TOKENS * GAMMA < len(KEPT.path(store, NAME).read_text()) < 4000  # small

    asked_for = list[int]()
    computed = module.CanaryDraft._computed

    def noted(self: CanaryDraft, emitted: Any, places: int) -> Any:
        asked_for.append(len(emitted))
        return computed(self, emitted, places)

    monkeypatch.setattr(module.CanaryDraft, "_computed", noted)
    assert asdict(first) == asdict(evidence(examined(head, store), texts[:3], counts[:3]))
    assert [] == asked_for
    assert "as_examined" == about_draft(evidence(examined(head, store), texts, counts)).verdict
    assert [1] == asked_for
    evidence(examined(head, store, digest="other"), texts, counts)
    assert [1, 4] == asked_for


@pytest.mark.parametrize("make", [medusa_draft], scope="module")
def test_kept_choices_that_are_damaged(texts: Any, head: Any, counts: list[Counts], tmp_path: Path) -> None:
    """The line names the file and what to do; the answer about the target is given all the same."""
    store = Store(tmp_path)
    evidence(examined(head, store), texts, counts)
    path = KEPT.path(store, NAME)
    path.write_text(path.read_text().replace('"argmax": "', '"argmax": "00'))
    with pytest.raises(UnderstudyError, match="another number of bits"):
        KEPT.find(store, NAME)
    answer = about_draft(evidence(examined(head, store), texts, counts))
    assert ("inconclusive", True) == (answer.verdict, f"{path}: not a complete" in answer.why)
