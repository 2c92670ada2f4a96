"""What the stages of a run hold in memory, and whether it is free here, as `plan` and `run --dry-run` print it."""

from pipeline.models.memory import gib
from pipeline.planning.memory import MemoryForecast
from pipeline.report.console import Report


def print_memory(found: MemoryForecast) -> None:
    """To stdout: a line for each stage, one for what is free, and one for each stage that a run here is refused at."""
    if not found.stages:
        return
    out, prompt = Report(), f"{found.prompt.value:,.0f} tokens"
    out.text("memory of each process, at least (activations come on top):")
    unknown = dict[str, list[str]]()
    for one in found.stages:
        if one.bytes is None:
            unknown.setdefault(one.what, []).append(one.stage)
        else:
            out.text(f"  {one.stage}: {gib(one.bytes)}: {one.what}", indent=4)
    for why, stages in unknown.items():
        out.text(f"  {', '.join(stages)}: {why}", indent=4)
    if any(one.stage.startswith("generate") and one.bytes is not None for one in found.stages):
        out.text(f"  caches: of prompts of {prompt} ({found.prompt.source}; {found.prompt.key})", indent=4)
    if found.free:
        free = [f"{'an unknown size' if size is None else gib(size)} on {place}" for place, size in found.free.items()]
        out.text(f"memory that is free here: {'; '.join(free)}")
    if found.note:
        out.text(found.note)
    for one in found.stages:
        if one.refused:
            condition = f" if the longest prompt has {prompt}" if one.by_prompt else ""
            out.text(f"a run here is refused at {one.stage}{condition}: {one.refused}")
