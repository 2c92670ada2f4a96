"""Files of the store are written as they were, to the byte: another process, or a program of the user, may read them.

`tests/fixtures/stored` has what was written before `@stored`. A kind whose schema is raised is written there again.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.acceptance.step_times import StepTimes
from pipeline.canary.choices import KeptChoices
from pipeline.canary.schema import CanaryResult
from pipeline.canary.verified import EngineCheck
from pipeline.distillation.learning_curve import LearningCurve
from pipeline.export.schema import Expected
from pipeline.handover.settled import Settled
from pipeline.judgement.schema import Decision
from pipeline.latency.costs.measured_points import MeasuredPoints
from pipeline.store.files import write_json
from pipeline.store.parsing import format_of
from pipeline.store.runs import RunRecord
from pipeline.watch.own_requests import LatestCanaries
from pipeline.watch.state import WatchState

STORED = Path(__file__).parents[2] / "fixtures" / "stored"
KINDS: dict[str, type[Any]] = {
    "decision": Decision,
    "kept_choices_of_a_head": KeptChoices,
    "record_of_canaries": LatestCanaries,
    "expected_counters": Expected,
    "learning_curve": LearningCurve,
    "measured_points": MeasuredPoints,
    "notices": Settled,
    "result_of_a_canary": CanaryResult,
    "result_of_a_verification": EngineCheck,
    "run_record": RunRecord,
    "step_times": StepTimes,
    "state_of_the_watch": WatchState,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_is_written_as_it_was(kind: str, tmp_path: Path) -> None:
    """Every field, in the same form."""
    before = STORED / f"{kind}.json"

    write_json(tmp_path / "again.json", asdict(format_of(KINDS[kind]).read(before)))

    assert before.read_bytes() == (tmp_path / "again.json").read_bytes()
