"""From a config to the artifacts a run builds, each with the settings and inputs that make up its key.

A stage may build several artifacts: quantize one per variant, evaluate one per draft. An artifact's dependencies are written
as references: `corpus` is the key of that artifact, `pair#target` the digest of something inside it (so another base draft
does not repeat the target's completions), `outside#champion` the digest of an input from outside the store. What depends on the
clock is an input too (`AGE`): a stored decision that rests on it would otherwise be found again when it is no longer true.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.evaluate import SpeedConfig
from pipeline.config.generate import SamplingConfig
from pipeline.config.pair import NumberFormat
from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.config.root import Config
from pipeline.config.segments import SegmentsConfig
from pipeline.config.tasks import (
    CHAMPION_PROFILE,
    EvaluateTask,
    GenerateTask,
    PromptsTask,
    QuantizeTask,
    Task,
    draft_input,
    examination_input,
    profile_input,
)
from pipeline.distillation.settings import RoundSettings, TrainingSettings
from pipeline.drafts.kinds import LOOKUP, PLAIN
from pipeline.judgement.schema import ChampionVersion
from pipeline.running.settings import (
    TRANSPLANT,
    CorpusSettings,
    DistillSettings,
    EvaluateSettings,
    GateSettings,
    GenerateSettings,
    PairSettings,
    PromoteSettings,
    QuantizeSettings,
    ServerNeeds,
    Settings,
    SpeedSettings,
    key_json,
)
from pipeline.running.stage_list import stage_named
from pipeline.store.files import content_key

PROMPTS_JOB = "generate/prompts"  # the target's distributions over train prompts


@dataclass(frozen=True, kw_only=True)
class Job:
    """One artifact to build."""

    stage: str
    part: str = ""  # for people: makes the id unique within the stage; no behaviour depends on it
    task: Task | None = None  # for people and tables; what the stage is asked is in its settings
    settings: Settings
    reads: Mapping[str, str]  # name of the input -> reference
    shares: str = ""  # for plans: the job whose artifact this one finds, unless the draft's shape changes in training

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.part}" if self.part else self.stage

    @property
    def summary(self) -> str:
        """What the job does, for people."""
        if isinstance(self.task, PromptsTask):
            return "the target scores train prompts"
        return stage_named(self.stage).summary

    @property
    def in_parts(self) -> bool:
        """Whether tasks of a scheduler can make shares of it."""
        return stage_named(self.stage).in_parts

    @property
    def key_settings(self) -> Any:
        """JSON: everything but the inputs that the artifact depends on."""
        return key_json(self.settings)

    def key(self, digests: Mapping[str, str]) -> str:
        """Content key, given the digest of every input."""
        stage = stage_named(self.stage)
        return content_key([stage.name, stage.version, self.key_settings, dict(digests)])


def jobs_of(config: Config, champion: ChampionVersion | None = None) -> tuple[Job, ...]:
    """All jobs of a run in an order that respects their reads; with `champion` also those that it is compared in."""
    return (
        _pair(config),
        _corpus(config),
        *_generations(config),
        _distill(config),
        *_variants(config),
        *_examinations(config, champion is not None),
        *_speeds(config, champion is not None),
        _gate(config, champion),
        _promote(config, champion),
    )


def _has_before(config: Config) -> bool:
    return config.pair.is_reference or config.pair.target_before is not None


def _pair(config: Config) -> Job:
    pair = config.pair
    if pair.is_reference:
        made = PairSettings(
            reference=pair.reference,
            seed=config.seed,
            target="float32",
            draft="float32",
            target_before="float32",
            revisions={},
        )
        return Job(stage="pair", settings=made, reads={"text": "outside#reference_text"})
    settings = PairSettings(
        target=pair.target.dtype,
        draft=pair.draft.dtype,
        target_before=pair.target_before.dtype if pair.target_before else None,
        revisions={
            role: source.revision
            for role in ("target", "draft", "target_before")
            if (source := getattr(pair, role)) is not None
        },
        layers=pair.draft.layers,
        head=pair.draft.head,
        seed=None if pair.draft.head is None else config.seed,
        server=_server_needs(config) if pair.target.is_served else None,
        rope_factors=pair.rope_factors,
        vocabulary=pair.draft.vocabulary,
        tokens=pair.draft.tokens,
        transplant=None if pair.draft.vocabulary == "own" else TRANSPLANT,
    )
    roles = [role for role in settings.roles if role != "draft" or not pair.draft.is_of_target]
    roles += ["tokenizer"] if pair.target.is_served else []
    return Job(stage="pair", settings=settings, reads={role: f"outside#{role}" for role in roles})


def _server_needs(config: Config) -> ServerNeeds:
    """The servers are asked whether they can give what `generate` will ask of them."""
    generate, sampling = config.generate, config.sampling
    warmer = [sampling.model_copy(update={"temperature": temperature}) for temperature in generate.train_temperatures]
    return ServerNeeds(
        api=generate.server.api,
        logprobs=generate.server.logprobs,
        samplings=(sampling, *generate.examination_samplings, *warmer),
        check_defaults=config.pair.generation_config == "check",
    )


def _corpus(config: Config) -> Job:
    reads, sources = {"tokenizer": "pair#tokenizer"}, []
    for number, source in enumerate(config.corpus.sources):
        reads[f"prompts_{number}"] = "pair#prompts" if source.is_reference else f"outside#prompts_{number}"
        if source.needs_time:
            reads["today"] = "outside#today"
        # The digest is an input instead of the path: a file that was moved is still the same file.
        sources.append(source if source.is_reference else source.model_copy(update={"path": ""}))
    settings = CorpusSettings(corpus=config.corpus.model_copy(update={"sources": tuple(sources)}))
    return Job(stage="corpus", settings=settings, reads=reads)


def _generations(config: Config) -> list[Job]:
    whole = GenerateTask(target="target", splits=("train", "dev", "examination"))
    jobs = [_generation(config, "", config.pair.target.dtype, whole)]
    if config.distill.prompt_weight:
        jobs.append(_prompt_positions(config))
    if _has_before(config):
        before = config.pair.target_before or config.pair.target
        task = GenerateTask(target="target_before", splits=("examination",))
        jobs.append(_generation(config, "before", before.dtype, task))
    return jobs


def _prompt_positions(config: Config) -> Job:
    """The job at temperature 1, whatever the deployment's sampling is: nothing is sampled, decoded, labelled or rendered."""
    job = _generation(
        config, "prompts", config.pair.target.dtype, PromptsTask(positions=config.generate.max_new_tokens)
    )
    assert isinstance(job.settings, GenerateSettings)
    unused = replace(
        job.settings,
        sampling=SamplingConfig(),
        examination_samplings=(),
        train_temperatures=(),
        lookahead=0,
        batch=None,
        segments=SegmentsConfig(),
        chat_template=None,
        chat_template_arguments={},
        prompt_limit=0,
    )
    return replace(job, settings=unused)


