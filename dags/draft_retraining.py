"""The retraining loop as an Airflow 3 DAG: one task per stage, approval, then what follows the champion, and a report at the end.

Imports Airflow, the standard library and its neighbour `understudy_tasks`: the heavy libraries are in another environment, behind
the `understudy` command. The only state in the DAG is the run id. When a drift last started a retraining is read from Airflow's
asset events, and everything else is in the store, so a task that is cleared or retried reuses what is already built.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable, Param, chain, task
from airflow.sdk.exceptions import AirflowSkipException

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # its neighbour, where the DAG folder is not on the path
from understudy_tasks import ASK_WAITING, CALL, EVENT, EXIT_NO, EXIT_REFUSED, Pair, command_task, cron, pairs

# Held equal to `pipeline.running.stage_list.STAGE_NAMES` by tests/unit/test_dags_static.py: this file cannot import it.
STAGES = ("pair", "corpus", "generate", "distill", "quantize", "evaluate", "speed", "gate", "promote")

REFUSING = ("gate", "promote")  # the stages that may refuse; from any other stage exit code 3 is a failure
LONG = ("generate", "distill")  # they keep finished parts, so a retry continues where the last try stopped
SHARED = ("generate", "evaluate")  # with `shards`, made by so many tasks at once, each a share, before the stage itself

RUN = "{{ params.run_id or run_id }}"
CONFIG = "{{ params.config }}"
OVERRIDES = "{{ ti.xcom_pull(task_ids='begin') }}"

DOC = """
### Retrains a draft model and promotes it only if it is better

`begin`, then `pair → corpus → generate → distill → quantize → evaluate → speed → gate → promote`, with `promote.by_hand` the
approval of a person, then `settle`, `verify` and `report`. Each task calls the `understudy` command; no code of the pipeline
runs in Airflow's own environment. The manual is docs/operations.md of Understudy.

A run starts on the schedule, by hand, or when the asset `understudy/drift/NAME` or `understudy/target/NAME` is updated. After a
drift it learns from the log since the change (`corpus.since`). Once its prompts are there (`started`), no other event starts
one for the cool-down.

| you see | it means |
|---|---|
| all green, `waiting` to `approve` skipped | the new draft is the champion, or the champion already *is* this draft |
| all skipped from `begin` on | an event within the cool-down of an earlier one, see the log of `begin` |
| `gate` and `promote` skipped, the run green | **refused**: not proved better. Nothing failed, nothing changed |
| only `promote` skipped | refused by `promote`, such as a draft that was rolled back: see its log |
| `approval` waits | a person decides, under *Required Actions*; after the time for it the draft stays challenger |
| `settle` red | the champion was promoted, but could not be exported or the notice was not accepted: see its last line |
| `verify` red | the engines do not serve what was examined: its last lines have the findings and what was done |
| another red task, the run red | a failure; the last line of its log names the remedy. Clear the task to continue the run |

The reasons for a refusal are in the logs of `gate` and `report`. `report` prints the figures of the run; it is a
teardown, so it runs after a failure and does not hide it.

**Parameters.** `config` and `store` are absolute paths on the *worker*; all workers must see the same store.
`overrides` are `key=value`, as for `--set`. `run_id` is the run in the store; if it is empty, the id of the DAG run is used,
so clearing a task continues the same run. `executable` is the `understudy` command of the environment that has it.

**Several nodes.** With `shards` in a pair's entry so many tasks generate completions at once, each its share (`generate_shards`,
mapped), and so many examine the drafts (`evaluate_shards`).
All workers must see the store. A target on servers is asked by one process: with `shards` the task `pair` refuses such a config.

**Servers.** `promote` already exports the champion (`promote.export`) and notifies the servers (`promote.notice`: a webhook, or a
program on the worker; in the config file only). `settle` calls `understudy champion settle`, which does what is still due: a
champion that a person approved, rolled back or moved since, or a notice that was not accepted. It does nothing twice.

