"""Examining a draft outside a run: on the completions a run stored, under that run's conditions."""

from pathlib import Path
from typing import Any

from pipeline.acceptance.profile import PromptCounts
from pipeline.config.loading import parse_config
from pipeline.errors import UsageError
from pipeline.examination.stored import examine_draft
from pipeline.generation.completion_store import canonical, read_completions, stored_samplings
from pipeline.models.draft_directory import find_draft
from pipeline.models.loading import choose_device, load_model, load_tokenizer
from pipeline.models.stored_pair import read_pair
from pipeline.models.tokenizers import check_same_family
from pipeline.speculation.sampling import Sampling
from pipeline.store.artifacts import MANIFEST, Store
from pipeline.store.files import read_json
from pipeline.store.runs import RunRecord, find_built


def examine_again(
    store: Store, record: RunRecord, draft: Path, completions: Path | None
) -> tuple[list[PromptCounts], dict[str, Any]]:
    """Counts of `draft` over the examination completions at the deployment's settings, and the conditions they hold under.

    Raises UsageError if the draft is of another family or the completions are none.
    """
    config = parse_config(record.config, f"run {record.id}")
    pair = read_pair(find_built(store, record, "pair").path, config.pair)
    if completions is None:
        artifact = find_built(store, record, "generate")
        artifact.check_hashes()
        completions = artifact.path
    elif (completions / MANIFEST).is_file():
        made = read_json(completions / MANIFEST)["settings"].get("sampling")
        if made != config.sampling.model_dump():
            raise UsageError(
                f"--completions {completions}: sampled at {made}, and run {record.id} is about {config.sampling!r}"
            )
    sampling = Sampling(**config.sampling.model_dump())
    if canonical(sampling) not in stored_samplings(completions, {"examination"}):
        raise UsageError(
            f"--completions {completions}: holds no examination completions at this run's sampling settings"
        )
    path = find_draft(draft, config.pair)
    check_same_family(load_tokenizer(pair.tokenizer), load_tokenizer(path, config.pair.trust_remote_code))
    model = load_model(path, config.pair.draft.dtype, choose_device(config.device), config.pair.trust_remote_code)
    spoken = read_completions(completions, {"examination"}, sampling)
    windows = examine_draft(model, spoken, sampling, config.evaluate, pair.vocabulary)
    counts = [item for window in windows for item in window]  # the baseline it is paired with is a list of them too
    settings = config.evaluate
    return counts, {
        "completions": completions.name,
        "convention": settings.convention,
        "draft_sampling": settings.draft_sampling,
        "sampling": config.sampling.model_dump(),
        "dtype": config.pair.draft.dtype,
        "confidence": settings.confidence,
    }