def _generation(config: Config, part: str, dtype: NumberFormat, task: GenerateTask | PromptsTask) -> Job:
    generate, corpus = config.generate, config.corpus
    served = generate.is_served and task.target == "target"
    settings = GenerateSettings(
        task=task,
        sampling=config.sampling,
        examination_samplings=generate.examination_samplings,
        train_temperatures=generate.train_temperatures,
        max_new_tokens=generate.max_new_tokens,
        lookahead=generate.lookahead,
        distribution_tokens=generate.stored_tokens,
        distribution_selection=generate.distribution_selection,
        batch=None if served else generate.batch,
        shard=generate.shard,
        dtype=dtype,
        seed=config.seed,
        api=generate.server.api if served else None,
        logprobs=generate.server.logprobs if served else None,
        chat_template=corpus.chat_template,
        chat_template_arguments=corpus.chat_template_arguments,
        prompt_limit=corpus.prompt_limit,
        segments=generate.segments,
    )
    reads = {"target": f"pair#{task.target}", "shared": "pair#shared", "corpus": "corpus"}
    return Job(stage="generate", part=part, task=task, settings=settings, reads=reads)


def _distill(config: Config) -> Job:
    reads = {"draft": "pair#draft", "shared": "pair#shared", "completions": "generate"}
    settings, generate = training_settings(config), config.generate
    if config.distill.prompt_weight:
        reads["prompts"] = PROMPTS_JOB
    if config.distill.on_policy.rounds:
        reads["target"] = "pair#target"
        rounds = RoundSettings(
            target_dtype=config.pair.target.dtype,
            max_new_tokens=generate.max_new_tokens,
            distribution_tokens=generate.stored_tokens,
            batch=generate.batch,
            shard=generate.shard,
        )
        settings = replace(settings, rounds=rounds)
    return Job(stage="distill", settings=DistillSettings(training=settings), reads=reads)


