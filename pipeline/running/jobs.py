"""From a config to the artifacts a run builds, each with the settings and inputs that make up its key.

A stage may build several artifacts: quantize one per variant, evaluate one per draft. An artifact's dependencies are written
as references: `corpus` is the key of that artifact, `pair#target` the digest of something inside it (so another base draft
does not repeat the target's completions), `outside#champion` the digest of an input from outside the store.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.config.quantize import Variant
from pipeline.config.root import Config
from pipeline.running.stage_list import stage_named
from pipeline.running.tasks import (
    UNQUANTIZED,
    EvaluateTask,
    GenerateTask,
    QuantizeTask,
    Task,
    draft_input,
    examination_input,
    profile_input,
)
from pipeline.store.files import content_key

_TRAFFIC = {
    name: PromptSource.model_fields[name].default for name in ("time_field", "since", "sample", "half_life", "redact")
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One artifact to build."""

    stage: str
    part: str = ""  # for people: makes the id unique within the stage; no behaviour depends on it
    task: Task | None = None
    settings: Mapping[str, Any]  # JSON; the part of the config that enters the key
    reads: Mapping[str, str]  # name of the input -> reference

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.part}" if self.part else self.stage

    @property
    def key_settings(self) -> dict[str, Any]:
        """JSON: everything but the inputs that the artifact depends on."""
        return {**self.settings, **({} if self.task is None else {"task": self.task.key_settings()})}

    def key(self, digests: Mapping[str, str]) -> str:
        """Content key, given the digest of every input."""
        stage = stage_named(self.stage)
        return content_key([stage.name, stage.version, self.key_settings, dict(digests)])


def expand(config: Config, outside: Collection[str]) -> tuple[Job, ...]:
    """All jobs of a run in an order that respects their reads. `outside` names the outside inputs there are."""
    champion = "champion" in outside
    return (
        _pair(config),
        _corpus(config),
        *_generations(config),
        _distill(config),
        *_variants(config),
        *_examinations(config, champion),
        _gate(config, champion),
        _promote(config),
    )


def _has_before(config: Config) -> bool:
    return config.pair.is_reference or config.pair.target_before is not None


def _pair(config: Config) -> Job:
    pair = config.pair
    if pair.is_reference:
        made = {"reference": pair.reference.model_dump(), "seed": config.seed}
        return Job(stage="pair", settings=made, reads={"text": "outside#reference_text"})
    roles = ["target", "draft"] + (["target_before"] if pair.target_before else [])
    settings: dict[str, Any] = {role: {"dtype": getattr(pair, role).dtype} for role in roles}
    settings |= {"trust": pair.trust_remote_code}
    if pair.target.is_served:
        roles.append("tokenizer")
        # The servers are asked whether they can give what these need.
        settings["server"] = {"check": pair.generation_config, **_generating(config)}
    if pair.draft.is_of_target:
        settings |= {"layers": pair.draft.layers}
        roles.remove("draft")
    return Job(stage="pair", settings=settings, reads={role: f"outside#{role}" for role in roles})


def _corpus(config: Config) -> Job:
    settings = config.corpus.model_dump(mode="json")
    reads = {"tokenizer": "pair#tokenizer"}
    for number, source in enumerate(settings["sources"]):
        reads[f"prompts_{number}"] = "pair#prompts" if source["path"] == "reference" else f"outside#prompts_{number}"
        if config.corpus.sources[number].needs_time:
            reads["today"] = "outside#today"
        for (
            name,
            default,
        ) in _TRAFFIC.items():  # unset, they are not part of the key: corpora from before they existed stay
            if source[name] == default or (name == "time_field" and not config.corpus.sources[number].needs_time):
                del source[name]
        del source["path"]  # its digest is an input instead: a file that was moved is still the same file
    return Job(stage="corpus", settings=settings, reads=reads)


def _generating(config: Config) -> dict[str, Any]:
    return {
        "sampling": config.sampling.model_dump(),
        "generate": config.generate.key_settings(),
        "seed": config.seed,
    }


def _generations(config: Config) -> list[Job]:
    settings = _generating(config)

    def by(part: str, dtype: str, task: GenerateTask) -> Job:
        reads = {"target": f"pair#{task.target}", "shared": "pair#shared", "corpus": "corpus"}
        return Job(stage="generate", part=part, task=task, settings=settings | {"dtype": dtype}, reads=reads)

    jobs = [
        by("", config.pair.target.dtype, GenerateTask(target="target", splits=("train", "dev", "examination"))),
    ]
    if _has_before(config):
        before = config.pair.target_before or config.pair.target
        jobs.append(by("before", before.dtype, GenerateTask(target="target_before", splits=("examination",))))
    return jobs


