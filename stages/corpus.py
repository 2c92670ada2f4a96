"""corpus: reads prompt sources; writes domain-labelled, de-duplicated prompts as token ids, split in three.

This file holds the order of the steps; the steps are in `pipeline.corpus`.
"""

import shutil
from collections import Counter
from datetime import date
from typing import Any

from pipeline.corpus.answer_store import ANSWERS, StoredAnswers, write_answers
from pipeline.corpus.first_pass import RowCounts, read_sources
from pipeline.corpus.near_duplicates import Clusters, find_clusters
from pipeline.corpus.prompt_store import PROMPTS, CorpusCounts, write_prompts
from pipeline.corpus.rendering import COMPLETES, OTHER_PROMPT, Renderer
from pipeline.corpus.row_buffer import RowBuffer
from pipeline.corpus.small_domains import count_domains, folded_line
from pipeline.corpus.splits import SPLITS, assign_splits
from pipeline.errors import UsageError
from pipeline.models.loading import load_tokenizer
from pipeline.models.stored_pair import day_of, read_facts
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import CorpusSettings

REJECTS = "rejects.jsonl"
_ASKED_FOR = ("older", "not in the sample", "beyond the limit")
_WARN_SHARE = 0.1  # of the rows; a warning names a reason that leaves out more


def run(context: StageContext[CorpusSettings]) -> Outcome:
    """Write `prompts.arrow` and `rejects.jsonl`. UsageError where the sources cannot make a corpus."""
    config = context.settings.corpus
    pair = context.inputs["tokenizer"]
    tokenizer = load_tokenizer(pair / "tokenizer", context.resources.trust_remote_code)
    facts = read_facts(pair)
    template_day = day_of(facts)
    renderer = Renderer(
        tokenizer, config.chat_template, config.chat_template_arguments, facts["vocabulary"], template_day
    )
    if template_day is not None:
        context.progress.line(
            f"corpus: the chat template asks for the date: it is that of a row with a time (in UTC), and else {template_day}"
        )
    paths = [context.inputs[f"prompts_{number}"] for number in range(len(config.sources))]
    scratch = (
        context.out / "scratch"
    )  # on the store's disk, which has room for large files; a temporary directory may be in memory
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        with RowBuffer(scratch, config.chat_template_arguments) as buffer:
            today = context.facts.get("today", {}).get("date")
            day = date.fromisoformat(today) if today else None
            counts = read_sources(config, paths, renderer, buffer, context.out / REJECTS, context.progress, day)
        hashes = buffer.hashes()
        clusters = find_clusters(hashes, buffer.signatures(), config.near_duplicate_threshold, scratch)
        splits = assign_splits(hashes, clusters, config.splits)
        domains = count_domains(buffer.accepted, hashes["conversation"], clusters.kept, config.min_domain_prompts)
        renamed = domains.renamed(config.min_domain_prompts)
        written = write_prompts(context.out / PROMPTS, buffer.accepted, hashes, clusters, splits, renamed)
        answers = write_answers(context.out / ANSWERS, buffer.accepted, hashes["id"], clusters.kept)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _report(context, counts, clusters, written)
    if renamed:
        context.progress.line(f"corpus: {folded_line(renamed, domains.conversations, config.min_domain_prompts)}")
    stated = _count_answers(context, counts, answers)
    return Outcome(
        figures=_figures(counts, clusters, written), notes=_notes(counts, written) | {"stated_sampling": stated}
    )


def _report(
    context: StageContext[CorpusSettings], counts: RowCounts, clusters: Clusters, written: CorpusCounts
) -> None:
    """Report what became of the rows, and warn where a large share is not used."""
    config, progress = context.settings.corpus, context.progress
    left_out = {
        f"longer than {config.prompt_limit:,} tokens (corpus.max_prompt_tokens)": counts.too_long,
        f"shorter than {config.min_prompt_tokens:,} tokens (corpus.min_prompt_tokens)": counts.too_short,
        "exact duplicates": clusters.exact_duplicates,
        "near-duplicates": clusters.near_duplicates,
        f"older than {'corpus.since' if config.since else 'the window (corpus.sources.N.since)'}": counts.older,
        "not in the sample (corpus.sources.N.sample)": counts.not_sampled,
        "beyond the limit (corpus.sources.N.limit)": counts.over_limit,
    } | {f"rejected ({reason})": count for reason, count in sorted(counts.reasons.items())}
    reasons = "".join(f", {count:,} {reason}" for reason, count in left_out.items() if count)
    progress.line(f"corpus: {sum(map(written.in_split, SPLITS)):,} prompts of {counts.rows:,} rows{reasons}")
    dropped = {"later user turns (every_turn)": counts.dropped_turns, "later answers": counts.dropped_answers}
    if any(dropped.values()):
        parts = ", ".join(f"{count:,} {what}" for what, count in dropped.items() if count)
        progress.line(f"corpus: messages of these chats that are not used: {parts}")
    if counts.redacted:
        replaced = ", ".join(f"{count:,} {kind}" for kind, count in counts.redacted.most_common())
        progress.line(f"corpus: replaced by `redact`: {replaced}")
    for reason, count in left_out.items():
        if count > _WARN_SHARE * counts.rows and not reason.startswith(_ASKED_FOR):
            progress.warn(
                f"corpus: {count:,} of {counts.rows:,} rows ({count / counts.rows:.0%}) are not used: {reason}"
            )


