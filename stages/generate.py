"""generate: the target plays its part. Completions of the corpus, with the distributions a draft learns from."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from pipeline.corpus.prompt_store import read_prompts
from pipeline.corpus.rendering import Renderer
from pipeline.errors import UsageError
from pipeline.generation.completion_store import read_completions
from pipeline.generation.generate import CompletionRequest, GenerationSettings, generate, plan_completions, shard_prefix
from pipeline.generation.multi_turn import StopReasons, next_turn
from pipeline.models.loading import choose_device, load_model, load_tokenizer
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.speculation.sampling import Sampling


def run(context: StageContext) -> Outcome:
    config, pair = context.config, read_pair(context.inputs["target"], context.config.pair)
    role = "target_before" if context.part == "before" else "target"
    splits = {"examination"} if context.part == "before" else None
    sampling = Sampling(**config.sampling.model_dump())
    also_at = [Sampling(**further.model_dump()) for further in config.generate.also_at]
    train_at = [replace(sampling, temperature=temperature) for temperature in config.generate.train_temperatures]
    requests = plan_completions(read_prompts(context.inputs["corpus"], splits), sampling, also_at, train_at)
    new_tokens = config.generate.max_new_tokens + config.generate.lookahead
    _check_limits(pair, requests, new_tokens, config.generate.kept)
    settings = GenerationSettings(
        sampling=sampling,
        max_new_tokens=config.generate.max_new_tokens,
        lookahead=config.generate.lookahead,
        kept=config.generate.kept,
        keep=config.generate.keep,
        batch=config.generate.batch,
        shard=config.generate.shard,
        seed=config.seed,
    )
    model = load_model(pair.path(role), pair.dtype(role), choose_device(config.device), config.pair.trust_remote_code)
    stop_reasons, turns = StopReasons(), 0
    while requests:
        turns += 1
        generate(model, requests, settings, pair.vocabulary, pair.stop_tokens, context.out, context.progress, turns)
        requests = _next_turn(context, pair, requests, turns, stop_reasons)
    chats = {"turns": float(turns)} | {f"chats_{name}": float(count) for name, count in asdict(stop_reasons).items()}
    return Outcome(_counts(context) | (chats if turns > 1 or any(asdict(stop_reasons).values()) else {}))


def _next_turn(
    context: StageContext, pair: Pair, requests: Sequence[CompletionRequest], turn: int, stop_reasons: StopReasons
) -> list[CompletionRequest]:
    """What chats that go on ask after the answers of `turn`."""
    if all(item.prompt.chat is None for item in requests):
        return []
    config = context.config
    tokenizer = load_tokenizer(pair.tokenizer, config.pair.trust_remote_code)
    room = pair.context - config.generate.max_new_tokens - config.generate.lookahead
    return next_turn(
        requests,
        read_completions(context.out, shards=shard_prefix(turn)),
        tokenizer,
        Renderer(tokenizer, config.corpus.chat_template, config.corpus.chat_template_arguments),
        pair.stop_tokens,
        min(config.corpus.max_prompt_tokens, room),
        stop_reasons,
    )


def _check_limits(pair: Pair, requests: Sequence[CompletionRequest], new_tokens: int, kept: int) -> None:
    longest = max((len(item.prompt.tokens) for item in requests), default=0)
    if kept >= pair.vocabulary:
        raise UsageError(
            f"generate.kept = {kept}: the pair has only {pair.vocabulary} tokens, and some must be left for the rest"
        )
    if longest + new_tokens > pair.context:
        raise UsageError(
            f"generate: a prompt of {longest} tokens and {new_tokens} new ones (generate.max_new_tokens + lookahead) exceed "
            f"the pair's context of {pair.context}; lower corpus.max_prompt_tokens or generate.max_new_tokens"
        )


def _counts(context: StageContext) -> dict[str, float]:
    """Counted from what is stored, so that a resumed run reports what an unbroken one would."""
    completions = tokens = stopped = stored = size = 0
    for spoken in read_completions(context.out):
        completions, tokens, stopped = completions + 1, tokens + spoken.length, stopped + spoken.stopped
        stored += len(spoken.tokens)  # what examination prompts have past their end included
        size += sum(
            array.nbytes for array in (spoken.tokens, spoken.log_p, spoken.entries, spoken.certain, spoken.rest_log_p)
        )
    return {
        "completions": completions,
        "tokens": tokens,
        "stopped_share": stopped / completions,
        "stored_bytes_per_token": size / stored,
    }
