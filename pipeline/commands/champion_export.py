"""`understudy champion export`: a draft in the form of an engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath, path_option
from pipeline.progress import say
from pipeline.registry.draft_names import CONFIG_FORMS

if TYPE_CHECKING:
    from pipeline.config.quantize import Variant
    from pipeline.config.root import Config
    from pipeline.progress import Progress
    from pipeline.registry.named import Draft
    from pipeline.store.artifacts import Store


def export(
    engine: Annotated[
        Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "openvino", "tgi", "specinfer"],
        typer.Option(help="The engine that will serve the pair."),
    ],
    out: Annotated[Path, path_option(metavar="DIR", help="The directory to write. It must not exist, or be empty.")],
    draft: Annotated[
        str | None,
        typer.Argument(
            metavar="DRAFT",
            help=f"The draft, or the config whose champion is exported: {CONFIG_FORMS} (docs/naming.md). By default the "
            "champion of the config of the latest run. With --run any draft.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="For a draft that no run trained (a directory, or a model of the hub): the run on whose completions it is "
            "examined. One with another tokenizer is served as vLLM maps its tokens (docs/drafts.md).",
        ),
    ] = None,
    variant: Annotated[
        Literal["unquantized", "int8", "int4", "fp8"] | None,
        typer.Option(help="Another variant of the draft that the same run made; by default the promoted one."),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="The tensor parallel size of the target.")
    ] = 1,
    gamma: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=64,
            help="The draft length; by default evaluate.gamma of the run that trained the draft, or its schedule for gate.load.",
        ),
    ] = None,
    converter: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="For llama.cpp: its convert_hf_to_gguf.py; by default LLAMA_CPP_CONVERTER."),
    ] = None,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Write a draft in the form of an engine, with a start command.

    The directory has the weights, a start command, and the counters that the engine should show.
    What the engine cannot load or shard is an error before a file is written. The exported weights are examined on the stored
    completions of the run.
    """
    from typing import cast

    from pipeline.engines.facts import ExportEngine
    from pipeline.export.checks import require_engine
    from pipeline.export.plan import plan_export, require_free
    from pipeline.progress import Progress
    from pipeline.store.artifacts import Store

    require_engine(engine)
    require_free(out)
    if run is None:
        exported, config = _exported(draft, Store(store), variant)
    else:
        exported, config = _given(draft, run, variant, Store(store)), None
    from pipeline.export.write import write_export  # loads torch

    plan = plan_export(exported, cast(ExportEngine, engine), out, tensor_parallel, converter, gamma)
    progress = Progress()
    for note in plan.notes:
        progress.warn(note)
    if config is not None and gamma is None:
        _warn_of_gamma(str(draft), config.evaluate.gamma, exported.config.evaluate.gamma, progress)
    say(f"{exported.label}: exported for {plan.facts.title} to {write_export(plan, progress)}")


def _warn_of_gamma(config: str, now: int, then: int, progress: "Progress") -> None:
    """Warn where the config has another draft length now than when it trained the draft: the export has that of the draft."""
    if now != then:
        progress.warn(
            f"{config} has evaluate.gamma {now}, and the run that trained the draft had {then}, which is exported; --gamma {now} "
            "exports the other"
        )


def _given(text: str | None, run: str, variant: "Variant | None", store: "Store") -> "Draft":
    """A draft that the run did not train."""
    from pipeline.errors import UsageError
    from pipeline.export.given import given_draft
    from pipeline.registry.finding import find_draft, find_run

    if variant not in (None, "unquantized"):
        raise UsageError(f"--variant {variant}: with --run a draft is exported as it is; leave the option out")
    if text is None:
        raise UsageError("--run: name the draft that is examined on the completions of this run")
    draft = find_draft(text, store)
    if draft.run:
        raise UsageError(f"--run: run {draft.run} trained {text}, and it is examined with that; leave the option out")
    return given_draft(draft, find_run(run, store, needs=("generate",)))


def _exported(text: str | None, store: "Store", variant: "Variant | None") -> "tuple[Draft, Config | None]":
    """The draft that is named; the champion of a config, with the config, or of that of the latest run."""
    from pipeline.registry.draft_names import File
    from pipeline.registry.finding import EXAMINED, champion_draft, config_of, draft_of, latest_config, read_entry

    if text is None:
        return champion_draft(latest_config(store), store, variant), None
    named = read_entry(text, store, latest=True)
    if not isinstance(named, File):
        return draft_of(named, text, store, needs=EXAMINED, variant=variant), None
    config = config_of(named, (), store)
    return champion_draft(config, store, variant), config