def _distill(config: Config) -> Job:
    reads = {"draft": "pair#draft", "shared": "pair#shared", "completions": "generate"}
    if config.distill.on_policy.rounds:
        reads["target"] = "pair#target"
    return Job(stage="distill", settings=_training(config), reads=reads)


def _training(config: Config) -> dict[str, Any]:
    """The settings of every training."""
    return {
        "distill": config.distill.model_dump(),
        "seed": config.seed,
        "dtype": config.pair.draft.dtype,
        "draft_sampling": config.evaluate.draft_sampling,
    }


def _variants(config: Config) -> list[Job]:
    settings = _training(config) | {
        "head": config.quantize.quantized_head,
        "recovery": config.quantize.recovery.model_dump(),
        "sampling": config.sampling.model_dump(),
    }
    reads = {"draft": "distill#draft", "shared": "pair#shared", "completions": "generate"}
    return [
        Job(stage="quantize", part=variant, task=QuantizeTask(variant=variant), settings=settings, reads=reads)
        for variant in config.quantize.loadable
    ]


def _variants_of_candidate(config: Config) -> dict[Variant, str]:
    """Every variant of the candidate, with the reference to its draft."""
    return {UNQUANTIZED: "distill#draft"} | {
        variant: f"quantize/{variant}#draft" for variant in config.quantize.loadable
    }


def _contenders(config: Config) -> dict[Variant, str]:
    """The variants that could be promoted, with the reference to the draft. A variant can replace the unquantized draft only
    where the step times of each are known."""
    gate = config.gate
    found = {
        variant: draft
        for variant, draft in _variants_of_candidate(config).items()
        if gate.load and variant in gate.profile
    }
    return found or {UNQUANTIZED: "distill#draft"}


def _name(variant: Variant) -> str:
    """The part under which a variant of the candidate is examined."""
    return "candidate" if variant == UNQUANTIZED else variant


def _examinations(config: Config, champion: bool) -> list[Job]:
    """One examination per draft, in the order of the table that people see."""
    settings = {"evaluate": config.evaluate.model_dump(), "dtype": config.pair.draft.dtype}

    def of(part: str, draft: str, task: EvaluateTask) -> Job:
        completions = "generate/before" if task.target == "target_before" else "generate"
        reads = {"draft": draft, "completions": completions, "target": f"pair#{task.target}", "shared": "pair#shared"}
        return Job(stage="evaluate", part=part, task=task, settings=settings, reads=reads)

    base = EvaluateTask(kind="model", role="base")
    jobs = [of("base-before", "pair#draft", replace(base, target="target_before"))] if _has_before(config) else []
    jobs.append(of("base", "pair#draft", base))
    if champion:
        jobs.append(of("champion", "outside#champion", EvaluateTask(kind="model", role="champion")))
    for variant, draft in _variants_of_candidate(config).items():
        jobs.append(of(_name(variant), draft, EvaluateTask(kind="model", role="candidate", variant=variant)))
    if len(contenders := _contenders(config)) > 1:
        for variant, draft in contenders.items():
            task = EvaluateTask(kind="model", role="candidate", variant=variant, split="dev")
            jobs.append(of(f"dev-{_name(variant)}", draft, task))
    lookup = EvaluateTask(kind="prompt-lookup")
    jobs.append(
        Job(stage="evaluate", part="prompt-lookup", task=lookup, settings=settings, reads={"completions": "generate"})
    )
    return jobs


def _gate(config: Config, champion: bool) -> Job:
    reads = {"pair": "pair", "examination_base": "evaluate/base", "examination_lookup": "evaluate/prompt-lookup"}
    reads |= {"completions": "generate", "distilled": "distill#draft"}
    reads |= {"examination_champion": "evaluate/champion", "champion": "outside#champion"} if champion else {}
    reads |= {examination_input(variant): f"evaluate/{_name(variant)}" for variant in _variants_of_candidate(config)}
    contenders = _contenders(config)
    reads |= {draft_input(variant): draft for variant, draft in contenders.items()}
    if len(contenders) > 1:
        reads |= {examination_input(variant, "dev"): f"evaluate/dev-{_name(variant)}" for variant in contenders}
    reads |= {profile_input(variant): f"outside#{profile_input(variant)}" for variant in config.gate.profile}
    gate = config.gate.model_dump()
    del gate["profile"]  # the files' digests are inputs instead
    settings = {
        "gate": gate,
        "gamma": config.evaluate.gamma,
        "convention": config.evaluate.convention,
        "confidence": config.evaluate.confidence,
    }
    return Job(stage="gate", settings=settings, reads=reads)


def _promote(config: Config) -> Job:
    reads = {"decision": "gate", "distilled": "distill#draft", "pair": "pair", "completions": "generate"}
    for variant, draft in _contenders(config).items():
        reads |= {draft_input(variant): draft, examination_input(variant): f"evaluate/{_name(variant)}"}
    return Job(stage="promote", settings={}, reads=reads)
