"""generate: the target completes the prompts. Stores its tokens and distributions, which the draft is trained on."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.config.tasks import PromptsTask
from pipeline.corpus.answer_store import StoredAnswers
from pipeline.corpus.prompt_store import Prompt, PromptColumns, open_prompts
from pipeline.corpus.rendering import Renderer
from pipeline.engines.chat_markers import renders_segments
from pipeline.generation.completion_plan import CompletionRequest, plan_completions, shard_prefix, shards_of
from pipeline.generation.completion_store import TOKENIZER, StoredCompletion, read_completions, shard_files
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.labelling import label_shards
from pipeline.generation.logged import LoggedAnswers, Recorded, count_answers
from pipeline.generation.multi_turn import StopReasons, next_turn
from pipeline.generation.prompt_positions import PromptPositions
from pipeline.generation.sample_test import StoredShards, figures, passed, stored_test
from pipeline.generation.served import generate_by_servers
from pipeline.generation.served_completion import Served
from pipeline.generation.shard_worker import Shard, ShardWork, open_target
from pipeline.models.loading import load_tokenizer
from pipeline.models.segmenter import Segmenter, chat_templates
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Part, Work
from pipeline.running.settings import GenerateSettings
from pipeline.servers.connect import connect
from pipeline.servers.identity import Identity
from pipeline.speculation.settings import Sampling

_FEW = 0.6  # mass that samples stand for, from which on it is said what that costs


def run(context: StageContext[GenerateSettings]) -> Outcome:
    """Generate the target's completions of the task's splits and write them as shards.

    Inputs: the pair and the corpus. Multi-turn chats are continued turn by turn.
    """
    asked, pair = context.settings, read_pair(context.inputs["target"], context.resources.models)
    if isinstance(asked.task, PromptsTask):
        return _score_prompts(context, pair, asked.task)
    segmenter = _segmenter(context, pair)  # before anything is generated: a marker may be wrong
    sampling = Sampling.from_config(asked.sampling)
    examination_samplings = [Sampling.from_config(further) for further in asked.examination_samplings]
    train_at = [replace(sampling, temperature=temperature) for temperature in asked.train_temperatures]
    prompts = open_prompts(context.inputs["corpus"], asked.task.splits)
    requests = plan_completions(prompts, sampling, examination_samplings, train_at)
    settings = _generation_settings(asked)
    stop_reasons = StopReasons()

    def next_turn_of(requests: Sequence[CompletionRequest], turn: int) -> Sequence[CompletionRequest]:
        return _next_turn(context, pair, requests, turn, stop_reasons) if prompts.has_chats else []

    logged = _logged(context, pair, settings)
    turns, missing = _complete(context, pair, prompts, requests, settings, next_turn_of, logged)
    if context.share is not None:
        return Outcome(notes={"turn": turns, "missing": missing})
    shutil.copytree(pair.tokenizer, context.out / TOKENIZER, dirs_exist_ok=True)
    label_shards(context.out, segmenter)
    counts = _counts(context, segmenter.names)
    notes: dict[str, Any] = {}
    if logged is not None:
        recorded, notes = _report_answers(context, prompts, logged, counts["completions"])
        counts |= recorded
    chats = {"turns": float(turns)} | {f"chats_{name}": float(count) for name, count in asdict(stop_reasons).items()}
    return Outcome(counts | (chats if turns > 1 or any(asdict(stop_reasons).values()) else {}), notes=notes)


def _score_prompts(context: StageContext[GenerateSettings], pair: Pair, task: PromptsTask) -> Outcome:
    """Score the positions of the train prompts that a draft is trained on, and write them as completions of what comes before."""
    settings = _generation_settings(context.settings)
    prompts = open_prompts(context.inputs["corpus"], task.splits)
    prompt_positions = PromptPositions.of(prompts, task.positions)
    turns, missing = _complete(
        context, pair, prompts, prompt_positions.requests, settings, lambda requests, turn: [], prompt_positions
    )
    if context.share is not None:
        return Outcome(notes={"turn": turns, "missing": missing})
    scored = [(item.length, _bytes(item)) for item in read_completions(context.out)]
    positions = sum(length for length, _ in scored)
    tokens = int(PromptColumns.of(prompts).length.sum())
    shared = (
        f"; left out: {prompt_positions.shared:,} with which most prompts of a domain begin or end"
        if prompt_positions.shared
        else ""
    )
    said = f"the target has scored {positions:,} of the {tokens:,} tokens of {len(prompts):,} train prompts{shared}"
    (context.progress.line if positions else context.progress.warn)(f"{context.job_id}: {said}")
    sizes = {"stored_bytes_per_token": sum(size for _, size in scored) / positions} if positions else {}
    return Outcome({"prompts": float(len(scored)), "prompt_positions": float(positions)} | sizes)


def _generation_settings(asked: GenerateSettings) -> GenerationSettings:
    return GenerationSettings(
        sampling=Sampling.from_config(asked.sampling),
        max_new_tokens=asked.max_new_tokens,
        lookahead=asked.lookahead,
        distribution_tokens=asked.distribution_tokens,
        distribution_selection=asked.distribution_selection,
        batch=asked.batch or 1,
        shard=asked.shard,
        seed=asked.seed,
    )


NextTurn = Callable[[Sequence[CompletionRequest], int], Sequence[CompletionRequest]]


def _complete(
    context: StageContext[GenerateSettings],
    pair: Pair,
    prompts: Sequence[Prompt],
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    next_turn_of: NextTurn,
    logged: Recorded | None,
) -> tuple[int, int]:
    """Write the shards of all turns, by the servers of the target or by loaded targets, and return the number of turns, and of
    shards that are missing: of a share that is not the last."""
    if context.settings.api is None:
        return _spread(context, pair, prompts, requests, settings, next_turn_of, logged)
    assert context.share is None  # `require_in_parts` has refused it
    return asyncio.run(_by_servers(context, pair, requests, settings, next_turn_of, logged)), 0


def _spread(
    context: StageContext[GenerateSettings],
    pair: Pair,
    prompts: Sequence[Prompt],
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    next_turn_of: NextTurn,
    logged: Recorded | None,
) -> tuple[int, int]:
    """Generate by loaded targets, wherever the config has them, and return the number of turns. A share of the shards ends with
    the first turn that others have not finished, and with the number of their shards that are missing. UnderstudyError as soon as
    the shards that are there show that the recorded answers are no samples of the target."""
    role = context.settings.task.target
    work = ShardWork(
        target=pair.path(role),
        dtype=context.settings.dtype,
        trust_remote_code=context.resources.trust_remote_code,
        device_map=context.resources.device_map(role),
        settings=settings,
        longest_prompt=int(PromptColumns.of(prompts).length.max()),
        completions=min(settings.shard, len(requests)),
        vocabulary=pair.vocabulary,
        stop_tokens=pair.stop_tokens,
        batch_tokens=context.resources.batch_tokens,
    )
    turns = missing = 0
    stored = StoredShards(context.out, pair.vocabulary)
    with Spread(context, Work(open_target, work)) as spread:
        while requests and not missing:
            turns += 1
            parts = _parts(requests, settings, turns, logged)
            stored.expect(part.name for part in parts)
            missing = spread.make(parts, "generate", "tokens", stored.look)
            requests = [] if missing else next_turn_of(requests, turns)
    return turns, missing


def _parts(
    requests: Sequence[CompletionRequest], settings: GenerationSettings, turn: int, logged: Recorded | None
) -> list[Part[Shard]]:
    return [
        Part(
            name,
            shard_files(name),
            len(shard) * settings.max_new_tokens,
            partial(_content, name, shard, logged),
        )
        for name, shard in shards_of(requests, settings.shard, turn)
    ]


def _content(name: str, requests: Sequence[CompletionRequest], logged: Recorded | None) -> Shard:
    """The shard with its requests as a list: a slice of the plan would take all prompts with it."""
    own = list(requests)
    return Shard(name, own, logged.of_requests(own) if logged is not None else {})


async def _by_servers(
    context: StageContext[GenerateSettings],
    pair: Pair,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    next_turn_of: NextTurn,
    logged: Recorded | None,
) -> int:
    """Generate by the servers of the target, and return the number of turns."""
    server, identity, turns = context.resources.servers, Identity.from_facts(pair.facts["served"]), 0
    assert server is not None  # the target is on servers
    async with connect(server, identity, pair.vocabulary, context.progress) as (target, abilities):
        served = Served(target, abilities, identity, server.logprobs, pair.vocabulary, pair.stop_tokens)
        while requests:
            turns += 1
            await generate_by_servers(served, requests, settings, context.out, context.progress, turns, logged)
            requests = next_turn_of(requests, turns)
    return turns


def _logged(context: StageContext[GenerateSettings], pair: Pair, settings: GenerationSettings) -> LoggedAnswers | None:
    """The logged answers; None where the target has to complete all prompts: a log's answers are not of the target before its
    change."""
    stored = StoredAnswers(context.inputs["corpus"])
    if not len(stored) or context.settings.task.target != "target":
        return None
    logged = LoggedAnswers(stored, settings.sampling, settings.max_new_tokens, pair.stop_tokens, pair.vocabulary)
    logged.require_usable()
    return logged


def _report_answers(
    context: StageContext[GenerateSettings], prompts: Sequence[Prompt], logged: LoggedAnswers, completions: float
) -> tuple[dict[str, float], dict[str, Any]]:
    """Report how many recorded answers are stored, why others are not, and what the test of them can find: figures and notes."""
    ids = (name.decode() for name in PromptColumns.of(prompts).id.astype("S16", copy=False))
    answer_counts = count_answers(logged, ids, read_completions(context.out, sampling=logged.sampling))
    tested = stored_test(context.out).recorded
    context.progress.line(
        f"generate: {answer_counts.used:,} of {completions:,.0f} completions are recorded answers, which the target has scored"
        f"{answer_counts.text}"
    )
    if power := passed(tested):
        context.progress.line(f"generate: {power}")
    counted = {"recorded_answers": float(answer_counts.used), "unused_answers": float(answer_counts.unused.total())}
    return counted | figures(tested), {"unused_answers": dict(sorted(answer_counts.unused.items()))}


def _next_turn(
    context: StageContext[GenerateSettings],
    pair: Pair,
    requests: Sequence[CompletionRequest],
    turn: int,
    stop_reasons: StopReasons,
) -> Sequence[CompletionRequest]:
    """The next user turn of every chat that has one, after the completions of `turn`."""
    if all(item.prompt.chat is None for item in requests):
        return []
    asked, tokenizer = context.settings, load_tokenizer(pair.tokenizer, context.resources.trust_remote_code)
    # Not among the artifact's files: a network file system gives a file that is deleted while it is read another name.
    spool = context.store.parts
    spool.mkdir(exist_ok=True)
    return next_turn(
        requests,
        read_completions(context.out, shards=shard_prefix(turn)),
        tokenizer,
        Renderer(tokenizer, asked.chat_template, asked.chat_template_arguments, pair.vocabulary, pair.template_day),
        pair.stop_tokens,
        asked.prompt_limit,
        stop_reasons,
        spool,
    )


def _segmenter(context: StageContext[GenerateSettings], pair: Pair) -> Segmenter:
    """UsageError for a marker that the target's tokenizer never writes. Reports where the target's markers are not known."""
    tokenizer = load_tokenizer(pair.tokenizer, context.resources.trust_remote_code)
    settings = context.settings.segments
    segmenter = Segmenter(tokenizer, settings)
    unknown = settings.markers == "auto" and segmenter.family is None and not settings.rules
    if unknown and context.share is None and renders_segments(chat_templates(tokenizer)):
        context.progress.line(
            "generate: the target's chat template renders thinking or tool calls, by markers that are not known here: they count "
            "as the answer; generate.segments.rules can name them (docs/examination.md)"
        )
    if segmenter.unwritten and segmenter.family is not None and context.share is None:
        context.progress.line(
            f"generate: {segmenter.family.title}: the target's tokenizer never writes {', '.join(segmenter.unwritten)}, so its "
            "segment is not separated from the others; generate.segments.rules can name another marker (docs/examination.md)"
        )
    return segmenter


def _bytes(item: StoredCompletion) -> int:
    return sum(array.nbytes for array in (item.tokens, item.log_p, item.entries, item.certain, item.rest_log_p))


def _counts(context: StageContext[GenerateSettings], segments: Sequence[str]) -> dict[str, float]:
    """Counted from the stored files, so that a resumed run reports the same figures as an uninterrupted one."""
    completions = before = tokens = stopped = stored = size = 0
    sampled = 0.0  # mass of the distributions that the stored tokens stand for by sampling
    labelled_S = np.zeros(len(segments), dtype=np.int64)
    for item in read_completions(context.out):
        completions, tokens, stopped = completions + 1, tokens + item.length, stopped + item.stopped
        before += len(item.prompt)
        if item.segments is not None:
            labelled_S += np.bincount(item.segments[: item.length], minlength=len(segments))
        stored += len(item.tokens)  # the tokens past the end of examination completions included
        size += _bytes(item)
        sampled += float(np.exp(item.rest_log_p[: item.length].astype(np.float64)).sum())
    shares = {name: float(count) / tokens for name, count in zip(segments, labelled_S, strict=True) if count}
    if len(shares) > 1:
        listed = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
        context.progress.line(f"generate: of {tokens:,} tokens: {listed}")
    asked = context.settings
    if sampled > _FEW * tokens and "train" in asked.task.splits and asked.distribution_selection == "sampled":
        context.progress.line(
            f"{context.job_id}: {asked.distribution_tokens} stored tokens leave {sampled / tokens:.0%} of the "
            "target's distributions to samples, which cost small drafts 1 point of acceptance rate and more; store more tokens "
            "(generate.distribution_tokens, of servers generate.server.logprobs; docs/distillation.md)"
        )
    return {
        "completions": completions,
        "prompt_tokens": before,
        "tokens": tokens,
        "stopped_share": stopped / completions,
        "stored_bytes_per_token": size / stored,
        "sampled_mass": sampled / tokens,
    } | {f"share_{name}": share for name, share in shares.items() if len(shares) > 1}