def _count_answers(
    context: StageContext[CorpusSettings], counts: RowCounts, answers: int
) -> list[tuple[dict[str, float], int]]:
    """Report the recorded answers; returns how many state which sampling settings. UsageError where none can be used."""
    if not any(source.use_answers for source in context.settings.corpus.sources):
        return []
    if counts.answers > answers:  # of rows whose prompt another row has
        counts.unused_answers["of prompts that occur before"] = counts.answers - answers
        counts.answers = answers
    _report_answers(context, counts, answers)
    stored = StoredAnswers(context.out)
    settings_counts = Counter(tuple(sorted(answer.stated.items())) for answer in stored)
    return [(dict(settings), count) for settings, count in settings_counts.most_common()]


def _report_answers(context: StageContext[CorpusSettings], counts: RowCounts, answers: int) -> None:
    reasons = "".join(f", {count:,} {reason}" for reason, count in counts.unused_answers.most_common())
    context.progress.line(
        f"corpus: {answers:,} prompts with a recorded answer{'; not used' if reasons else ''}{reasons}"
    )
    unused, rendered_otherwise = (
        sum(counts.unused_answers.values()),
        counts.unused_answers[OTHER_PROMPT] + counts.unused_answers[COMPLETES],
    )
    if rendered_otherwise > counts.answers:
        raise UsageError(
            f"corpus: {rendered_otherwise:,} of {unused + counts.answers:,} recorded answers have prompts that were rendered "
            "otherwise than here; set corpus.chat_template (false: prompts are plain text) and corpus.chat_template_arguments to "
            "what the deployment does, or use_answers to false"
        )
    if not answers:
        raise UsageError(
            f"corpus: no recorded answer can be used{reasons and ': not used'}{reasons}; name the column of the answers "
            "(corpus.sources.N.answer_field), or set use_answers to false"
        )
    if unused > counts.answers:
        context.progress.warn(
            f"corpus: {unused:,} of {unused + counts.answers:,} recorded answers are not used, most often: "
            f"{counts.unused_answers.most_common(1)[0][0]}; the target answers these prompts again"
        )


def _figures(counts: RowCounts, clusters: Clusters, written: CorpusCounts) -> dict[str, float]:
    by_split = {split: written.in_split(split) for split in SPLITS}
    figures = {
        "rows": counts.rows,
        "accepted": counts.accepted,
        "rejected": counts.rejected,
        "too_long": counts.too_long,
        "too_short": counts.too_short,
        "older": counts.older,
        "not_sampled": counts.not_sampled,
        "over_limit": counts.over_limit,
        "redacted": counts.redacted.total(),
        "exact_duplicates": clusters.exact_duplicates,
        "near_duplicates": clusters.near_duplicates,
        "clusters": written.clusters,
        "largest_cluster": written.largest_cluster,
        "prompts": sum(by_split.values()),
        "tokens": written.tokens,
        **by_split,
    }
    return {name: float(count) for name, count in figures.items()}


def _notes(counts: RowCounts, written: CorpusCounts) -> dict[str, Any]:
    return {
        "domains": written.by_domain(),
        "conversations": written.conversations(),
        "rejected": dict(sorted(counts.reasons.items())),
        "dropped_turns": counts.dropped_turns,
        "dropped_answers": counts.dropped_answers,
        "redacted": dict(sorted(counts.redacted.items())),
        "answers": counts.answers,
        "unused_answers": dict(sorted(counts.unused_answers.items())),
    }