def training_settings(config: Config) -> TrainingSettings:
    """The settings of every training."""
    return TrainingSettings(
        distill=config.distill.model_copy(update={"processes": "auto", "shard": False}),  # resources
        rounds=None,
        sampling=config.sampling,
        draft_sampling=config.evaluate.draft_sampling,
        batch_tokens=config.evaluate.batch_tokens,
        dtype=config.pair.draft.dtype,
        seed=config.seed,
    )


def _variants(config: Config) -> list[Job]:
    reads = {"draft": "distill#draft", "shared": "pair#shared", "completions": "generate"}
    quantize, jobs = config.quantize, []
    training = training_settings(config)  # a variant is trained further on completions alone
    training = replace(training, distill=training.distill.model_copy(update={"prompt_weight": 0.0}))
    for variant in quantize.loadable:
        task = QuantizeTask(variant=variant)
        settings = QuantizeSettings(
            task=task, training=training, head=quantize.quantized_head, recovery=quantize.recovery
        )
        jobs.append(Job(stage="quantize", part=variant, task=task, settings=settings, reads=reads))
    return jobs


def _variants_of_candidate(config: Config) -> dict[Variant, str]:
    """Every variant of the candidate, with the reference to its draft."""
    return {UNQUANTIZED: "distill#draft"} | {
        variant: f"quantize/{variant}#draft" for variant in config.quantize.loadable
    }


def _contenders(config: Config) -> dict[Variant, str]:
    """The variants that could be promoted, with the reference to the draft. A variant can replace the unquantized draft only
    where the step times of each are known."""
    gate = config.gate
    inputs = {
        variant: draft
        for variant, draft in _variants_of_candidate(config).items()
        if gate.load and variant in gate.profile
    }
    return inputs or {UNQUANTIZED: "distill#draft"}


def _name(variant: Variant) -> str:
    """The part under which a variant of the candidate is examined."""
    return "candidate" if variant == UNQUANTIZED else variant


def _examinations(config: Config, champion: bool) -> list[Job]:
    """One examination per draft, in the order of the table that people see."""

    def of(part: str, draft: str | None, task: EvaluateTask) -> Job:
        reads = {"completions": "generate/before" if task.target == "target_before" else "generate"}
        reads |= {"draft": draft, "target": f"pair#{task.target}", "shared": "pair#shared"} if draft else {}
        settings = EvaluateSettings(
            task=task.examination,
            evaluate=config.evaluate.model_copy(update={"speed": SpeedConfig()}),  # which no examination reads
            sampling=config.sampling,
            dtype=config.pair.draft.dtype,
        )
        return Job(stage="evaluate", part=part, task=task, settings=settings, reads=reads)

    base = EvaluateTask(kind=PLAIN.name, role="base")
    jobs = [of("base-before", "pair#draft", replace(base, target="target_before"))] if _has_before(config) else []
    jobs.append(of("base", "pair#draft", base))
    if champion:
        jobs.append(of("champion", "outside#champion", EvaluateTask(kind=PLAIN.name, role="champion")))
    for variant, draft in _variants_of_candidate(config).items():
        jobs.append(of(_name(variant), draft, EvaluateTask(kind=PLAIN.name, role="candidate", variant=variant)))
    if len(contenders := _contenders(config)) > 1:
        for variant, draft in contenders.items():
            task = EvaluateTask(kind=PLAIN.name, role="candidate", variant=variant, split="dev")
            jobs.append(of(f"dev-{_name(variant)}", draft, task))
    jobs.append(of("prompt-lookup", None, EvaluateTask(kind=LOOKUP.name)))
    return jobs


