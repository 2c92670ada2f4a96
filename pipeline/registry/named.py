"""A draft, wherever it comes from: a run, the registry, a directory or the hub. Loads no torch. How one is named on the command
line, and found: `draft_names.py`, `finding.py`.

What is not known when a draft is named is found when it is asked for: its files may have to be downloaded, and what the run that
trained it stored is read from the store of that run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.acceptance.schema import AcceptanceProfile, read_profile
from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.drafts.kinds import KINDS, Kind
from pipeline.errors import UnderstudyError, UsageError
from pipeline.judgement.decision_file import recorded_decision
from pipeline.models.files import model_digest
from pipeline.models.places import model_places
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.runs import RunRecord, find_built, is_built, load_run, readable_run


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft that was named. What its run stored (`config`, `pair`, `examination`, `completions`) raises UsageError where no run
    of the store trained it."""

    label: str  # for people
    files: Callable[[], Path]  # its model directory, downloaded if needed
    store: Store
    run: str = ""  # that trained it; empty if it is not known
    chosen: Variant | None = None  # of the variants of that run; None: the one that its gate chose
    version: str = ""  # in the registry; empty before it is registered
    known_digest: str = ""
    given: Kind | None = None  # of a draft that `run` did not train, whose pair and completions it is examined with

    @cached_property
    def directory(self) -> Path:
        """The directory of the weights."""
        return self.files()

    def fetched(self) -> "Draft":
        """Itself, once its files are here; an error if they cannot be had or are not intact."""
        assert self.directory
        return self

    @cached_property
    def digest(self) -> str:
        """The digest of the content of the weights."""
        return self.known_digest or model_digest(self.directory)

    @cached_property
    def trained_by(self) -> RunRecord | None:
        """The record of the run that trained it; None where this store has none."""
        return readable_run(self.store, self.run) if self.run else None

    @cached_property
    def record(self) -> RunRecord:
        """The run that trained it, for what cannot do without. UsageError where there is none."""
        if not self.run and self.version:
            raise UnderstudyError(f"{self.label}: its training run is not recorded; promote it again")
        if not self.run:
            raise UsageError(
                f"{self.label}: no run is known that trained it, and its pair, settings and examination are needed; name a "
                "run, or a registered draft"
            )
        record = load_run(self.store, self.run)
        if record is None:
            raise UsageError(
                f"{self.label}: run {self.run}, which trained it, is not in {self.store}; name the --store that holds it"
            )
        return record

    @cached_property
    def config(self) -> Config:
        """The config of the run that trained it."""
        return run_config(self.record)

    @cached_property
    def variant(self) -> Variant:
        """The variant in which its run trained or quantized it."""
        if self.chosen is not None:
            return self.chosen
        if self.record.decision is None:
            raise UnderstudyError(f"{self.label}: run {self.run} has no decision; finish it with `understudy run`")
        return chosen_variant(self.record)

    @cached_property
    def pair(self) -> Pair:
        """That it belongs to."""
        return read_pair(find_built(self.store, self.record, "pair").path, model_places(self.config.pair))

    @property
    def is_examined(self) -> bool:
        """Whether the store has its examination, and the completions that it was examined on."""
        record = self.trained_by
        if record is None or (self.chosen is None and record.decision is None):
            return False
        return all(is_built(self.store, record, job) for job in ("generate", _examination_job(self.variant)))

    @cached_property
    def examination(self) -> Artifact:
        """The artifact with its acceptance profile."""
        return find_built(self.store, self.record, _examination_job(self.variant))

    @cached_property
    def completions(self) -> Path:
        """The directory of the completions that it was examined on."""
        return find_built(self.store, self.record, "generate").path

    @property
    def kind(self) -> Kind:
        """The kind as which it was examined."""
        return self.given or KINDS[self.profile.draft.kind]

    @property
    def profile(self) -> AcceptanceProfile:
        """The figures of the stored examination."""
        return read_profile(self.examination.path)


def run_draft(store: Store, record: RunRecord, variant: Variant | None = None, label: str = "") -> Draft:
    """The draft that a run trained, in `variant`, or in the one that its gate chose. UsageError for a variant that it has not
    made, UnderstudyError if the draft is not in the store."""
    chosen = variant or chosen_variant(record)
    job = "distill" if chosen == UNQUANTIZED else f"quantize/{chosen}"
    if variant is not None and job not in record.jobs:
        made = [name.partition("/")[2] for name in record.jobs if name.startswith("quantize/")]
        raise UsageError(
            f"--variant {variant}: run {record.id} has not made it; it has {', '.join([UNQUANTIZED, *sorted(made)])}; "
            "name one of them"
        )
    trained = find_built(store, record, job)
    return Draft(
        label=label or (record.id if chosen == UNQUANTIZED else f"{record.id} ({chosen})"),
        files=lambda: trained.path / "draft",
        store=store,
        run=record.id,
        chosen=chosen,
        known_digest=trained.provides["draft"],
    )


def version_draft(store: Store, registry: Registry, version: RegisteredDraft, variant: Variant | None = None) -> Draft:
    """A version of the registry, or another variant of the run that trained it."""
    draft = Draft(
        label=f"{version.name} version {version.version}",
        files=lambda: registry.fetch(version, store.champions / version.digest),
        store=store,
        run=version.run,
        version=version.version,
        known_digest=version.digest,
    )
    if variant is None or variant == draft.variant:
        return draft
    return run_draft(store, draft.record, variant, f"{draft.label}, {variant}")


def chosen_variant(record: RunRecord) -> Variant:
    """The variant that the gate of a run chose; unquantized before it has."""
    decision = recorded_decision(record)
    return UNQUANTIZED if decision is None else decision.variant


def _examination_job(variant: Variant) -> str:
    return f"evaluate/{'candidate' if variant == UNQUANTIZED else variant}"
