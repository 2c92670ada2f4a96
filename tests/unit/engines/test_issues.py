"""Known problems of engines are printed where their setting is."""

from typing import get_args

from pipeline.engines.facts import FACTS, ExportEngine


def test_those_of_a_schedule() -> None:
    """vLLM's newer runner ignores it, for one; an engine without such problems has no line."""
    assert "vLLM issue 51510: the newer model runner (V2) reads no draft-length schedule" in "\n".join(
        FACTS["vllm"].schedule_issues
    )
    assert () == FACTS["tensorrt-llm"].schedule_issues
    assert all(isinstance(FACTS[engine].schedule_issues, tuple) for engine in get_args(ExportEngine))


def test_every_issue_of_a_schedule_is_marked() -> None:
    """What speaks of draft lengths or schedules is printed beside one."""
    for facts in FACTS.values():
        named = [
            one.number for one in facts.issues if "schedule" in one.effect or "change of the draft length" in one.effect
        ]
        assert len(facts.schedule_issues) == len(named)


def test_those_of_a_cpu_where_the_deployment_samples() -> None:
    """None at temperature 0, and of other engines none is known."""
    issue = (
        "vLLM issue 55005: the CPU build does not sample from the target while it speculates at a temperature above 0"
    )
    assert [(issue,), (), ()] == [
        FACTS[engine].cpu_sampling_issues(temperature)
        for engine, temperature in (("vllm", 0.5), ("vllm", 0.0), ("sglang", 1.0))
    ]
