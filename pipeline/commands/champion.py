"""`understudy champion`: the registered draft that is in use, and the ones before it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, Overrides, StorePath
from pipeline.progress import say, say_json

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.store.artifacts import Store

_ConfigOrName = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|NAME", help="The config, or the registered name of the draft: the config of its latest run."
    ),
]


def promote(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|NAME", help="The run whose draft waits for approval, or the registered name of the draft."
        ),
    ],
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
    from pipeline.handover.approval import approve_run, waiting_run
    from pipeline.handover.notice import check_receiver
    from pipeline.handover.settle import handover
    from pipeline.progress import Progress
    from pipeline.registry.named_config import find_config
    from pipeline.registry.registry import naming, registered_name
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import load_run

    where = Store(store)
    record = load_run(where, run)
    config = find_config(run, (), where, "no such run") if record is None else run_config(record)
    require_registry(config, where)
    check_receiver(config.promote.notice)
    with handover(config, where, Progress()) as scope:
        approve_run(scope, waiting_run(scope) if record is None else record, force_promote)
    say(f"{registered_name(config)} is made of {naming(config)}")


def rollback(
    config: _ConfigOrName,
    overrides: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    to: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The version to return to; by default the previous champion.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; goes into the history and the notice.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Roll back even if no champion is left. Servers then find no draft.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would happen, and change nothing.")] = False,
) -> None:
    """Make the previous champion the champion again.

    The exported link, the records of the runs and MLflow follow, and the receiver of promote.notice is told. Later runs do not
    promote the draft that was rolled back, unless they are called with --force-promote. A rollback that was interrupted is
    completed, and not repeated.
    """
    from pipeline.handover.notice import check_receiver
    from pipeline.handover.rollback import Rollback, roll_back
    from pipeline.handover.settle import handover
    from pipeline.progress import Progress

    read, where = _config_and_store(config, overrides, store)
    check_receiver(read.promote.notice)
    asked = Rollback(to=to, reason=" ".join(reason.split()), may_leave_none=yes, dry_run=dry_run)
    with handover(read, where, Progress()) as scope:
        said = roll_back(scope, asked)
    if dry_run:
        say(f"dry run: {said}")


def settle(config: _ConfigOrName, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """Bring link, records and notice in line with the champion.

    Promotion, approval and rollback do this themselves. Call it after one of them was interrupted or failed half-way, after the
    alias champion was moved by hand, and on a machine that serves what another machine promotes. Exit 3 if the alias was moved by
    hand to a version that did not pass its gate, was not approved (promote.by_hand) or was rolled back: then the link stays.
    """
    from pipeline.handover.notice import check_receiver
    from pipeline.handover.settle import settle as settle_config
    from pipeline.progress import Progress
    from pipeline.registry.registry import registered_name

    read, where = _config_and_store(config, overrides, store)
    check_receiver(read.promote.notice)
    entry = settle_config(read, where, Progress())
    champion = f"version {entry.champion} is champion" if entry.champion else "there is no champion"
    say(f"{registered_name(read)}: {champion}; settled")


def verify(
    config: _ConfigOrName,
    overrides: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long to wait for engines that are restarting, and for the first drafts of production.",
        ),
    ] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """After a reload: do the engines serve what was examined?

    The canary is asked, and production's first drafts are compared with the prediction. Engines that serve another draft are told
    to reload again, once, by promote.notice. A draft that falls short of its examination is rolled back with watch.rollback.
    Exit 0: verified, or watch.endpoints names no engine; 3: it is not verified, or was rolled back; 1: it could not be told.
    """
    from dataclasses import asdict

    from pipeline.errors import Refused, UnderstudyError
    from pipeline.handover.notice import check_receiver
    from pipeline.progress import Progress

    read, where = _config_and_store(config, overrides, store)
    if not read.watch.endpoints:
        say("not verified: watch.endpoints names no engine")
        return
    from pipeline.canary.report import print_verification
    from pipeline.canary.verify import verify as verify_champion

    check_receiver(read.promote.notice)
    found = verify_champion(read, where, Progress(), wait)
    if as_json:
        say_json(asdict(found))
    else:
        print_verification(found)
    if found.action == "unverified":
        raise UnderstudyError(f"not verified: {found.why}")
    if found.action != "verified":
        raise Refused(f"{'rolled back' if found.action == 'roll_back' else 'not verified'}: {found.why}")


def history(config: _ConfigOrName, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """List who was champion or challenger, when, and why.

    Registrations for approval, approvals, promotions and rollbacks are listed, the oldest first.
    """
    from pipeline.handover.difference import report_difference
    from pipeline.progress import Progress
    from pipeline.registry.registry import registry_for
    from pipeline.report.history import print_history

    read, where = _config_and_store(config, overrides, store)
    registry = registry_for(read, where)
    changes = registry.history()
    if not changes:
        say(f"{registry.name}: nothing was promoted yet")
    else:
        print_history(changes)
    report_difference(read, where, Progress())


def export(
    engine: Annotated[
        Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "openvino", "tgi", "specinfer"],
        typer.Option(help="The engine that will serve the pair."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write. It must not exist, or be empty.")],
    draft: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|NAME",
            help="A config or a registered name, whose champion is exported; NAME@ALIAS or NAME/VERSION; by default the champion "
            "of the latest run.",
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
    """Write a draft in the form of an engine, with what serves it.

    The directory has the weights, a start command, and what the engine's counters should show.
    What the engine cannot load or shard is an error before a file is written. The exported weights are examined on the stored
    completions of the run.
    """
    from typing import cast

    from pipeline.engines.facts import ExportEngine
    from pipeline.export.checks import require_engine
    from pipeline.export.operand import changed_gamma, find_subject
    from pipeline.export.plan import plan_export, require_free
    from pipeline.export.write import write_export
    from pipeline.progress import Progress
    from pipeline.store.artifacts import Store

    require_engine(engine)
    require_free(out)
    subject = find_subject(draft, Store(store), variant, require_registry)
    plan = plan_export(subject, cast(ExportEngine, engine), out, tensor_parallel, converter, gamma)
    progress = Progress()
    for note in (*plan.notes, *([] if gamma else changed_gamma(draft, subject))):
        progress.warn(note)
    say(f"{subject.label}: exported for {plan.facts.title} to {write_export(plan, progress)}")


def _config_and_store(config: str, overrides: list[str] | None, store: "Path") -> "tuple[Config, Store]":
    from pipeline.progress import Progress
    from pipeline.registry.named_config import find_config
    from pipeline.running.clear_text import clear_text_warnings
    from pipeline.store.artifacts import Store

    where = Store(store)
    read = find_config(config, overrides or [], where)
    require_registry(read, where)
    for warning in clear_text_warnings(read, where):
        Progress().warn(warning)
    return read, where


def require_registry(config: "Config", store: "Store") -> None:
    """UsageError where nothing was ever promoted from this store."""
    from pipeline.errors import UsageError
    from pipeline.registry.mlflow_client import tracking_location

    if not tracking_location(config, store).exists:
        raise UsageError(f"--store {store.root}: there is no registry here; name the store of the run that promoted")