A failed stage is tried twice more, after 5 and 10 minutes. `generate` and `distill` may take a day, the others 6 hours.
One run at a time; missed runs are not repeated (no catch-up).
"""


def _schedule(pair: Pair) -> Any:
    """By time and by event; with `none` by event only."""
    events = Asset(pair.asset_name("drift")) | Asset(pair.asset_name("target"))
    when = cron(pair.schedule)
    return (
        events
        if when is None
        else AssetOrTimeSchedule(timetable=CronTriggerTimetable(when, timezone="UTC"), assets=events)
    )


def _params(pair: Pair) -> dict[str, Param]:
    """Parameters of a run. Paths are absolute because a task runs in a temporary directory."""
    return {
        "config": Param(
            pair.config,
            type="string",
            pattern="^/",
            description="Config file (YAML), an absolute path on the worker.",
        ),
        "store": Param(
            pair.store,
            type="string",
            pattern="^/",
            description="Store directory, an absolute path on the worker.",
        ),
        "overrides": Param(
            [],
            type="array",
            items={"type": "string", "pattern": r"^[A-Za-z_][^=\n]*=[^\n]*$"},
            description="Changes to the config, each key=value, as for --set.",
        ),
        "run_id": Param(
            None,
            type=["null", "string"],
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._:+-]{0,120})?$",
            description="Id of the run in the store to start or to continue; empty: the id of the DAG run.",
        ),
        # Only `understudy`: a user who may start a run must not be able to start /bin/sh on the worker.
        "executable": Param(
            pair.bin,
            type="string",
            pattern="^(/.*/)?understudy$",
            description="The understudy command, by name or absolute path.",
        ),
    }


def _begin(pair: Pair) -> Any:
    """The overrides of this run, one a line: those of its parameters, and after a drift the time of the change.

    Skips the run if an event started another one within the cool-down.
    """
    started = Asset(pair.asset_name("retraining"))

    @task(inlets=[started], retries=0)
    def begin(**context: Any) -> str:
        events = [event for found in context["triggering_asset_events"].values() for event in found]
        overrides = list(context["params"]["overrides"])
        if events:
            others = [event for event in context["inlet_events"][started] if event.source_run_id != context["run_id"]]
            if until := pair.held_until(others):
                raise AirflowSkipException(
                    f"an event started a retraining before; the cool-down ends at {until:%F %R} UTC"
                )
            changes = [str(event.extra["since"]) for event in events if event.extra.get("since")]
            if changes:
                overrides.insert(0, f"corpus.since={max(changes, key=datetime.fromisoformat)}")
        return "\n".join(overrides)

    return begin().as_setup()


def _started(pair: Pair) -> Any:
    """Notes that the prompts are there: from here on a cool-down holds."""
    asset = Asset(pair.asset_name("retraining"))

    @task(outlets=[asset], retries=0)
    def started(**context: Any) -> None:
        context["outlet_events"][asset].extra = {
            "by": EVENT if context["triggering_asset_events"] else "schedule or hand"
        }

    return started()


def _call(
    pair: Pair, task_id: str, command: str, subject: str, *, script: str = CALL, limit: float = 1, **options: Any
) -> Any:
    """`limit`: hours."""
    environment = {
        "CALL_EXECUTABLE": "{{ params.executable }}",
        "CALL_STORE": "{{ params.store }}",
        "CALL_COMMAND": command,
        "CALL_SUBJECT": subject,
        **options.pop("environment", {}),
    }
    return command_task(pair, task_id, script, environment, execution_timeout=timedelta(hours=limit), **options)


def _stage(pair: Pair, stage: str) -> Any:
    return _call(
        pair,
        stage,
        f"stage {stage}",
        CONFIG,
        environment={"CALL_RUN": RUN, "CALL_OVERRIDES": OVERRIDES, **_announced_shards(pair, stage)},
        skips=EXIT_REFUSED if stage in REFUSING else None,
        limit=24 if stage in LONG else 6,
        light=False,
    )


def _announced_shards(pair: Pair, stage: str) -> dict[str, str]:
    """The first stage refuses a config whose stages cannot be made in shards, before anything is paid."""
    return {"CALL_IN_SHARDS": "1"} if pair.shards and stage == STAGES[0] else {}


def _shares(pair: Pair, stage: str) -> list[Any]:
    """Completions or examinations by several tasks at once, if the pair's entry says so; the stage then makes what is missing."""
    if not pair.shards or stage not in SHARED:
        return []
    return [
        _call(
            pair,
            f"{stage}_shards",
            f"stage {stage}",
            CONFIG,
            environment={"CALL_RUN": RUN, "CALL_OVERRIDES": OVERRIDES},
            limit=24,
            light=False,
            shares=int(pair.shards),
        )
    ]


def _approval(pair: Pair) -> list[Any]:
    """With promote.by_hand the promoted draft is only challenger: a person makes it champion."""
    return [
        _call(pair, "waiting", "show --json", RUN, script=ASK_WAITING, skips=EXIT_NO),
        ApprovalOperator(
            task_id="approval",
            subject=f"{pair.name or 'Understudy'}: make the draft of run {RUN} champion?",
            body="It passed the gate. The figures are in the log of the task `gate`, on the review page of the run "
            "(`understudy show --html`), and in MLflow.",
            response_timeout=timedelta(hours=pair.approval_hours),
            defaults=ApprovalOperator.REJECT,
        ),
        _call(pair, "approve", "champion promote", RUN),
    ]


def _dag(pair: Pair) -> None:
    with DAG(
        dag_id=pair.dag_id("draft_retraining"),
        description="Distil and examine a draft model, and promote it if it is better",
        doc_md=DOC,
        schedule=_schedule(pair),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        max_active_tasks=max(1, int(pair.shards)),  # all but the shards stand in a row
        params=_params(pair),
        default_args=pair.default_args
        | {"retries": 2, "retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 2.0},
        tags=["understudy", "speculative-decoding"],
    ):
        begin = _begin(pair)
        stages = [one for stage in STAGES for one in (*_shares(pair, stage), _stage(pair, stage))]
        stages.insert(STAGES.index("corpus") + 1, _started(pair))
        approval = _approval(pair)
        settle = _call(
            pair,
            "settle",
            "champion settle",
            CONFIG,
            environment={"CALL_OVERRIDES": OVERRIDES},
            trigger_rule="none_failed_min_one_success",
        )
        # Not repeated: it reloads and rolls back itself, and a second answer would hide the first one.
        verify = _call(pair, "verify", "champion verify", CONFIG, retries=0, limit=6)
        report = _call(pair, "report", "show", RUN, retries=0).as_teardown(setups=begin)
        chain(begin, *stages, *approval, settle, verify, report)
        stages[-1] >> settle


for _each in pairs():
    _dag(_each)
