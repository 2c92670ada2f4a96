"""Defaults of `understudy check`."""

import inspect

from pipeline.commands.check import check
from pipeline.config.gate import GateConfig
from understudy_pytest import Acceptance


def test_a_segment_may_lose_what_the_gate_allows() -> None:
    """In the command and in the pytest plugin."""
    allowed = GateConfig.model_fields["segment_margin"].default
    found = [inspect.signature(one).parameters["segment_margin"].default for one in (check, Acceptance.not_worse_than)]

    assert [allowed, allowed] == found
