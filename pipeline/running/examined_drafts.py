"""Drafts and baselines on one set of completions, for `understudy compare`. What a run has examined is not examined again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.acceptance.baseline import ExaminedCounts
from pipeline.acceptance.profile_file import examined, read_examination
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.directory import trained_on_before
from pipeline.drafts.head_config import kind_of
from pipeline.drafts.kinds import KINDS
from pipeline.errors import UsageError
from pipeline.examination.on_completions import Settings, conditions_of, examine_on, open_completions
from pipeline.generation.completion_files import text_ids
from pipeline.judgement.regression import differing
from pipeline.registry.named import Draft, run_draft
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.runs import find_built


@dataclass(frozen=True)
class Baseline:
    """The content of a baseline file."""

    label: str
    examined: ExaminedCounts


Operand = Draft | Baseline


def examine_drafts(
    operands: Sequence[Operand], store: Store, completions: Path | None, target: str | None, trust_remote_code: bool
) -> tuple[list[ExaminedCounts], int]:
    """Every operand on `completions`, or on those of the first operand that has some, and the draft length of the first that was
    examined. UsageError if there are none, or for a baseline that was made under other conditions."""
    where = completions or next(filter(None, (_completions(compared, store) for compared in operands)), None)
    if where is None:
        raise UsageError(
            "no completions to compare on: neither A nor B is a run of this store, or a draft that one has trained; give "
            "--completions DIR (`understudy show` prints that of a run), or a run as A or B"
        )
    stored = open_completions(where)
    known = next(filter(None, map(_settings, operands)), None)
    settings = Settings(
        evaluate=known.evaluate if known else EvaluateConfig(),
        dtype=known.dtype if known else "float32",
        trust_remote_code=trust_remote_code,
        target=target,
    )
    return [_examined(operand, stored, settings) for operand in operands], settings.evaluate.gamma


def _completions(operand: Operand, store: Store) -> Path | None:
    """That it was examined on, if the store has them."""
    if isinstance(operand, Draft):
        return operand.completions if operand.is_examined else None
    kept = store.directory("generate", operand.examined.conditions.completions)
    return kept if kept.is_dir() else None


def _settings(operand: Operand) -> Settings | None:
    """The settings with which it was examined."""
    if isinstance(operand, Baseline):
        conditions = operand.examined.conditions
        return Settings(evaluate=conditions.settings, dtype=conditions.dtype)
    if not operand.is_examined:
        return None
    return Settings(evaluate=operand.config.evaluate, dtype=operand.config.pair.draft.dtype)


def _examined(operand: Operand, stored: Artifact, settings: Settings) -> ExaminedCounts:
    kind = KINDS[operand.examined.kind] if isinstance(operand, Baseline) else kind_of(operand.directory)
    conditions = conditions_of(stored, settings, kind)
    known = operand.examined if isinstance(operand, Baseline) else _of_run(operand)
    if known is not None and known.conditions == conditions:
        return known
    if isinstance(operand, Draft):
        return examine_on(stored, operand.directory, with_target(settings, operand))
    names = ", ".join(differing(conditions, operand.examined.conditions))
    raise UsageError(
        f"{operand.label}: made under other conditions ({names}); write the baseline again, or name the draft itself"
    )


def with_target(settings: Settings, draft: Draft) -> Settings:
    """The settings with the target of the run that trained the draft, where the draft reads hidden states and no target is
    named."""
    if settings.target is not None or draft.trained_by is None or not kind_of(draft.directory).reads_states:
        return settings
    return replace(settings, target=str(draft.pair.path("target")))


def _of_run(draft: Draft) -> ExaminedCounts | None:
    """What its run has found; None if the store does not have that."""
    own = _settings(draft)
    if own is None:
        return None
    if draft.digest != run_draft(draft.store, draft.record, draft.variant).digest:
        return None  # the version was registered by another run of this id
    generated = find_built(draft.store, draft.record, "generate")
    return ExaminedCounts(
        counts=examined(read_examination(draft.examination.path)).counts,
        conditions=conditions_of(generated, own, kind_of(draft.directory)),
        hardware=draft.examination.manifest.environment.get("machine", ""),
        digest=draft.digest,
        kind=kind_of(draft.directory).name,
        trained_on=trained_on_before(draft.directory).among(text_ids(generated.path, {"examination"})),
    )