# Of references whose digest is computed from the artifact (`plan.py`, `speed_inputs.py`):
AGE = "at most "  # days old, such as `generate#at most 30`: whether it is
SHAPE = "shape of "  # a role, such as `pair#shape of target`: what decides the seconds of its passes
LENGTH = "mean length"  # of completions, about
CAN_BE_COMPUTED = "can be computed"  # whether the examined draft can


def measures_speed(config: Config) -> bool:
    """A target on servers is not timed: its speed depends on the other requests there."""
    return config.evaluate.speed.turns > 0 and not config.pair.target.is_served


def _speeds(config: Config, champion: bool) -> list[Job]:
    """Step times with the draft that the candidate is compared with, and with the candidate: one artifact where they have one
    shape."""
    if not measures_speed(config):
        return []
    evaluate = config.evaluate
    settings = SpeedSettings(
        speed=evaluate.speed,
        confidence=evaluate.confidence,
        max_gamma=evaluate.max_gamma,
        sampling=config.sampling,
        draft_sampling=evaluate.draft_sampling,
        target=config.pair.target.dtype,
        dtype=config.pair.draft.dtype,
    )
    compared = f"outside#{SHAPE}champion" if champion else f"pair#{SHAPE}draft"
    drafts = {_compared(champion): compared, _name(UNQUANTIZED): f"distill#{SHAPE}draft"}
    return [
        Job(
            stage="speed",
            part=part,
            settings=settings,
            reads={
                "target": f"pair#{SHAPE}target",
                "draft": draft,
                "machine": "outside#machine",
                "completions": f"generate#{LENGTH}",
                "examination": f"evaluate/{part}#{CAN_BE_COMPUTED}",
            },
            shares="" if champion or part == _compared(champion) else f"speed/{_compared(champion)}",
        )
        for part, draft in drafts.items()
    ]


def _compared(champion: bool) -> str:
    """The part of the draft that the candidate is compared with."""
    return "champion" if champion else "base"


def _gate(config: Config, champion: ChampionVersion | None) -> Job:
    sides = {"speed": _name(UNQUANTIZED), "speed_baseline": _compared(champion is not None)}
    reads = {name: f"speed/{part}" for name, part in sides.items()} if measures_speed(config) else {}
    reads |= {"pair": "pair", "examination_base": "evaluate/base", "examination_lookup": "evaluate/prompt-lookup"}
    reads |= {"completions": "generate", "distilled": "distill#draft"}
    reads |= {"examination_champion": "evaluate/champion", "champion": "outside#champion"} if champion else {}
    reads |= {examination_input(variant): f"evaluate/{_name(variant)}" for variant in _variants_of_candidate(config)}
    if (most := config.gate.max_examination_days) is not None:
        reads["completions_age"] = f"generate#{AGE}{most}"
    contenders = _contenders(config)
    reads |= {draft_input(variant): draft for variant, draft in contenders.items()}
    if len(contenders) > 1:
        reads |= {examination_input(variant, "dev"): f"evaluate/dev-{_name(variant)}" for variant in contenders}
    profiles = [profile_input(variant) for variant in config.gate.profile]
    if champion and config.gate.champion_profile is not None:
        profiles.append(CHAMPION_PROFILE)
    reads |= {name: f"outside#{name}" for name in profiles}
    settings = GateSettings(
        # The files' digests are inputs instead.
        rules=config.gate.model_copy(update={"profile": {}, "champion_profile": None}),
        variants=config.quantize.loadable,
        gamma=config.evaluate.gamma,
        max_gamma=config.evaluate.max_gamma,
        convention=config.evaluate.convention,
        confidence=config.evaluate.confidence,
        sampling=config.sampling,
        seed=config.seed,
        champion=champion,
    )
    return Job(stage="gate", settings=settings, reads=reads)


def _promote(config: Config, champion: ChampionVersion | None) -> Job:
    reads = {"decision": "gate", "distilled": "distill#draft", "pair": "pair", "completions": "generate"}
    for variant, draft in _contenders(config).items():
        reads |= {draft_input(variant): draft, examination_input(variant): f"evaluate/{_name(variant)}"}
    settings = PromoteSettings(
        name=config.name,
        promote=config.promote,
        max_examination_days=config.gate.max_examination_days,
        served=config.gate.served,
        champion=champion,
    )
    return Job(stage="promote", settings=settings, reads=reads)
