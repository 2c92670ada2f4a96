"""Examines a draft on a generate artifact alone: no run and no store are needed, only the artifact, the draft and settings."""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pipeline.acceptance.baseline import Conditions, ExaminedCounts
from pipeline.acceptance.count_table import CountTable
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.generate import SamplingConfig
from pipeline.config.pair import Dtype
from pipeline.drafts.directory import trained_on_before
from pipeline.drafts.head_config import find_target
from pipeline.drafts.kinds import Kind
from pipeline.drafts.loading import kind_for, load_head, load_mapped
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UsageError
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_store import TOKENIZER, canonical, read_completions, stored_samplings
from pipeline.models.devices import choose_device, hardware_class
from pipeline.models.files import model_digest
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.out_of_memory import batch_named
from pipeline.models.tokenizers import check_same_family
from pipeline.progress import Progress
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.store.artifacts import MANIFEST, Artifact, read_manifest
from pipeline.store.files import content_key
from pipeline.store.parsing import Text, format_of, stored


@stored(name="manifest of completions")
class _MadeBy:
    """What made completions, of the manifest of their artifact."""

    target: Text  # digest
    dtype: Text  # of the target
    sampling: SamplingConfig  # of the deployment


def _made_by(completions: Artifact) -> _MadeBy:
    manifest = completions.manifest
    facts = {"target": manifest.inputs.get("target")} | {
        name: manifest.settings.get(name) for name in ("dtype", "sampling")
    }
    return format_of(_MadeBy).parse(facts, str(completions.path / MANIFEST))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a draft is examined."""

    evaluate: EvaluateConfig
    dtype: Dtype  # of the draft
    device: str = "auto"
    trust_remote_code: bool = False
    target: str | None = None  # which made the completions; only a draft that reads its hidden states needs it
    other_tokenizer: bool = True  # whether a draft with another one is examined, as an engine maps its tokens


def open_completions(directory: Path) -> Artifact:
    """The generate artifact in `directory`, every file hashed. UsageError if it is not one, UnderstudyError if it was altered."""
    manifest = read_manifest(directory) if (directory / MANIFEST).is_file() else None
    if manifest is None or manifest.stage != "generate":
        raise UsageError(
            f"--completions {directory}: not a generate artifact; `understudy show` prints the directory of a run's completions"
        )
    artifact = Artifact(directory, manifest)
    _made_by(artifact)
    artifact.check_hashes()
    return artifact


def conditions_of(completions: Artifact, settings: Settings, kind: Kind) -> Conditions:
    """The conditions of an examination of a draft of this kind; known before a model is loaded."""
    return Conditions(
        completions=completions.key,
        completions_sha256=_content(completions),
        target=_made_by(completions).target,
        target_dtype=_made_by(completions).dtype,
        sampling=dict(completions.manifest.settings["sampling"]),
        evaluate=_examined_by(settings.evaluate, kind),
        dtype=settings.dtype,
    )


def examine_on(completions: Artifact, draft: Path, settings: Settings) -> ExaminedCounts:
    """Counts of `draft` over the examination completions at the deployment's sampling settings, and their conditions.

    `draft` is a model directory. Raises UsageError if there are no such completions or if the draft is of another model
    family, BrokenDraft if it cannot be examined.
    """
    sampling = Sampling.from_config(_made_by(completions).sampling)
    if canonical(sampling) not in stored_samplings(completions.path, {"examination"}):
        raise UsageError(
            f"--completions {completions.path}: holds no examination completions; give the generate artifact of a run's own "
            "target, of a config with corpus.splits.examination above 0"
        )
    tokenizer = load_tokenizer(completions.path / TOKENIZER, settings.trust_remote_code)
    stored = partial(read_completions, completions.path, {"examination"}, sampling)
    vocabulary = next(stored()).vocabulary
    device, trusted = choose_device(settings.device), settings.trust_remote_code
    kind = kind_for(draft, tokenizer, vocabulary, trusted)
    loaded: LoadedDraft
    if kind.reads_states:
        loaded = load_head(kind, draft, TargetStates(_target(completions, kind, settings, device)), vocabulary)
    elif kind.maps_tokens and settings.other_tokenizer:
        loaded = load_mapped(draft, tokenizer, vocabulary, settings.dtype, device, trusted)
        Progress().warn(f"{draft} has another tokenizer: {loaded.note}")
    else:
        check_same_family(tokenizer, load_tokenizer(draft, trusted), vocabulary)
        loaded = PlainDraft(load_model(draft, settings.dtype, device, trusted), vocabulary)
    examiner = Examiner(sampling, settings.evaluate)
    with batch_named("evaluate.batch_tokens", settings.evaluate.batch_tokens, examiner.attempt_batch(loaded, stored())):
        counts = CountTable.of(chain.from_iterable(examiner.counts(loaded, stored())))
    before = trained_on_before(draft)
    return ExaminedCounts(
        counts=counts,
        conditions=conditions_of(completions, settings, kind),
        hardware=hardware_class(device),
        digest=model_digest(draft),
        kind=kind.name,
        trained_on=frozenset(name for item in stored() for name in before.among({item.id: item.text_id})),
    )


def _target(completions: Artifact, kind: Kind, settings: Settings, device: torch.device) -> Any:
    """The target of the completions, loaded as they were made. UsageError where it is not named, or is another one."""
    if settings.target is None:
        raise UsageError(
            f"a draft of the kind {kind.name} reads hidden states of its target: name the target of the completions with --target"
        )
    path, made_by = find_target(settings.target), _made_by(completions)
    if model_digest(path) != made_by.target:
        raise UsageError(f"--target {settings.target}: not the target that made the completions in {completions.path}")
    return load_model(path, made_by.dtype, device, settings.trust_remote_code)


def _content(completions: Artifact) -> str:
    """Digest of the content of every file, by name."""
    return content_key({name: entry.sha256 for name, entry in completions.manifest.files.items()})


def _examined_by(settings: EvaluateConfig, kind: Kind) -> dict[str, Any]:
    """The settings that decide the counts of a draft and their interval. The rate of a head is over the tokens that it drafts at
    one length."""
    chosen = {"convention", "draft_sampling", "max_gamma", "confidence", "batch_tokens"}
    chosen |= set() if kind.by_token else {"gamma"}
    return settings.model_dump(mode="json", include=chosen)
