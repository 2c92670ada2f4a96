"""`understudy champion`: the registered draft that is in use, and the ones before it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say, say_json
from pipeline.registry.draft_names import CONFIG_FORMS

if TYPE_CHECKING:
    from pipeline.config.quantize import Variant
    from pipeline.config.root import Config
    from pipeline.registry.named import Draft
    from pipeline.store.artifacts import Store


def promote(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run whose draft waits for approval; or NAME, NAME@challenger, NAME@VERSION, CONFIG "
            "(docs/naming.md).",
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
    from pipeline.handover.approval import approve_run, waiting_run
    from pipeline.handover.notice import check_receiver
    from pipeline.handover.settle import handover
    from pipeline.progress import Progress
    from pipeline.registry.draft_names import Registered, Run
    from pipeline.registry.finding import config_of, read_entry, require_registry
    from pipeline.registry.registry import naming, registered_name
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import require_run

    where = Store(store)
    named = read_entry(run, where)
    config = config_of(named, (), where)
    require_registry(config, where)
    check_receiver(config.promote.notice)
    with handover(config, where, Progress()) as scope:
        which = named.which if isinstance(named, Registered) else ""
        record = require_run(where, named.id) if isinstance(named, Run) else waiting_run(scope, which)
        approve_run(scope, record, force_promote)
    say(f"{registered_name(config)} is made of {naming(config)}")


def rollback(
    config: ChampionOf,
    overrides: OverridesOfFile = None,
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

    The exported link, the records of the runs and MLflow follow, and promote.notice is sent. Later runs do not
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


def settle(config: ChampionOf, overrides: OverridesOfFile = None, store: StorePath = DEFAULT_STORE) -> None:
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
    config: ChampionOf,
    overrides: OverridesOfFile = None,
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
    """Check after a reload that the engines serve the champion.

    Runs the canary, and compares the first drafts in production with the prediction. If an engine serves another draft,
    promote.notice asks it once to reload again. With watch.rollback, a draft that falls short of its examination is rolled back.
    Exit 0: verified, or watch.endpoints names no engine; 3: not verified, or rolled back; 1: inconclusive.
    """
    from dataclasses import asdict

    from pipeline.errors import Refused, UnderstudyError
    from pipeline.handover.notice import check_receiver
    from pipeline.progress import Progress

    read, where = _config_and_store(config, overrides, store)
    if not read.watch.endpoints:
        why = (
            "watch.endpoints names no engine; to verify a reload, name every replica there: give the config file, with "
            "--set watch.endpoints='[\"http://127.0.0.1:8000\"]' where it does not"
        )
        if as_json:
            say_json({"action": "nothing", "why": why})
        else:
            from pipeline.report.console import Report

            Report().text(f"nothing to verify: {why}", indent=2)
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


def history(config: ChampionOf, overrides: OverridesOfFile = None, store: StorePath = DEFAULT_STORE) -> None:
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
    exported, config = (
        _exported(draft, Store(store), variant) if run is None else (_given(draft, run, variant, Store(store)), None)
    )
    from pipeline.export.write import write_export  # loads torch

    plan = plan_export(exported, cast(ExportEngine, engine), out, tensor_parallel, converter, gamma)
    progress = Progress()
    for note in plan.notes:
        progress.warn(note)
    if (
        config is not None
        and gamma is None
        and (now := config.evaluate.gamma) != (then := exported.config.evaluate.gamma)
    ):
        progress.warn(
            f"{draft} has evaluate.gamma {now}, and the run that trained the draft had {then}, which is exported; --gamma {now} "
            "exports the other"
        )
    say(f"{exported.label}: exported for {plan.facts.title} to {write_export(plan, progress)}")


def _given(text: str | None, run: str, variant: "Variant | None", store: "Store") -> "Draft":
    """A draft that the run did not train."""
    from pipeline.errors import UsageError
    from pipeline.export.given import given_draft
    from pipeline.registry.finding import find_draft, find_run

    if variant not in (None, "unquantized"):
        raise UsageError(f"--variant {variant}: with --run a draft is exported as it is; leave the option out")
    if text is None:
        raise UsageError("--run: name the draft that is examined on the completions of this run")
    found = find_draft(text, store)
    if found.run:
        raise UsageError(f"--run: run {found.run} trained {text}, and it is examined with that; leave the option out")
    return given_draft(found, find_run(run, store, needs=("generate",)))


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


def _config_and_store(config: str, overrides: list[str] | None, store: "Path") -> "tuple[Config, Store]":
    from pipeline.progress import Progress
    from pipeline.registry.finding import champion_config, require_registry
    from pipeline.running.clear_text import clear_text_warnings
    from pipeline.store.artifacts import Store

    where = Store(store)
    read = champion_config(config, overrides or [], where)
    require_registry(read, where)
    for warning in clear_text_warnings(read, where):
        Progress().warn(warning)
    return read, where
