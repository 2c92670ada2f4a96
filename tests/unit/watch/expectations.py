"""Expected counters and step costs for tests of the watch."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipeline.acceptance.schema import Figure, SamplingSettings
from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.engines.facts import FACTS
from pipeline.export.schema import CounterFigures, Expected, ExportedDraft, ServedFigures
from pipeline.judgement.schema import TargetSource
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.watch.compared import ComparedCount
from pipeline.watch.drift import started
from pipeline.watch.exposition import Total
from pipeline.watch.findings import Findings
from pipeline.watch.moved import with_look as domains_with_look
from pipeline.watch.own_requests import CanaryCounters, LatestCanaries
from pipeline.watch.reference import SLOTS, Reference, with_look
from pipeline.watch.share import FIRST, WatchedShare
from pipeline.watch.state import Last, WatchState, new_state
from pipeline.watch.thresholds import Paying, Window
from pipeline.watch.watched_counts import Watched, WatchedCounts

_TOTALS = {"drafts": Total(value=10.0, created=1.7e9), "accepted": Total(value=7.0)}
ASKED = LatestCanaries(
    askings=(
        CanaryCounters(number=1, previous=0, before={"http://one:8000": {"0": _TOTALS}}, after={}),
        CanaryCounters(
            number=2, previous=1, before={"http://one:8000": {"0": _TOTALS}}, after={"http://one:8000": None}
        ),
    )
)


def expected_at(first: float, accepted: float, gamma: int, digest: str = "d") -> Expected:
    """The expected counters of a draft whose first token is accepted so often, and so many tokens a draft."""
    figures = CounterFigures(
        drafts=1000.0,
        accepted=1000.0 * accepted,
        accepted_per_position=[first * 0.8**place for place in range(gamma)],
        mean_acceptance_length=Figure(1 + accepted, None, None, 1),
        fresh_prompts={},
    )
    return Expected(
        convention="vllm",
        sampling=SamplingSettings(1.0, 0, 1.0, 0.0),
        draft_sampling="greedy",
        gamma=gamma,
        confidence=0.95,
        notes=[],
        deployed=ServedFigures(1, 1, first, {gamma: figures}),
        temperature_0=None,
        engine="vllm",
        checked_version="0",
        counters=FACTS["vllm"].counters,
        draft=ExportedDraft(
            label="draft", digest=digest, exported_digest=digest, variant="unquantized", resized_to_target=False
        ),
        target=TargetSource("org/big", None, "d", "float32"),
        completions="c",
        draft_lengths_by_batch=[],
    )


def FlatCosts(plain: float, speculative: float) -> StepCosts:
    """Steps that take the same at each batch size up to 64 and each draft length up to 8."""

    class Flat:
        max_gamma, plain, max_requests = 8, True, 64

        def steps(self, cap: int, context: int, gammas: int | None = None) -> Any:
            step_GN = np.full(((gammas or 8) + 1, cap), speculative)
            step_GN[0] = plain
            return step_GN

    return cast(StepCosts, Flat())


def watched_state() -> WatchState:
    """A state with something in every field."""
    counts = Counts(drafts=10.0, draft_tokens=50.0, accepted=20.0, accepted_first=8.0, tokens=30.0)
    share = WatchedShare(name=FIRST, trials=10.0, successes=8.0, predicted=0.7)
    reference = Reference(
        level=(0.01,) * SLOTS, band=0.02, design_effect=3.0, typical=100.0, block=0.01, days=7.0, trials=1e5
    )
    begun = new_state(1.7e9)
    drift = replace(started(1.7e9), reference=reference).with_look(share, 1.7e9, 300.0, WatchConfig())
    drift = replace(drift, hours=with_look((), share, 1.7e9, 300.0))
    return replace(
        begun,
        counts=WatchedCounts(began=1.7e9, by_name={FIRST: Watched(drift=drift, missed=300.0)}),
        window=Window((counts,), True, 1.7e9),
        domains=domains_with_look({}, {"chat": counts}, None, 300.0),
        paying=Paying(speedup=1.2, pays=True, since=1.7e9),
        last={FIRST: Last(time=1.7e9, share=0.8, predicted=0.7, trials=10.0)},
        told={"drift": "low 1"},
        draft="d",
        compared=ComparedCount(
            reads="endpoints", places=("http://one:8000",), engine="vllm", rule="sequential", is_predicted=True
        ),
        champion="d",
    )


def found_in(own: WatchState, **others: WatchState) -> Findings:
    """`others`: by what follows the name in their keys."""
    states = {f"big-draft@{key}": state for key, state in others.items()}
    return Findings(name="big-draft", key="big-draft", own=own, others=states, path=Path)


def with_reference(state: WatchState, reference: Reference | None) -> WatchState:
    """Of each of its counts."""
    by_name = {
        name: replace(one, drift=replace(one.drift, reference=reference)) for name, one in state.counts.by_name.items()
    }
    return replace(state, counts=replace(state.counts, by_name=by_name))
