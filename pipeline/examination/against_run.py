"""Examines a draft on the completions that a run stored, under the conditions of that run."""

from pathlib import Path
from typing import Any

from pipeline.acceptance.profile import PromptCounts
from pipeline.config.loading import parse_stored_config
from pipeline.errors import UsageError
from pipeline.examination.examiner import Examiner
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
    """Counts of `draft` over the examination completions at the deployment's sampling settings, and the conditions.

    Raises UsageError if the draft is of another model family, or if there are no such completions.
    """
    config = parse_stored_config(record.config, f"run {record.id}")
    pair = read_pair(find_built(store, record, "pair").path, config.pair)
    if completions is None:
        artifact = find_built(store, record, "generate")
        artifact.check_hashes()
        completions = artifact.path
    elif (completions / MANIFEST).is_file():
        stored_at = read_json(completions / MANIFEST)["settings"].get("sampling")
        if stored_at != config.sampling.model_dump():
            raise UsageError(
                f"--completions {completions}: sampled with {stored_at}, and run {record.id} uses "
                f"{config.sampling.model_dump()}; give completions with the same settings"
            )
    sampling = Sampling.from_config(config.sampling)
    if canonical(sampling) not in stored_samplings(completions, {"examination"}):
        raise UsageError(
            f"--completions {completions}: contains no examination completions at this run's sampling settings; leave it out or "
            "give a generate artifact of such a run"
        )
    path = find_draft(draft, config.pair)
    check_same_family(load_tokenizer(pair.tokenizer), load_tokenizer(path, config.pair.trust_remote_code))
    model = load_model(path, config.pair.draft.dtype, choose_device(config.device), config.pair.trust_remote_code)
    settings = config.evaluate
    stored = read_completions(completions, {"examination"}, sampling)
    windows = Examiner(sampling, settings, pair.vocabulary).counts(model, stored)
    counts = [item for window in windows for item in window]  # the baseline is compared prompt by prompt
    return counts, {
        "completions": completions.name,
        "convention": settings.convention,
        "draft_sampling": settings.draft_sampling,
        "sampling": config.sampling.model_dump(),
        "dtype": config.pair.draft.dtype,
        "confidence": settings.confidence,
    }
