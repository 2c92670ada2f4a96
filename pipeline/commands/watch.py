"""`understudy watch`: the champion in production."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say

if TYPE_CHECKING:
    from pipeline.config.root import Config


def watch(
    config: ChampionOf,
    overrides: OverridesOfFile = None,
    store: StorePath = DEFAULT_STORE,
    once: Annotated[
        bool, typer.Option("--once", help="One look; exit 3 while there is a drift. For cron, CI and Airflow.")
    ] = False,
    for_retraining: Annotated[
        bool,
        typer.Option(
            "--for-retraining",
            help="Exit 2 for a config whose retraining could not learn from a drift: no source of prompts has times.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare acceptance in production with the examination.

    Reports drift, and whether speculation is faster than plain decoding. Reads the counters of the engines in watch.endpoints, or
    the log in watch.log. Without --once it reads them every watch.interval_seconds until it is stopped. Its state is one small
    file in the store, so it may be stopped and started at any time. While another process watches, --once prints the result of
    that one.
    """
    import json
    import time

    from pipeline.errors import Refused, UnderstudyError
    from pipeline.notices.send import check_receiver
    from pipeline.progress import Progress
    from pipeline.registry.finding import champion_config
    from pipeline.registry.registry import registered_name
    from pipeline.store.artifacts import Store
    from pipeline.store.locks import UNLIMITED
    from pipeline.watch.acting import watch_forever, watch_of
    from pipeline.watch.lines import drift_lines, figures, status_line

    where = Store(store)
    read, progress = champion_config(config, overrides or [], where), Progress()
    check_receiver(read.watch.notice, "watch.notice")
    if for_retraining:
        check_can_learn(read)
    name = registered_name(read)
    where.create()
    lock = f"watch-{name}"
    if not once:
        with where.lock(lock, lambda by: progress.line(f"{by}, watches this; waiting"), wait_seconds=UNLIMITED):
            watch_forever(watch_of(read, where, name, time.time(), progress))
    with where.try_lock(lock) as is_ours:
        watching = watch_of(read, where, name, time.time(), progress)
        if is_ours:
            look = watching.look(time.time())
        else:
            watching.beside()
    findings = watching.findings
    if is_ours and look.counts is None and look.problems and not findings.open:
        raise UnderstudyError(f"{name}: nothing could be read: {'; '.join(look.problems[:3])}")
    say(json.dumps(figures(findings), sort_keys=True) if as_json else f"{name}: {status_line(findings, read.watch)}")
    if findings.open:
        raise Refused(f"{name}: {'; '.join(drift_lines(findings))}")


def check_can_learn(config: "Config") -> None:
    """UsageError where a retraining could not distinguish rows since the drift from older ones: no source has times. Such a
    retraining would train on the traffic from before the drift, and be judged by it.

    Also for a source that is not there or cannot be read.
    """
    from pipeline.corpus.since_change import why_no_log
    from pipeline.errors import UsageError
    from pipeline.planning.forecast import source_readers

    if (reason := why_no_log(source_readers(config).values())) is not None:
        raise UsageError(f"corpus.sources: a retraining that drift starts cannot learn from the drift: {reason}")
