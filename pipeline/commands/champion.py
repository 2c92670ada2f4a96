"""`understudy champion`: the registered draft that is in use, and the ones before it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, Overrides, StorePath

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.registry.registry import Registry
    from pipeline.store.artifacts import Store


def promote(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run whose draft waits for approval.")],
    store: StorePath = DEFAULT_STORE,
    force_promote: Annotated[
        bool, typer.Option("--force-promote", help="Approve the draft even if it was rolled back before.")
    ] = False,
) -> None:
    """Approve the draft of a run: make it champion. For configs with promote.by_hand.

    The checks are those of a promotion at once: the run passed the gate, the champion is still the one it was compared with, the
    registered files are intact. Exit 3 if one of them fails, or if promote.approval_days have passed.
    """
    from pipeline.config.stored import run_config
    from pipeline.progress import Progress
    from pipeline.registry.tracking import Tracker
    from pipeline.running.approval import approve_run
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import require_run

    where = Store(store)
    record = require_run(where, run)
    config = run_config(record)
    _require_registry(config, where)
    champion = approve_run(where, record, force_promote)
    Tracker(config, where, Progress()).sync(record)  # the run's verdict is another now
    typer.echo(f"{champion.name}: version {champion.version} is champion (draft {champion.digest})")
    if config.promote.export is not None:
        from pipeline.export.promoted import export_champion
        from pipeline.registry.registry import registry_for

        out = export_champion(config.promote.export, registry_for(config, where), where, champion, Progress())
        typer.echo(f"exported to {out}")


def rollback(config: ConfigPath, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """Make the previous champion the champion again. Without a previous one there is no champion afterwards.

    Later runs do not promote the draft that was rolled back, unless they are called with --force-promote.
    """
    from pipeline.running.approval import approver

    registry = _registry(config, overrides, store)
    champion = registry.rollback(by=approver())
    if champion is None:
        typer.echo(
            f"{registry.name} has no champion now: there was none before; the next candidate is compared with the base draft"
        )
    else:
        typer.echo(f"{registry.name}: version {champion.version} is champion again (draft {champion.digest})")
    typer.echo(
        "Later runs do not promote the draft that was rolled back, except with `understudy run CONFIG --force-promote`."
    )


def history(config: ConfigPath, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """List who was champion or challenger, when, and why.

    Registrations for approval, approvals, promotions and rollbacks are listed, the oldest first.
    """
    from pipeline.report.history import print_history

    registry = _registry(config, overrides, store)
    changes = registry.history()
    if not changes:
        typer.echo(f"{registry.name}: nothing was promoted yet")
    else:
        print_history(changes)


def export(
    engine: Annotated[
        Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "openvino", "tgi", "specinfer"],
        typer.Option(help="The engine that will serve the pair."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write. It must not exist, or be empty.")],
    draft: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|VERSION",
            help="A config, whose champion is exported; NAME@ALIAS or NAME/VERSION; by default the champion of the latest run.",
        ),
    ] = None,
    variant: Annotated[
        Literal["unquantized", "int8", "int4", "fp8"] | None,
        typer.Option(help="Another variant of the draft that the same run made; by default the promoted one."),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="The tensor parallel size of the target.")
    ] = 1,
    converter: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="For llama.cpp: its convert_hf_to_gguf.py; by default LLAMA_CPP_CONVERTER."),
    ] = None,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Write a draft in the form of an engine, with what serves it.

    The directory has the weights, a start command, and what the engine's counters should show.
    What the engine cannot load or shard is an error before a file is written. The exported weights are examined on the stored
    completions of the run.
    """
    from typing import cast

    from pipeline.engines.facts import ExportEngine
    from pipeline.export.checks import require_engine
    from pipeline.export.operand import find_subject
    from pipeline.export.plan import plan_export, require_free
    from pipeline.export.write import write_export
    from pipeline.progress import Progress
    from pipeline.store.artifacts import Store

    require_engine(engine)
    require_free(out)
    subject = find_subject(draft, Store(store), variant, _require_registry)
    plan = plan_export(subject, cast(ExportEngine, engine), out, tensor_parallel, converter)
    progress = Progress()
    for note in plan.notes:
        progress.warn(note)
    typer.echo(f"{subject.label}: exported for {plan.facts.title} to {write_export(plan, progress)}")


def _registry(config: "Path", overrides: list[str] | None, store: "Path") -> "Registry":
    from pipeline.config.loading import load_config
    from pipeline.registry.registry import registry_for
    from pipeline.store.artifacts import Store

    read, where = load_config(config, overrides or []), Store(store)
    _require_registry(read, where)
    return registry_for(read, where)


def _require_registry(config: "Config", store: "Store") -> None:
    from pipeline.errors import UsageError
    from pipeline.registry.mlflow_client import tracking_location

    if not tracking_location(config, store).exists:
        raise UsageError(f"--store {store.root}: there is no registry here; name the store of the run that promoted")
