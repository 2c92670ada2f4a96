"""`understudy probe`: how good a draft is for given prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import (
    DEFAULT_STORE,
    DRAFT_HELP,
    PROMPTS_HELP,
    DeviceOption,
    DomainFieldOption,
    DraftSamplingOption,
    DtypeOption,
    JsonOption,
    MessagesFieldOption,
    MinPOption,
    PromptFieldOption,
    PromptFormatOption,
    StorePath,
    TargetName,
    TemperatureOption,
    TopKOption,
    TopPOption,
    TrustOption,
    columns_of,
    path_option,
)
from pipeline.commands.sampling import length_of, of_options, of_runs
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.config.corpus import PromptSource, SourceFormat
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.drafts.named_pair import NamedPair
    from pipeline.examination.probe import Probe
    from pipeline.speculation.deployed import Deployed, StatedSettings
    from pipeline.speculation.settings import Sampling

_Drafts = Annotated[
    list[str],
    typer.Option(
        "--draft",
        metavar="D",
        help=f"A draft: {DRAFT_HELP}. May be given several times.",
    ),
]
_Prompts = Annotated[
    str | None,
    typer.Option(metavar="F", help=f"The prompts to complete: {PROMPTS_HELP}"),
]
_Completions = Annotated[
    Path | None, path_option(metavar="DIR", help="Instead of --prompts: stored completions (a generate artifact).")
]
_Count = Annotated[int, typer.Option(min=1, help="The maximum number of prompts.")]
_MaxNewTokens = Annotated[int, typer.Option(min=2, help="The maximum length of a completion, in tokens.")]
_MaxGamma = Annotated[int, typer.Option(min=1, max=16, help="The longest draft length to examine.")]
_Gamma = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The draft length at which drafts are compared, and to which the acceptance rate of a head belongs. Default: that "
        "of the runs that trained the drafts, else 5.",
    ),
]
_Convention = Annotated[
    Literal["user", "transformers", "openvino"],
    typer.Option(
        help="How target calls are counted: as a user, transformers or OpenVINO counts them (docs/examination.md)."
    ),
]
_CostRatio = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Time of a draft pass / time of a target pass, ignoring verification cost. Default: measured on this machine.",
    ),
]
_Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat", help="Apply the chat template to plain prompts. Default: if the tokenizer has one."
    ),
]


def probe(
    target: TargetName,
    draft: _Drafts,
    prompts: _Prompts = None,
    prompt_format: PromptFormatOption = None,
    prompt_field: PromptFieldOption = None,
    messages_field: MessagesFieldOption = None,
    domain_field: DomainFieldOption = None,
    completions: _Completions = None,
    count: _Count = 200,
    max_new_tokens: _MaxNewTokens = 128,
    gamma: _Gamma = None,
    max_gamma: _MaxGamma = 16,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    draft_sampling: DraftSamplingOption = "probabilistic",
    convention: _Convention = "user",
    cost_ratio: _CostRatio = None,
    chat: _Chat = None,
    as_json: JsonOption = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    store: StorePath = DEFAULT_STORE,
    trust_remote_code: TrustOption = False,
) -> None:
    """Examine drafts on your prompts, without a config.

    Prints acceptance rates, the best draft length, the break-even acceptance rate, and a verdict for each draft; --json has the
    rates by domain too. A draft with another tokenizer is examined as a transplant before its training
    (pair.draft.vocabulary), and as vLLM maps its tokens (use_heterogeneous_vocab).
    """
    from pipeline.config.corpus import named_source
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.corpus.hub_data import named_prompts

    options = of_options(temperature, top_k, top_p, min_p)
    wanted = prompt_format or "auto"
    chosen = None if prompts is None or completions is not None else named_prompts(prompts, "--prompts", wanted).path
    _check(prompts, chosen, prompt_format, completions, cost_ratio)
    from pipeline.drafts.head_config import find_target
    from pipeline.models.names import short_names
    from pipeline.registry.finding import find_draft
    from pipeline.store.artifacts import Store

    names = short_names(list(dict.fromkeys(draft)))
    named = {short: find_draft(name, Store(store), "--draft") for name, short in names.items()}
    from pipeline.drafts.named_pair import load_named_pair
    from pipeline.examination.probe import check_completions, sampling_of
    from pipeline.speculation.deployed import resolve

    known = [*(of_runs(named, options) if completions is None else sampling_of(completions)), *options]
    length, of_length = length_of(gamma, named, max_gamma)
    if completions is not None:
        check_completions(completions, resolve(known).sampling, find_target(target))
    pair = load_named_pair(target, named, dtype, device, trust_remote_code, other_tokenizers=True)
    settings = EvaluateConfig(convention=convention, draft_sampling=draft_sampling, gamma=length, max_gamma=max_gamma)
    columns = columns_of(prompt_format, prompt_field, messages_field, domain_field)
    asked = _Asked(named_source(chosen, columns) if chosen else None, completions, count, max_new_tokens, chat)
    probed, notes, deployed = _examine(pair, asked, known, settings, cost_ratio)
    if draft_sampling != "greedy" and not deployed.sampling.greedy:
        notes += [
            f"{name}: drafted greedily, as engines draft with {draft.kind.name} at every temperature"
            for name, draft in pair.drafts.items()
            if draft.kind.greedy
        ]
    _print(probed, [*deployed.lines, *pair.notes, *notes], deployed.sampling, settings, of_length, cost_ratio, as_json)


@dataclass(frozen=True)
class _Asked:
    """What drafts are examined on: prompts to complete, or completions."""

    prompts: "PromptSource | None"
    completions: Path | None
    count: int
    max_new_tokens: int
    chat: bool | None


def _examine(
    pair: "NamedPair",
    asked: _Asked,
    known: "list[StatedSettings]",
    settings: "EvaluateConfig",
    cost_ratio: float | None,
) -> "tuple[Probe, list[str], Deployed]":
    """The figures, notes on prompts that were left out, and the sampling. `known`: settings beside those of pair and prompts."""
    import tempfile

    from pipeline.errors import UsageError
    from pipeline.examination.probe import complete, read_prompts
    from pipeline.examination.probe import probe as examine
    from pipeline.progress import Progress
    from pipeline.speculation.deployed import FILE, StatedSettings, resolve

    if asked.chat and not pair.tokenizer.chat_template:
        raise UsageError("--chat: the target's tokenizer has no chat template; leave the option out")
    new, progress, notes = asked.max_new_tokens, Progress(), list[str]()
    if asked.prompts is not None and new >= pair.context:
        raise UsageError(f"--max-new-tokens {new}: the pair's context is {pair.context}; leave room for a prompt")
    with tempfile.TemporaryDirectory() as scratch:
        if asked.prompts is not None:
            chosen = read_prompts(asked.prompts, pair, asked.chat, asked.count, pair.context - new)
            notes, known = chosen.notes, [StatedSettings(FILE, pair.sampling_defaults), *chosen.sampling, *known]
            complete(pair, chosen.prompts, resolve(known).sampling, new, Path(scratch), progress)
        where, deployed = asked.completions or Path(scratch), resolve(known)
        probed = examine(pair, where, deployed.sampling, settings, cost_ratio, asked.count, progress)
        return probed, notes, deployed


def _print(
    probed: "Probe",
    notes: list[str],
    sampling: "Sampling",
    settings: "EvaluateConfig",
    of_length: str,
    cost_ratio: float | None,
    as_json: bool,
) -> None:
    import dataclasses

    from pipeline.commands.tables.probe import print_probe

    conditions = {
        "sampling": dataclasses.asdict(sampling),
        "draft_sampling": settings.draft_sampling,
        "convention": settings.convention,
        "confidence": settings.confidence,
        "gamma": settings.gamma,
        "gamma_from": of_length,
        "cost_ratio_given": cost_ratio is not None,
        "device": probed.device,
    }
    if as_json:
        say_json({"conditions": conditions, "notes": notes, **dataclasses.asdict(probed)})
    else:
        print_probe(probed, conditions, notes)


def _check(
    prompts: str | None,
    chosen: Path | None,
    prompt_format: "SourceFormat | None",
    completions: Path | None,
    cost_ratio: float | None,
) -> None:
    """Checks that need no model."""
    import math

    from pipeline.corpus.sources import find_files
    from pipeline.errors import UsageError

    if (prompts is None) == (completions is None):
        raise UsageError("give either --prompts, which the target completes, or --completions, a generate artifact")
    if completions is not None and not completions.is_dir():
        raise UsageError(f"--completions {completions}: no such directory; `understudy show` prints that of a run")
    if chosen is not None:
        find_files(chosen, prompt_format or "auto", f"--prompts {prompts}")
    if not math.isfinite(cost_ratio or 0):
        raise UsageError("--cost-ratio must be a number")
