"""generate: the target plays its part. Completions of the corpus, with the distributions a draft learns from."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from pipeline.corpus.prompt_store import read_prompts
from pipeline.corpus.rendering import Renderer
from pipeline.errors import UsageError
from pipeline.generation.completion_store import read_completions
from pipeline.generation.generate import Settings, Wanted, generate, plan_completions, shard_prefix
from pipeline.generation.multi_turn import Ends, next_turn
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
    wanted = plan_completions(read_prompts(context.inputs["corpus"], splits), sampling, also_at, train_at)
    new_tokens = config.generate.max_new_tokens + config.generate.lookahead
    _check_limits(pair, wanted, new_tokens, config.generate.kept)
    settings = Settings(
        sampling,
        config.generate.max_new_tokens,
        config.generate.lookahead,
        config.generate.kept,
        config.generate.keep,
        config.generate.batch,
        config.generate.shard,
        config.seed,
    )
    model = load_model(pair.path(role), pair.dtype(role), choose_device(config.device), config.pair.trust_remote_code)
    ends, turns = Ends(), 0
    while wanted:
        turns += 1
        generate(model, wanted, settings, pair.vocabulary, pair.stop_tokens, context.out, context.progress, turns)
        wanted = _next_turn(context, pair, wanted, turns, ends)
    chats = {"turns": float(turns)} | {f"chats_{name}": float(count) for name, count in asdict(ends).items()}
    return Outcome(_counts(context) | (chats if turns > 1 or any(asdict(ends).values()) else {}))


def _next_turn(context: StageContext, pair: Pair, wanted: Sequence[Wanted], turn: int, ends: Ends) -> list[Wanted]:
    """What chats that go on ask after the answers of `turn`."""
    if all(item.prompt.chat is None for item in wanted):
        return []
    config = context.config
    tokenizer = load_tokenizer(pair.tokenizer, config.pair.trust_remote_code)
    room = pair.context - config.generate.max_new_tokens - config.generate.lookahead
    return next_turn(
        wanted,
        read_completions(context.out, shards=shard_prefix(turn)),
        tokenizer,
        Renderer(tokenizer, config.corpus.chat_template, config.corpus.chat_template_arguments),
        pair.stop_tokens,
        min(config.corpus.max_prompt_tokens, room),
        ends,
    )


def _check_limits(pair: Pair, wanted: Sequence[Wanted], new_tokens: int, kept: int) -> None:
    longest = max((len(item.prompt.tokens) for item in wanted), default=0)
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
