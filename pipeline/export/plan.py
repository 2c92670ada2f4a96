"""Everything that is decided before a file is written."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.evaluate import Drafting
from pipeline.config.quantize import Variant
from pipeline.drafts.head_config import head_of
from pipeline.engines.facts import FACTS, EngineFacts, ExportEngine
from pipeline.errors import UsageError
from pipeline.export.attention import attention_options
from pipeline.export.checks import NUMBERS, require_engine, require_loadable
from pipeline.export.gguf import find_converter
from pipeline.export.lengths import DraftLengths, choose_lengths
from pipeline.export.target import head_traits, states_read
from pipeline.judgement.decision_file import recorded_decision
from pipeline.judgement.speed import served_worth
from pipeline.registry.named import Draft

_IMPOSSIBLE = "\"'\\$`\n*?[]"  # in a path
_SCHEDULED = ("vllm", "tensorrt-llm")


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """One export."""

    draft: Draft
    engine: ExportEngine
    out: Path
    tensor_parallel: int
    lengths: DraftLengths
    drafting: Drafting
    notes: tuple[str, ...]
    worth: tuple[str, ...] = ()  # of the notes, those about its speed: they are in the start script too
    options: tuple[str, ...] = ()  # of the start command, that the pair needs
    converter: Path | None = None  # of llama.cpp
    states: tuple[
        int, ...
    ] = ()  # of the target, by number, that a head reads; empty where the engine does not get them

    @property
    def facts(self) -> EngineFacts:
        return FACTS[self.engine]

    @property
    def keeps_layout(self) -> bool:
        """Whether the draft's files are read here as they are exported."""
        head = self.facts.heads.get(self.draft.kind.name)
        return self.converter is None and (head is None or head.layout == "stored")

    @property
    def cpu_issues(self) -> tuple[str, ...]:
        """What who serves the draft on a CPU has to know."""
        return self.facts.cpu_sampling_issues(self.draft.config.sampling.temperature)

    def comment(self, text: str) -> str:
        """A comment of the start script: `text`, and what is known of the draft's speed."""
        return "\n".join([text, *(sentence[0].upper() + sentence[1:] + "." for sentence in self.worth)])


def require_free(out: Path) -> None:
    """UsageError unless `out` is absent or an empty directory."""
    if impossible := [character for character in _IMPOSSIBLE if character in str(out.absolute())]:
        raise UsageError(
            f"--out {out}: {' '.join(map(repr, impossible))} is not possible in the path (vLLM searches it as a pattern, and a "
            "shell starts from it); choose another directory"
        )
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: not a directory; name a new directory")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out}: it is not empty; name a new directory")


def plan_export(
    draft: Draft,
    engine: ExportEngine,
    out: Path,
    tensor_parallel: int = 1,
    converter: str | None = None,
    gamma: int | None = None,
) -> ExportPlan:
    """Check the draft against the engine, and choose its settings. `gamma`: the draft length, if not that of the run's config.

    UsageError for what the engine does not take.
    """
    facts = require_engine(engine)
    require_loadable(draft, engine, tensor_parallel)
    longest = head_of(draft.directory).longest if draft.kind.reads_states else None
    if gamma is not None and longest is not None and gamma > longest:
        raise UsageError(f"--gamma {gamma}: the draft proposes at most {longest} tokens; give {longest} or fewer")
    most = draft.config.evaluate.max_gamma
    if gamma is not None and gamma > most:
        raise UsageError(
            f"--gamma {gamma}: the run that trained the draft examined draft lengths up to {most} (evaluate.max_gamma), and of "
            f"{gamma} nothing is known; give {most} or fewer, or run it with a larger evaluate.max_gamma"
        )
    lengths = choose_lengths(draft, engine in _SCHEDULED and not draft.kind.reads_states, gamma)
    head = facts.heads.get(draft.kind.name)
    is_eagle = head is not None and head.layout == "eagle"
    samples = head is not None and head.samples and "part_of_vocabulary" not in head_traits(draft)
    drafting, notes = _drafting(draft, facts, samples)
    attention, worth = attention_options(draft, facts), _worth(draft, lengths)
    return ExportPlan(
        draft=draft,
        engine=engine,
        out=out.absolute(),
        tensor_parallel=tensor_parallel,
        lengths=lengths,
        drafting=drafting,
        notes=(
            *attention.notes,
            *lengths.notes,
            *(FACTS[engine].schedule_issues if lengths.by_batch else ()),
            *notes,
            *_given_notes(draft),
            *_dtype_notes(draft, engine),
            *_revision_notes(draft, facts),
            *_layout_notes(draft.variant, facts),
            *worth,
        ),
        worth=worth,
        options=attention.words,
        states=states_read(draft) if is_eagle else (),
        converter=find_converter(converter) if engine == "llama.cpp" else None,
    )


def _drafting(draft: Draft, facts: EngineFacts, samples: bool = False) -> tuple[Drafting, list[str]]:
    """How draft tokens are chosen: as examined, if the engine can. `samples`: it can sample those of this draft."""
    wanted: Drafting = "greedy" if draft.kind.greedy else draft.config.evaluate.draft_sampling
    if facts.drafts_as_sampled and draft.config.sampling.temperature > 0 and wanted == "greedy":
        return "probabilistic", [
            f"the draft was examined with greedy draft tokens, and {facts.title} samples them where it samples the target's: "
            "expected.json is for sampled draft tokens"
        ]
    if samples and wanted == "probabilistic" and draft.config.sampling.temperature > 0:
        return wanted, []
    if wanted in facts.drafting or draft.config.sampling.temperature == 0:
        return (wanted if wanted in facts.drafting else "greedy"), []
    return "greedy", [
        f"the draft was examined with sampled draft tokens, and {facts.title} drafts greedily: expected.json is for "
        "greedy drafting, which has a lower acceptance at this temperature"
    ]


def _worth(draft: Draft, lengths: DraftLengths) -> tuple[str, ...]:
    """What the decision about this draft measured of its speed. A schedule has lengths of its own."""
    decision = None if draft.given else recorded_decision(draft.record)
    if decision is None or decision.variant != draft.variant:
        return ()
    best = None if decision.speed is None else decision.speed.candidate.gamma
    return tuple(served_worth(decision, best if lengths.by_batch and best is not None else lengths.gamma))


def _given_notes(draft: Draft) -> list[str]:
    if draft.given is None:
        return []
    notes = [f"run {draft.run} did not train this draft: it is examined on the completions of that run"]
    if draft.kind.maps_tokens:
        notes.append(
            "the draft has another tokenizer, and the engine maps its tokens one by one, greedily: pair.draft.vocabulary = "
            "target makes a draft of it that can be trained and that every engine serves"
        )
    return notes


def _dtype_notes(draft: Draft, engine: ExportEngine) -> list[str]:
    served, examined = draft.pair.dtype("target"), draft.config.pair.draft.dtype
    if draft.kind.reads_states:  # examined in the target's dtype
        return []
    if not FACTS[engine].in_target_dtype or served not in NUMBERS or served == examined:
        return []
    return [f"{FACTS[engine].title} runs the draft in the target's dtype, {served}, and it was examined in {examined}"]


def _revision_notes(draft: Draft, facts: EngineFacts) -> list[str]:
    source = draft.config.pair.target
    if not facts.only_main or not source.is_hub or source.is_served:
        return []
    return [f"{facts.title} loads the target's revision main, and the draft was examined with {source.revision}"]


def _layout_notes(variant: Variant, facts: EngineFacts) -> list[str]:
    layout = facts.loads[variant]
    return [] if variant == "unquantized" else [f"{facts.title} loads {variant} as {layout}"]
