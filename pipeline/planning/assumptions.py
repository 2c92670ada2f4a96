"""What an estimate assumes: each figure, where it comes from, and the key that changes it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.planning.earlier_runs import Lengths, Measurements
from pipeline.planning.forecast import Forecast
from pipeline.planning.same_inputs import draft_kind
from pipeline.planning.throughput import Sizes
from pipeline.planning.work import (
    FORWARD,
    Amounts,
    completions_of,
    dev_examinations,
    trained_tokens,
    training_flops,
)


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A figure that the estimate rests on."""

    what: str
    value: float
    source: str
    key: str  # of the config, that changes it


def amounts_of(config: Config, counted: Forecast, known: Measurements) -> Amounts:
    """What is stated goes before what a run found, and that before the upper bounds of the config."""
    lengths, kept = known.lengths, known.lengths.kept if known.lengths else 1.0
    splits = config.corpus.splits
    prompts = {name: counted.rows * kept * getattr(splits, name) for name in ("train", "dev", "examination")}
    return Amounts(
        rows=counted.rows,
        prompts=prompts,
        prompt_tokens=_prompt_tokens(config, lengths).value,
        completion_tokens=_completion_tokens(config, lengths).value,
        longest_prompt=longest_prompt(config, lengths).value,
        turns=lengths.turns if lengths else 1.0,
        processes=_processes(config, known).value,
        recorded=(counted.recorded_answers or 0) / counted.rows if counted.rows else 0.0,
        target_passes=draft_kind(config).reads_states,
    )


def assumptions_of(
    config: Config, counted: Forecast, known: Measurements, amounts: Amounts, sizes: Sizes
) -> list[Assumption]:
    """The assumptions of an estimate, in the order in which it uses them."""
    assumptions = [_rows(config, counted), _kept(known.lengths), _prompt_tokens(config, known.lengths)]
    assumptions += [longest_prompt(config, known.lengths), _completion_tokens(config, known.lengths)]
    assumptions += [*_of_training(config, amounts), _processes(config, known)]
    if sizes.draft is not None:
        assumptions.append(_parameters("draft", sizes.draft, known.draft_parameters is not None, known))
    if sizes.kind.reads_states and sizes.target is not None:
        assumptions.append(_parameters("target", sizes.target, known.target_parameters is not None, known))
    if config.plan.flops is not None:
        source = "stated; a parameter and a token take 6 FLOPs in training (Kaplan et al. 2020), 8 with gradient checkpointing, "
        of_target = ", and 2 of the target's in both" if sizes.kind.reads_states else ""
        assumptions.append(
            Assumption(
                what="FLOP/s of one device",
                value=config.plan.flops,
                source=f"{source}{FORWARD} in an examination{of_target}",
                key="plan.flops",
            )
        )
    return assumptions


def _rows(config: Config, counted: Forecast) -> Assumption:
    source = "the rows of corpus.sources" if config.plan.rows is None else "stated; corpus.sources was not read"
    return Assumption(what="prompts before cleaning", value=counted.rows, source=source, key="plan.rows")


def _kept(lengths: Lengths | None) -> Assumption:
    source = "assumed: no row is rejected and none is a duplicate" if lengths is None else _run(lengths)
    value = 1.0 if lengths is None else lengths.kept
    return Assumption(what="share of the rows that are kept as prompts", value=value, source=source, key="plan.rows")


def _prompt_tokens(config: Config, lengths: Lengths | None) -> Assumption:
    what, key = "mean tokens of a prompt", "plan.prompt_tokens"
    if config.plan.prompt_tokens is not None:
        return Assumption(what=what, value=config.plan.prompt_tokens, source="stated", key=key)
    if lengths is not None:
        return Assumption(what=what, value=lengths.prompt_tokens, source=_run(lengths), key=key)
    source = "the most that corpus.max_prompt_tokens allows"
    return Assumption(what=what, value=config.corpus.prompt_limit, source=source, key=key)


def longest_prompt(config: Config, lengths: Lengths | None) -> Assumption:
    """The longest prompt, which decides how long packed rows and caches are."""
    what, key = "longest prompt, in tokens", "plan.longest_prompt_tokens"
    if (stated := config.plan.longest_prompt_tokens) is not None:
        return Assumption(what=what, value=min(stated, config.corpus.prompt_limit), source="stated", key=key)
    if lengths is not None:
        return Assumption(what=what, value=lengths.longest_prompt, source=_run(lengths), key=key)
    return Assumption(
        what=what, value=config.corpus.prompt_limit, source="the most that corpus.max_prompt_tokens allows", key=key
    )


def _completion_tokens(config: Config, lengths: Lengths | None) -> Assumption:
    what, key, most = "mean tokens of a completion", "plan.completion_tokens", config.generate.max_new_tokens
    if config.plan.completion_tokens is not None:
        return Assumption(what=what, value=config.plan.completion_tokens, source="stated", key=key)
    if lengths is not None and lengths.completion_tokens is not None and lengths.max_new_tokens == most:
        return Assumption(what=what, value=lengths.completion_tokens, source=_run(lengths), key=key)
    return Assumption(what=what, value=most, source="the most that generate.max_new_tokens allows", key=key)


def _of_training(config: Config, amounts: Amounts) -> Iterator[Assumption]:
    tokens = trained_tokens(config, amounts) / (1 + len(config.distill.learning_curve))
    completions = amounts.turns * sum(completions_of(config, amounts.prompts, ("train",)).values())
    length = amounts.prompt_tokens + amounts.completion_tokens
    if completions:
        yield Assumption(
            what="passes of the training over the train completions",
            value=tokens / (completions * length),
            source="distill.max_steps x batch x accumulation rows, packed as long as the longest",
            key="distill.max_steps",
        )
    yield Assumption(
        what="examinations on dev prompts within the training",
        value=dev_examinations(config),
        source=f"distill.evaluate_every; a token costs {_share(config, amounts)} a trained one",
        key="distill.evaluate_every",
    )


def _share(config: Config, amounts: Amounts) -> str:
    return "as much as" if amounts.target_passes else f"{FORWARD}/{training_flops(config)} of"


def _processes(config: Config, known: Measurements) -> Assumption:
    what, key, asked = "processes that train the draft", "distill.processes", config.distill.processes
    if asked != "auto":
        return Assumption(what=what, value=asked, source="stated", key=key)
    if (earlier := known.jobs.get("distill")) is not None:
        return Assumption(what=what, value=earlier.work.workers, source=f"those of run {earlier.run}", key=key)
    return Assumption(what=what, value=1, source="assumed; auto takes each GPU that there is", key=key)


def _parameters(role: str, count: float, is_known: bool, known: Measurements) -> Assumption:
    source = known.parameters_source if is_known else "stated"
    return Assumption(what=f"parameters of the {role}", value=count, source=source, key=f"plan.{role}_parameters")


def _run(lengths: Lengths) -> str:
    return f"measured in {lengths.source}"
