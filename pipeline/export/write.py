"""Writes an export: built beside its place and renamed, so that a directory that is there is complete."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.engines.facts import ExportEngine
from pipeline.errors import UsageError
from pipeline.export import for_llama_cpp, for_sglang, for_tensorrt, for_tgi, for_transformers, for_vllm
from pipeline.export.expected import expected_counters
from pipeline.export.gguf import convert
from pipeline.export.head_files import write_head
from pipeline.export.plan import ExportPlan, require_free
from pipeline.export.readme import readme
from pipeline.export.schema import Expected, ExpectedCounters, ExportedDraft, write_expected
from pipeline.export.target import target_width
from pipeline.export.widths import resize_rows
from pipeline.judgement.schema import TargetSource
from pipeline.models.files import copy_files, model_digest, model_files
from pipeline.models.model_json import GENERATION_CONFIG, find_generation_config
from pipeline.progress import Progress
from pipeline.store.atomic import replacing_directory
from pipeline.store.files import write_json

Files = Callable[[ExportPlan, ExpectedCounters], dict[str, str]]

_FILES: Mapping[ExportEngine, Files] = {
    "vllm": for_vllm.files,
    "sglang": for_sglang.files,
    "tensorrt-llm": for_tensorrt.files,
    "llama.cpp": for_llama_cpp.files,
    "transformers": for_transformers.files,
    "tgi": for_tgi.files,
}
_MODES = {".sh": 0o755}


def write_export(plan: ExportPlan, progress: Progress) -> Path:
    """Write the directory `plan.out` and return it."""
    require_free(plan.out)
    with _beside(plan.out) as work:
        resized = _write_draft(plan, work)
        weights = work / "draft" if plan.keeps_layout else plan.draft.directory
        figures = expected_counters(plan.draft, weights, plan.facts, plan.drafting, plan.lengths.used, progress)
        write_expected(work, _expected(plan, weights, resized, figures))
        for name, text in _FILES[plan.engine](plan, figures).items():
            (work / name).write_text(text, encoding="utf-8")
            (work / name).chmod(_MODES.get(Path(name).suffix, 0o644))
        names = sorted(path.name for path in work.iterdir())
        (work / "README.md").write_text(readme(plan, figures, names), encoding="utf-8")
    return plan.out


def _write_draft(plan: ExportPlan, work: Path) -> bool:
    """The weights in the engine's form; whether rows were added or cut."""
    if plan.converter is not None:
        convert(plan.converter, plan.draft.directory, work / for_llama_cpp.DRAFT)
        return False
    draft = work / "draft"
    draft.mkdir()
    if plan.draft.kind.reads_states:
        write_head(plan, draft)
        return False  # a head has the target's own rows
    copy_files(model_files(plan.draft.directory), plan.draft.directory, draft)
    if plan.engine == "transformers":
        kept = find_generation_config(draft).model_dump(exclude_unset=True)
        write_json(draft / GENERATION_CONFIG, kept | for_transformers.assistant_settings(plan))
    width = target_width(plan.draft)
    if not plan.facts.equal_widths or width is None or plan.draft.kind.maps_tokens:
        return False
    pair = plan.draft.pair.facts
    return resize_rows(draft, int(pair["tokens"]), width, plan.draft.config.pair.trust_remote_code)


def _expected(plan: ExportPlan, weights: Path, resized: bool, figures: ExpectedCounters) -> Expected:
    draft, target = plan.draft, plan.draft.pair.facts["target"]
    return Expected(
        **vars(figures),
        engine=plan.engine,
        checked_version=plan.facts.checked,
        counters=plan.facts.counters,
        draft=ExportedDraft(
            label=draft.label,
            digest=draft.digest,
            exported_digest=model_digest(weights),
            variant=draft.variant,
            resized_to_target=resized,
        ),
        target=TargetSource(target["source"], target["revision"], target["digest"], target["dtype"]),
        completions=draft.completions.name,
        draft_lengths_by_batch=list(plan.lengths.by_batch),
    )


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out` that becomes `out` at the end; removed if something fails."""
    with contextlib.ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            work = stack.enter_context(replacing_directory(out))
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            raise UsageError(f"--out {out}: no directory can be created there; choose another") from None
        yield work
