"""What `understudy compare` is given: a run, a registered draft, a model directory or a baseline file, examined on one set of
completions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.acceptance.baseline import Conditions, Examined, read_baseline
from pipeline.acceptance.profile_file import read_examination
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.pair import Dtype
from pipeline.config.quantize import UNQUANTIZED
from pipeline.config.stored import run_config
from pipeline.errors import UsageError
from pipeline.examination.on_completions import Settings, conditions_of, examine_on, open_completions
from pipeline.generation.completion_files import text_ids
from pipeline.judgement.decision_file import recorded_decision
from pipeline.judgement.regression import differing
from pipeline.models.draft_directory import trained_on_before
from pipeline.registry.aliases import CHALLENGER, CHAMPION, PREVIOUS
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry, registry_for
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import read_user_json
from pipeline.store.runs import RunRecord, find_built, is_built, list_runs, readable_run, require_run

_REGISTERED = re.compile(rf"(?P<name>[^/@]+)@(?P<which>{CHAMPION}|{PREVIOUS}|{CHALLENGER}|\d+)")
_FORMS = "a run, NAME@champion, NAME@VERSION, a model directory, org/name@revision or a baseline file"


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A draft as it was named. `examined` is what is known of it already."""

    label: str
    draft: str | None  # a name for `examine_on`; None for a baseline
    completions: Path | None = None  # that it was examined on
    examined: Examined | None = None
    settings: EvaluateConfig | None = None
    dtype: Dtype | None = None


def find_operand(text: str, store: Store) -> Operand:
    """The draft that `text` names. UsageError if it names none."""
    path = Path(text).expanduser()
    if path.is_file():
        examined = read_baseline(read_user_json(path, f"give {_FORMS}"), text)
        conditions = examined.conditions
        kept = store.directory("generate", conditions.completions)
        return Operand(
            label=text,
            draft=None,
            completions=kept if kept.is_dir() else None,
            examined=examined,
            settings=conditions.settings,
            dtype=conditions.dtype,
        )
    if path.is_dir() or "/" in text:
        return Operand(label=text, draft=text)
    if found := _REGISTERED.fullmatch(text):
        return _registered(text, found["name"], found["which"], store)
    if text != "latest" and text not in list_runs(store):
        raise UsageError(f"{text}: not known in {store.root}; give {_FORMS}")
    return _of_run(store, require_run(store, text, needs=("generate", "evaluate/candidate")))


def examine_operands(operands: Sequence[Operand], completions: Path | None, trust_remote_code: bool) -> list[Examined]:
    """Every operand on `completions`, or on those of the first operand that has some. What was examined there before is not
    examined again. UsageError if there are none, or for a baseline that was made under other conditions."""
    where = completions or next((one.completions for one in operands if one.completions is not None), None)
    if where is None:
        raise UsageError(
            "no completions to compare on: neither A nor B is a run of this store, or a draft that one has trained; give "
            "--completions DIR (`understudy show` prints that of a run), or a run as A or B"
        )
    stored = open_completions(where)
    settings = Settings(
        evaluate=next((one.settings for one in operands if one.settings is not None), EvaluateConfig()),
        dtype=next((one.dtype for one in operands if one.dtype is not None), "float32"),
        trust_remote_code=trust_remote_code,
    )
    conditions = conditions_of(stored, settings)
    return [_examined(one, stored, settings, conditions) for one in operands]


def _examined(operand: Operand, stored: Artifact, settings: Settings, conditions: Conditions) -> Examined:
    known = operand.examined
    if known is not None and known.conditions == conditions:
        return known
    if operand.draft is None:
        assert known is not None
        names = ", ".join(differing(conditions, known.conditions))
        raise UsageError(
            f"{operand.label}: made under other conditions ({names}); write the baseline again, or name the draft itself"
        )
    return examine_on(stored, operand.draft, settings)


def _of_run(store: Store, record: RunRecord) -> Operand:
    """The candidate of a run, in the variant that its gate chose, with the examination that the run made."""
    config = run_config(record)
    decision = recorded_decision(record)
    variant = decision.variant if decision else UNQUANTIZED
    drafts, part = ("distill", "candidate") if variant == UNQUANTIZED else (f"quantize/{variant}", variant)
    draft, evaluated = find_built(store, record, drafts), find_built(store, record, f"evaluate/{part}")
    generated = find_built(store, record, "generate")
    counts = read_examination(evaluated.path).counts
    settings = Settings(evaluate=config.evaluate, dtype=config.pair.draft.dtype)
    examined = Examined(
        counts=counts,
        conditions=conditions_of(generated, settings),
        hardware=evaluated.manifest.environment.get("machine", ""),
        digest=draft.provides["draft"],
        trained_on=trained_on_before(draft.path / "draft").among(text_ids(generated.path, {"examination"})),
    )
    return Operand(
        label=f"{record.id} ({variant})" if variant != UNQUANTIZED else record.id,
        draft=str(draft.path),
        completions=generated.path,
        examined=examined,
        settings=config.evaluate,
        dtype=config.pair.draft.dtype,
    )


def _registered(text: str, name: str, which: str, store: Store) -> Operand:
    """A registered draft, with the completions and the examination of the run that trained it, where this store has them."""
    registry, draft = registered_draft(name, which, store)
    files = str(registry.fetch(draft, store.root / "champions" / draft.digest))
    record = readable_run(store, draft.run) if draft.run else None
    if record is not None and all(is_built(store, record, job) for job in ("generate", "evaluate/candidate")):
        of_run = _of_run(store, record)
        known = of_run.examined if of_run.examined is not None and of_run.examined.digest == draft.digest else None
        return replace(of_run, label=text, draft=files, examined=known)
    return Operand(label=text, draft=files)


def registered_draft(name: str, which: str, store: Store) -> tuple[Registry, RegisteredDraft]:
    """The version or alias `which` of a registry entry. The registry is the one that the store's latest run uses."""
    runs = list_runs(store)
    if not runs:
        raise UsageError(
            f"{name}@{which}: {store.root} has no run that says where the registry is; name another --store"
        )
    record = require_run(store, runs[-1])
    location = registry_for(run_config(record), store).location
    registry = Registry(name, location)
    held = {alias: one.version for one in registry.versions() for alias in (*one.aliases, one.version)}
    if which not in held:
        raise UsageError(
            f"{name}@{which}: no such version or alias in {location.uri}; it has {', '.join(held) or 'none'}; name one of them"
        )
    return registry, registry.champion_at(held[which])
