"""What is exported: a draft, the pair that it belongs to, and the examination that speaks for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.acceptance.schema import Profile, read_profile
from pipeline.config.quantize import Variant
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.judgement.decision_file import recorded_decision
from pipeline.models.model_json import config_values
from pipeline.models.places import model_places
from pipeline.models.shape import read_shape
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry
from pipeline.running.tasks import UNQUANTIZED
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, find_built, require_run


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A draft and where it comes from."""

    label: str  # for messages and the README
    version: str  # in the registry; empty before it is registered
    draft: Path
    digest: str
    variant: Variant
    pair: Pair
    config: Config  # of the run that trained the draft
    examination: Path  # an artifact with acceptance.json
    completions: Path  # that it was examined on

    @property
    def profile(self) -> Profile:
        """The figures of the stored examination."""
        return read_profile(self.examination)

    @property
    def target_config(self) -> dict[str, Any] | None:
        """config.json of the target; None for a served target without one."""
        path = self.pair.path("target")
        return config_values(path) if (path / "config.json").is_file() else None

    @property
    def needs_code(self) -> bool:
        """Whether target or draft is computed by code that ships with it."""
        return self.config.pair.trust_remote_code

    @property
    def target_width(self) -> int | None:
        """Columns of the target's logits; None if they are not known."""
        if not self.config.pair.target.is_served:
            return int(self.pair.facts["target"]["logits_width"])
        # A served target's config.json may have been put beside its tokenizer after the run.
        path = self.pair.path("target")
        known = (path / "config.json").is_file()
        return read_shape(path, self.config.pair.trust_remote_code).logits_width if known else None

    @property
    def target_name(self) -> str:
        """As a server takes it: a directory, a hub id, or the name under which it is served."""
        source = self.config.pair.target
        if source.is_hub and not source.is_served:
            return source.source
        if source.is_served:
            return str(self.pair.facts["target"]["source"])
        return str(self.pair.path("target").absolute())


def registered_subject(
    store: Store, registry: Registry, draft: RegisteredDraft, variant: Variant | None = None
) -> Subject:
    """A registered draft, or another variant of the run that trained it. UnderstudyError if the store lacks that run."""
    label = f"{draft.name} version {draft.version}"
    if not draft.run:
        raise UnderstudyError(f"{label}: its training run is not recorded; promote it again")
    try:
        record = require_run(store, draft.run)
    except UsageError:
        raise UsageError(
            f"{label}: run {draft.run}, which trained it, is not in {store.root}; name the --store that holds it"
        ) from None
    promoted = _promoted_variant(record, label)
    if variant is not None and variant != promoted:
        return run_subject(store, record, variant, f"{label}, {variant}")
    files = registry.fetch(draft, store.root / "champions" / draft.digest)
    return run_subject(store, record, promoted, label, files=files, version=draft.version)


def run_subject(
    store: Store, record: RunRecord, variant: Variant, label: str, files: Path | None = None, version: str = ""
) -> Subject:
    """The draft of a run in one variant. `files`: where its files are, if not in the store."""
    config = run_config(record)
    jobs = (
        ("distill", "evaluate/candidate") if variant == UNQUANTIZED else (f"quantize/{variant}", f"evaluate/{variant}")
    )
    if jobs[0] not in record.jobs:
        made = [name.partition("/")[2] for name in record.jobs if name.startswith("quantize/")]
        raise UsageError(
            f"--variant {variant}: run {record.id} has not made it; it has {', '.join([UNQUANTIZED, *sorted(made)])}; "
            "name one of them"
        )
    draft, examined = (find_built(store, record, job) for job in jobs)
    return Subject(
        label=label,
        version=version,
        draft=files or draft.path / "draft",
        digest=draft.provides["draft"],
        variant=variant,
        pair=read_pair(find_built(store, record, "pair").path, model_places(config.pair)),
        config=config,
        examination=examined.path,
        completions=find_built(store, record, "generate").path,
    )


def _promoted_variant(record: RunRecord, label: str) -> Variant:
    found = recorded_decision(record)
    if found is None:
        raise UnderstudyError(f"{label}: run {record.id} has no decision; finish it with `understudy run`")
    return found.variant
