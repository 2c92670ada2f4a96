"""The stages as functions, by name. A stage is imported when it is called first, because most import torch."""

import importlib
from collections.abc import Mapping
from typing import Any

from pipeline.running.context import Outcome, StageContext, StageRun
from pipeline.running.stage_list import STAGE_NAMES


def stage_runs() -> Mapping[str, StageRun]:
    """What the runner calls."""
    return {name: _imported_late(name) for name in STAGE_NAMES}


def _imported_late(name: str) -> StageRun:
    def run(context: StageContext[Any]) -> Outcome:
        outcome = importlib.import_module(f"stages.{name}").run(context)
        assert isinstance(outcome, Outcome), f"stages.{name}.run must return an Outcome"
        return outcome

    return run
