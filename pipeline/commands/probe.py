"""`understudy probe`: how good a draft is for given prompts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.options import (
    PROMPTS_HELP,
    DeviceOption,
    DomainFieldOption,
    DraftSamplingOption,
    DtypeOption,
    JsonOption,
    MessagesFieldOption,
    MinPOption,
    PromptFieldOption,
    TargetName,
    TemperatureOption,
    TopKOption,
    TopPOption,
    TrustOption,
)
from pipeline.progress import say_json


def probe(
    target: TargetName,
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft",
            metavar="D",
            help="A draft model: a local directory or org/name@revision. May be given several times.",
        ),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="F", help=f"The prompts to complete: {PROMPTS_HELP}"),
    ] = None,
    prompt_field: PromptFieldOption = None,
    messages_field: MessagesFieldOption = None,
    domain_field: DomainFieldOption = None,
    completions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of --prompts: stored completions (a generate artifact).")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="The maximum number of prompts.")] = 200,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="The maximum length of a completion, in tokens.")] = 128,
    max_gamma: Annotated[int, typer.Option(min=1, max=16, help="The longest draft length to examine.")] = 16,
    temperature: TemperatureOption = 1.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    draft_sampling: DraftSamplingOption = "probabilistic",
    convention: Annotated[
        Literal["user", "transformers", "openvino"],
        typer.Option(
            help="How target calls are counted: as a user, transformers or OpenVINO counts them (docs/examination.md)."
        ),
    ] = "user",
    cost_ratio: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Time of a draft pass / time of a target pass, ignoring verification cost. Default: measured on this machine.",
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat", help="Apply the chat template to plain prompts. Default: if the tokenizer has one."
        ),
    ] = None,
    as_json: JsonOption = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Examine drafts on your prompts, without a config.

    Prints acceptance rates by domain, the best draft length, the break-even acceptance rate, and a verdict for each draft.
    """
    import dataclasses
    import tempfile

    from pipeline.config.corpus import named_source
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.errors import UsageError

    _check(prompts, completions, cost_ratio, temperature)
    from pipeline.examination.probe import check_completions, complete, read_prompts
    from pipeline.examination.probe import probe as examine
    from pipeline.models.named_pair import find_model, load_named_pair
    from pipeline.progress import Progress
    from pipeline.report.probe import print_probe
    from pipeline.speculation.settings import GREEDY, Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p) if temperature else GREEDY
    if completions is not None:
        check_completions(completions, sampling, find_model(target, "target"))
    pair, progress = load_named_pair(target, draft, dtype, device, trust_remote_code), Progress()
    if chat and not pair.tokenizer.chat_template:
        raise UsageError("--chat: the target's tokenizer has no chat template")
    if prompts is not None and max_new_tokens >= pair.context:
        raise UsageError(
            f"--max-new-tokens {max_new_tokens}: the pair's context is {pair.context}; leave room for a prompt"
        )
    settings = EvaluateConfig(
        convention=convention, draft_sampling=draft_sampling, gamma=min(5, max_gamma), max_gamma=max_gamma
    )
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        if prompts is not None:
            columns = {"prompt_field": prompt_field, "messages_field": messages_field, "domain_field": domain_field}
            source = named_source(prompts, columns)
            chosen, notes = read_prompts(source, pair, chat, count, pair.context - max_new_tokens)
            complete(pair, chosen, sampling, max_new_tokens, Path(scratch), progress)
        found = examine(pair, completions or Path(scratch), sampling, settings, cost_ratio, count, progress)
    conditions = {
        "sampling": dataclasses.asdict(sampling),
        "draft_sampling": draft_sampling,
        "convention": convention,
        "confidence": settings.confidence,
        "cost_ratio_given": cost_ratio is not None,
    }
    if as_json:
        say_json({"conditions": conditions, "notes": notes, **dataclasses.asdict(found)})
    else:
        print_probe(found, conditions, notes)


def _check(prompts: Path | None, completions: Path | None, cost_ratio: float | None, temperature: float) -> None:
    """Checks that need no model."""
    import math

    from pipeline.corpus.sources import find_files
    from pipeline.errors import UsageError

    if (prompts is None) == (completions is None):
        raise UsageError("give either --prompts, which the target completes, or --completions, a generate artifact")
    if completions is not None and not completions.is_dir():
        raise UsageError(f"--completions {completions}: no such directory")
    if prompts is not None:
        find_files(prompts, "auto", f"--prompts {prompts}")
    if not math.isfinite(temperature) or not math.isfinite(cost_ratio or 0):
        raise UsageError("--temperature and --cost-ratio must be numbers")
