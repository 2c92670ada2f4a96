"""`understudy champion`: the registered draft that is in use, and the ones before it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say, say_json

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.registry.history import Change
    from pipeline.store.artifacts import Store

COLUMNS = ("change", "time (UTC)", "action", "version", "run")  # of `history`


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
    from pipeline.handover.settle import handover
    from pipeline.notices.send import check_receiver
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
    from pipeline.handover.rollback import Rollback, roll_back
    from pipeline.handover.settle import handover
    from pipeline.notices.send import check_receiver
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
    from pipeline.handover.settle import settle as settle_config
    from pipeline.notices.send import check_receiver
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
    from pipeline.notices.send import check_receiver
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
            from pipeline.commands.tables.console import Report

            Report().text(f"nothing to verify: {why}", indent=2)
        return
    from pipeline.canary.verify import verify as verify_champion
    from pipeline.commands.canary import print_verification

    check_receiver(read.promote.notice)
    verification = verify_champion(read, where, Progress(), wait)
    if as_json:
        say_json(asdict(verification))
    else:
        print_verification(verification)
    if verification.action == "unverified":
        raise UnderstudyError(f"not verified: {verification.why}")
    if verification.action != "verified":
        raise Refused(f"{'rolled back' if verification.action == 'roll_back' else 'not verified'}: {verification.why}")


def history(config: ChampionOf, overrides: OverridesOfFile = None, store: StorePath = DEFAULT_STORE) -> None:
    """List who was champion or challenger, when, and why.

    Registrations for approval, approvals, promotions and rollbacks are listed, the oldest first.
    """
    from pipeline.handover.difference import report_difference
    from pipeline.progress import Progress
    from pipeline.registry.registry import registry_for

    read, where = _config_and_store(config, overrides, store)
    registry = registry_for(read, where)
    changes = registry.history()
    if not changes:
        say(f"{registry.name}: nothing was promoted yet")
    else:
        print_history(changes)
    report_difference(read, where, Progress())


def print_history(changes: Sequence["Change"]) -> None:
    """Print a table to stdout, and below it who made a change and why, which is too long for a table."""
    from pipeline.commands.tables.console import Report

    out = Report()
    out.table(COLUMNS, [history_row(change) for change in changes], left=("action", "run"))
    for change in changes:
        more = ", ".join(text for text in (change.by and f"by {change.by}", change.why) if text)
        if more:
            out.text(f"change {change.number}: {more}", indent=2)


def history_row(change: "Change") -> list[str]:
    """The cells of one change."""
    time = change.time.removesuffix("Z").replace("T", " ")
    versions = f"{change.old} -> {change.new}"
    return [str(change.number), time, change.action, versions, change.run or "-"]


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
