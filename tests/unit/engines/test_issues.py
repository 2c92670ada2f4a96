"""Known problems of engines are printed where their setting is."""

from typing import get_args

from pipeline.engines.facts import FACTS, ExportEngine
from pipeline.engines.issues import cpu_sampling_issues, schedule_issues


def test_those_of_a_schedule() -> None:
    """vLLM's newer runner ignores it, for one; an engine without such problems has no line."""
    assert "vLLM issue 51510: the newer model runner (V2) reads no draft-length schedule" in "\n".join(
        schedule_issues("vllm")
    )
    assert () == schedule_issues("tensorrt-llm")
    assert all(isinstance(schedule_issues(engine), tuple) for engine in get_args(ExportEngine))


def test_every_issue_of_a_schedule_is_marked() -> None:
    """What speaks of draft lengths or schedules is printed beside one."""
    for engine, facts in FACTS.items():
        named = [
            one.number for one in facts.issues if "schedule" in one.effect or "change of the draft length" in one.effect
        ]
        assert len(schedule_issues(engine)) == len(named)


def test_those_of_a_cpu_where_the_deployment_samples() -> None:
    """None at temperature 0, and of other engines none is known."""
    issue = (
        "vLLM issue 55005: the CPU build does not sample from the target while it speculates at a temperature above 0"
    )
    assert [(issue,), (), ()] == [cpu_sampling_issues(*one) for one in (("vllm", 0.5), ("vllm", 0.0), ("sglang", 1.0))]
