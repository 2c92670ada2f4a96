"""From a config to the artifacts a run builds, each with the settings and inputs that make up its key.

A stage may build several artifacts: quantize one a variant, evaluate one a draft. What an artifact depends on is written
as a reference: `corpus` is the key of that artifact, `pair#target` the digest of something inside it (so that another
base draft does not make the target speak again), `outside#champion` the digest of an input from outside the store.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.root import Config
from pipeline.running.stage_list import stage_named
from pipeline.store.files import content_key


@dataclass(frozen=True)
class Job:
    """One artifact to build."""

    stage: str
    part: str
    settings: Mapping[str, Any]  # JSON; what of the config enters the key
    reads: Mapping[str, str]  # role -> reference

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.part}" if self.part else self.stage

    def key(self, digests: Mapping[str, str]) -> str:
        """Content key, given the digest of every role. The part's name does not enter it: a champion that is
        examined under one name is never examined again under another."""
        stage = stage_named(self.stage)
        return content_key([stage.name, stage.version, self.settings, dict(digests)])


def expand(config: Config, outside: Collection[str]) -> tuple[Job, ...]:
    """All jobs of a run in an order that respects their reads. `outside` names the outside inputs there are."""
    examinations = _examinations(config, "champion" in outside)
    return (
        _pair(config),
        _corpus(config),
        *_generations(config),
        _distill(config),
        *_variants(config),
        *examinations,
        _gate(config, [job.part for job in examinations], "champion" in outside),
        _promote(config),
    )


def _has_before(config: Config) -> bool:
    return config.pair.is_reference or config.pair.target_before is not None


def _pair(config: Config) -> Job:
    pair = config.pair
    if pair.is_reference:
        settings = {"reference": pair.reference.model_dump(), "seed": config.seed}
        return Job("pair", "", settings, {"text": "outside#reference_text"})
    roles = ["target", "draft"] + (["target_before"] if pair.target_before else [])
    settings = {role: {"dtype": getattr(pair, role).dtype} for role in roles} | {"trust": pair.trust_remote_code}
    if pair.draft.is_of_target:
        settings |= {"layers": pair.draft.layers}
        roles.remove("draft")
    return Job("pair", "", settings, {role: f"outside#{role}" for role in roles})


def _corpus(config: Config) -> Job:
    settings = config.corpus.model_dump(mode="json")
    reads = {"tokenizer": "pair#tokenizer"}
    for number, source in enumerate(settings["sources"]):
        reads[f"prompts_{number}"] = "pair#prompts" if source["path"] == "reference" else f"outside#prompts_{number}"
        del source["path"]  # the digest stands for it: a moved file is the same file
    return Job("corpus", "", settings, reads)


def _generations(config: Config) -> list[Job]:
    common = {
        "sampling": config.sampling.model_dump(),
        "generate": config.generate.model_dump(mode="json"),
        "seed": config.seed,
    }
    jobs = [
        Job(
            "generate",
            "",
            common | {"dtype": config.pair.target.dtype, "splits": ["train", "dev", "examination"]},
            {"target": "pair#target", "shared": "pair#shared", "corpus": "corpus"},
        )
    ]
    if _has_before(config):
        before = config.pair.target_before or config.pair.target
        jobs.append(
            Job(
                "generate",
                "before",
                common | {"dtype": before.dtype, "splits": ["examination"]},
                {"target": "pair#target_before", "shared": "pair#shared", "corpus": "corpus"},
            )
        )
    return jobs


def _distill(config: Config) -> Job:
    reads = {"draft": "pair#draft", "shared": "pair#shared", "completions": "generate"}
    return Job("distill", "", _learning(config), reads)


def _learning(config: Config) -> dict[str, Any]:
    """What a training is made by."""
    return {
        "distill": config.distill.model_dump(),
        "seed": config.seed,
        "dtype": config.pair.draft.dtype,
        "draft_sampling": config.evaluate.draft_sampling,
        "convention": config.evaluate.convention,
    }


def _variants(config: Config) -> list[Job]:
    settings = _learning(config) | {
        "head": config.quantize.quantised_head,
        "recovery": config.quantize.recovery.model_dump(),
        "sampling": config.sampling.model_dump(),
    }
    reads = {"draft": "distill#draft", "shared": "pair#shared", "completions": "generate"}
    return [Job("quantize", variant, settings | {"variant": variant}, reads) for variant in config.quantize.loadable]


def _contenders(config: Config) -> dict[str, str]:
    """Forms of the candidate that could be promoted, by the name under which they are examined, with the reference to the draft.
    Only where it is known what each takes to serve can a variant take the place of what was trained."""
    forms = {"candidate": ("none", "distill#draft")}
    forms |= {variant: (variant, f"quantize/{variant}#draft") for variant in config.quantize.loadable}
    gate = config.gate
    found = {name: draft for name, (form, draft) in forms.items() if gate.load and form in gate.profile}
    return found or {"candidate": "distill#draft"}


def _examinations(config: Config, champion: bool) -> list[Job]:
    """One examination a draft; the order is the order of the table people see."""
    settings = {"evaluate": config.evaluate.model_dump(), "dtype": config.pair.draft.dtype, "kind": "model"}

    def of(part: str, draft: str, completions: str = "generate", target: str = "pair#target") -> Job:
        return Job(
            "evaluate",
            part,
            settings,
            {"draft": draft, "completions": completions, "target": target, "shared": "pair#shared"},
        )

    jobs = [of("stock-before", "pair#draft", "generate/before", "pair#target_before")] if _has_before(config) else []
    jobs.append(of("stock", "pair#draft"))
    if champion:
        jobs.append(of("champion", "outside#champion"))
    jobs.append(of("candidate", "distill#draft"))
    jobs.extend(of(variant, f"quantize/{variant}#draft") for variant in config.quantize.loadable)
    if len(contenders := _contenders(config)) > 1:
        jobs.extend(
            replace(of(f"dev-{name}", draft), settings=settings | {"split": "dev"})
            for name, draft in contenders.items()
        )
    jobs.append(Job("evaluate", "prompt-lookup", settings | {"kind": "prompt-lookup"}, {"completions": "generate"}))
    return jobs


def _gate(config: Config, examined: list[str], champion: bool) -> Job:
    reads = {name: f"evaluate/{name}" for name in examined if name != "stock-before"}
    reads |= {f"draft_{name}": draft for name, draft in _contenders(config).items()}
    reads |= {"champion_draft": "outside#champion"} if champion else {}
    reads |= {"pair": "pair"} | {f"profile_{form}": f"outside#profile_{form}" for form in config.gate.profile}
    gate = config.gate.model_dump()
    del gate["profile"]  # the files' digests stand for it
    return Job(
        "gate", "", {"gate": gate, "gamma": config.evaluate.gamma, "confidence": config.evaluate.confidence}, reads
    )


def _promote(config: Config) -> Job:
    reads = {"decision": "gate", "distilled": "distill#draft", "pair": "pair", "completions": "generate"}
    for name, draft in _contenders(config).items():
        reads |= {f"draft_{name}": draft, f"examined_{name}": f"evaluate/{name}"}
    return Job("promote", "", {}, reads)
