"""Evidence of canaries, for tests."""

from typing import Any

from pipeline.canary.choices import KeptAnswer, KeptChoices
from pipeline.canary.production import Production
from pipeline.canary.schema import (
    LARGEST,
    Answer,
    CanaryResult,
    Divergence,
    DraftEvidence,
    EndpointResult,
    RequestEvidence,
    TargetEvidence,
)
from pipeline.canary.verified import EngineCheck
from pipeline.engines.counts import Counts

FINE = Answer("as_examined", "as it was")


KEPT_CHOICES = KeptChoices(
    digest="d", run="one", places=3, answers={"key": KeptAnswer(tokens=4, argmax="fff0", ties="0010")}
)


def divergence(gap: float | None, against: bool = False) -> Divergence:
    return Divergence(prompt="p", position=3, emitted=5, stored=None if gap is None else 6, gap=gap, against=against)


def of_target(**changes: Any) -> TargetEvidence:
    known: dict[str, Any] = {
        "dtype": "float32",
        "log_p_tokens": 100,
        "log_p_difference": 1e-6,
        "problem": "",
        "completions": 10,
        "equal": 10,
        "divergences": [],
    }
    known |= changes
    difference, tokens = known["log_p_difference"], known["log_p_tokens"]
    alike = {
        "log_p_largest": [] if difference is None else [difference] * min(tokens, LARGEST),
        "text_tokens": 12 * known["completions"],
    }
    return TargetEvidence(**(alike | known))


def of_request(beyond: list[int] | None, ties: int = 0, prompt: str = "p") -> RequestEvidence:
    counts = Counts(drafts=4.0, draft_tokens=20.0, accepted=7.0)
    return RequestEvidence(
        prompt=prompt, tokens=12, counted=counts, least=counts, most=counts, ties=list(range(ties)), beyond=beyond
    )


def of_draft(*requests: RequestEvidence, **changes: Any) -> DraftEvidence:
    known: dict[str, Any] = {
        "source": "answers",
        "requests": list(requests),
        "gamma": 5,
        "exact": True,
        "positions": 1000,
        "near_ties": 3,
        "problem": "",
    }
    return DraftEvidence(**(known | changes))


def result(**changes: Any) -> CanaryResult:
    engine = EndpointResult(
        url="http://one:8000",
        model="target",
        version="0.32.0",
        target=of_target(divergences=[divergence(1e-6), divergence(None)]),
        draft=of_draft(of_request([]), of_request(None)),
        about_target=FINE,
        about_draft=FINE,
    )
    known: dict[str, Any] = {
        "time": "2026-11-25T10:00:00Z",
        "name": "big-draft",
        "version": "3",
        "digest": "d",
        "engine": "vllm",
        "prompts": 32,
        "max_tokens": 64,
        "target": FINE,
        "traffic": FINE,
        "draft": FINE,
        "endpoints": [engine],
        "unasked": {},
    }
    return CanaryResult(**(known | changes))


def verification() -> EngineCheck:
    return EngineCheck(
        time="2026-11-25T10:00:00Z",
        name="big-draft",
        version="3",
        action="alarm",
        why="other weights",
        reloaded=True,
        fits="2",
        canary=result(),
        production=Production(state="short", why="few accepted", drafts=1000.0, length=2.5, low=2.8),
    )
