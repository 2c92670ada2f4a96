"""Arguments and options that several commands share."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipeline.errors import UsageError
from pipeline.escaping.nearest import did_you_mean
from pipeline.registry.draft_names import CONFIG_FORMS, FORMS
from pipeline.running.stage_list import STAGE_NAMES


def _given_path(given: str | Path) -> Path:
    """A shell leaves `~` in `--store=~/x`, and an unset variable leaves nothing, which would be the current directory."""
    if not str(given).strip():
        raise typer.BadParameter("an empty path; is a variable of the shell not set?")
    return Path(os.path.expanduser(given))


def path_option(*names: str, metavar: str, help: str) -> Any:
    """The option of a file or directory."""
    return typer.Option(*names, metavar=metavar, help=help, parser=_given_path)


ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.")]
TargetOfHead = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T",
        help="The target that made the completions. Only a draft that reads its hidden states needs it (EAGLE-3, Medusa).",
    ),
]
RunId = Annotated[str | None, typer.Argument(metavar="RUN", help="The id of a run; the latest run by default.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, such as distill.max_steps=100. May be given several times.",
    ),
]
OverridesOfFile = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, where a config file is given; a NAME or RUN has the config of its run. May be given several "
        "times.",
    ),
]


StorePath = Annotated[Path, path_option("--store", metavar="DIR", help="The directory of artifacts and runs.")]
DEFAULT_STORE = Path(".understudy")
ForcePromote = Annotated[
    bool,
    typer.Option(
        "--force-promote",
        help="Promote the draft even if it was rolled back or not approved in time. The promotion rules still apply.",
    ),
]
EvenIfRefused = Annotated[
    bool,
    typer.Option(
        "--even-if-refused",
        help="Go on where the gate must refuse the draft, such as with too few examination prompts; by default that is an error "
        "before anything is generated.",
    ),
]


def _is_named(target: str) -> str:
    """The option as it is given. UsageError, before anything heavy is imported, for what can be no model."""
    from pipeline.models.names import local_directory

    local_directory(target, "target")
    return target


TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="T",
        help="The target model: a local directory, org/name or org/name@revision.",
        callback=_is_named,
    ),
]
DRAFT_HELP = f"{FORMS} (docs/naming.md)"
DraftName = Annotated[str, typer.Option("--draft", metavar="D", help=f"The draft: {DRAFT_HELP}.")]
ChampionOf = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help=f"The config, or what stands for it: {CONFIG_FORMS} (docs/naming.md).",
    ),
]
DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option("--dtype", help="The dtype of target and drafts; by default the dtype they were saved in."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="The device: auto, cpu, cuda or cuda:N.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code that ships with a model. Use it only if you have read that code."
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0,
        help="The sampling temperature; 0 is greedy decoding. Default of this and of the cut-offs: the deployment's, by the run "
        "that trained the draft, the log, or the target's generation_config.json; else 1 without cut-offs.",
    ),
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Sample from the k most likely tokens; 0 keeps all.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p", min=0.0001, max=1, help="Sample from the smallest set of tokens with this probability; 1 keeps all."
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option("--min-p", min=0, max=1, help="Drop tokens below this share of the highest probability; 0 keeps all."),
]
DraftSamplingOption = Annotated[
    Literal["probabilistic", "greedy"],
    typer.Option("--draft-sampling", help="How draft tokens are chosen at a temperature above 0: sampled, or argmax."),
]
PROMPTS_HELP = (
    "a file (JSON lines, JSON, CSV, TSV, text, Parquet; also .gz, .bz2, .xz, .zst), a directory or a glob of such files, or a "
    "`datasets` directory; or a data set of the hub, org/name[@revision][:PATTERN of its files]."
)
PromptFieldOption = Annotated[
    str | None,
    typer.Option(
        "--prompt-field",
        metavar="COLUMN",
        help="The column of a prompt. Default: `prompt`; else ShareGPT, Alpaca and names such as `question` are recognised.",
    ),
]
PromptFormatOption = Annotated[
    Literal["jsonl", "json", "csv", "tsv", "text", "parquet"] | None,
    typer.Option("--prompt-format", help="The format of the prompts. Default: by the names of the files."),
]
MessagesFieldOption = Annotated[
    str | None,
    typer.Option(
        "--messages-field",
        metavar="COLUMN",
        help="The column of a chat: {role, content} or {from, value}. Default: `messages`.",
    ),
]
DomainFieldOption = Annotated[
    str | None,
    typer.Option("--domain-field", metavar="COLUMN", help="The column of a prompt's domain. Default: `domain`."),
]


def columns_of(
    prompt_format: str | None, prompt_field: str | None, messages_field: str | None, domain_field: str | None = None
) -> dict[str, str | None]:
    """The options of prompt files, as a source in the config names them."""
    return {
        "format": prompt_format,
        "prompt_field": prompt_field,
        "messages_field": messages_field,
        "domain_field": domain_field,
    }


def require_stage(name: str, where: str = "") -> None:
    """UsageError unless there is a stage of this name. `where`: the option that names it."""
    if name not in STAGE_NAMES:
        raise UsageError(
            f"{where} {name}: not a stage; the stages are {', '.join(STAGE_NAMES)}{did_you_mean(name, STAGE_NAMES)}".lstrip()
        )


JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
