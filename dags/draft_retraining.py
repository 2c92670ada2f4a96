"""The retraining loop as an Airflow 3 DAG: one task per stage, then what follows the champion, and a report at the end.

Imports Airflow and the standard library only: the heavy libraries are in another environment, behind the `understudy`
command. The only state in the DAG is the run id. Everything else is in the store, so a task that is cleared or retried reuses
what is already built.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param, chain

# Held equal to `pipeline.running.stage_list.STAGE_NAMES` by tests/unit/test_dags_static.py: this file cannot import it.
STAGES = ("pair", "corpus", "generate", "distill", "quantize", "evaluate", "gate", "promote")

EXIT_REFUSED = 3
REFUSING = ("gate", "promote")  # the stages that may refuse; from any other stage exit code 3 is a failure
LONG = ("generate", "distill")  # they keep finished parts, so a retry continues where the last try stopped

# Parameters are passed to bash as environment variables, never as command text: each value is one argument.
# With `--name=value` and `--`, a value that begins with a dash is not read as an option. With `exec`, a timeout of Airflow
# signals the command itself. The log shows which keys were set, not their values: the command refuses a secret there.
STAGE_COMMAND = """
set -e
call=("$RETRAIN_EXECUTABLE" stage "$RETRAIN_STAGE" "--run=$RETRAIN_RUN" "--store=$RETRAIN_STORE")
shown=("${call[@]}")
while IFS= read -r override; do
    if [[ -n $override ]]; then call+=("--set=$override"); shown+=("--set=${override%%=*}=..."); fi
done <<< "$RETRAIN_OVERRIDES"
printf 'calling:'; printf ' %q' "${shown[@]}" -- "$RETRAIN_CONFIG"; printf '\\n'
exec "${call[@]}" -- "$RETRAIN_CONFIG"
"""

# `promote.notice` in the config file names the webhook or program that reloads the servers. A run's parameters cannot: the
# command refuses `--set promote.notice`, because a user who may start a run must not choose what is called.
SETTLE_COMMAND = """
set -e
call=("$RETRAIN_EXECUTABLE" champion settle "--store=$RETRAIN_STORE")
shown=("${call[@]}")
while IFS= read -r override; do
    if [[ -n $override ]]; then call+=("--set=$override"); shown+=("--set=${override%%=*}=..."); fi
done <<< "$RETRAIN_OVERRIDES"
printf 'calling:'; printf ' %q' "${shown[@]}" -- "$RETRAIN_CONFIG"; printf '\\n'
exec "${call[@]}" -- "$RETRAIN_CONFIG"
"""

REPORT_COMMAND = 'exec "$RETRAIN_EXECUTABLE" show "--store=$RETRAIN_STORE" -- "$RETRAIN_RUN"'

# Airflow renders these once; the values of parameters are not rendered again.
ENVIRONMENT = {
    "RETRAIN_EXECUTABLE": "{{ params.executable }}",
    "RETRAIN_CONFIG": "{{ params.config }}",
    "RETRAIN_STORE": "{{ params.store }}",
    "RETRAIN_OVERRIDES": "{{ params.overrides | join('\\n') }}",
    "RETRAIN_RUN": "{{ params.run_id or run_id }}",
}

DOC = """
### Retrains a draft model and promotes it only if it is better

`pair → corpus → generate → distill → quantize → evaluate → gate → promote`, then `settle` and `report`.
Each task calls `understudy stage NAME`; no code of the pipeline runs in Airflow's own environment.

| you see | it means |
|---|---|
| all green | the new draft is the champion, or the champion already *is* this draft |
| `gate` and `promote` skipped, the run green | **refused**: not proved better. Nothing failed, nothing changed |
| only `promote` skipped | refused by `promote`, such as a draft that was rolled back: its log says why |
| `settle` red | the champion was promoted, but could not be exported or the servers were not told: its last line says why |
| a red task, the run red | a failure; the last line of its log says what to do. Clear the task to continue the run |

The reasons for a refusal are in the logs of `gate` and `report`. `report` always prints the figures of the run; it is a
teardown, so it runs after a failure and does not hide it.

**Parameters.** `config` and `store` are absolute paths on the *worker*; all workers must see the same store.
`overrides` are `key=value`, as for `--set`. `run_id` is the run in the store; if it is empty, the id of the DAG run is used,
so clearing a task continues the same run. `executable` is the `understudy` command of the environment that has it.

**Servers.** `promote` already exports the champion (`promote.export`) and tells the servers (`promote.notice`: a webhook, or a
program on the worker; in the config file only). `settle` calls `understudy champion settle`, which does what is still due: a
champion that a person approved, rolled back or moved since, or a notice that was not accepted. It does nothing twice.

**Defaults of scheduled runs** come from the environment of the DAG processor:

| variable | default | |
|---|---|---|
| `UNDERSTUDY_SCHEDULE` | `0 3 * * 1` | cron; `none`: only runs started by hand or through the API |
| `UNDERSTUDY_CONFIG` | `/etc/understudy/config.yaml` | |
| `UNDERSTUDY_STORE` | `/var/lib/understudy` | |
| `UNDERSTUDY_BIN` | `understudy` | searched in the worker's `PATH` unless absolute |

A failed stage is tried twice more, after 5 and 10 minutes. `generate` and `distill` may take a day, the others 6 hours.
One run at a time; missed runs are not repeated (no catch-up).
"""


def _schedule() -> str | None:
    """Cron expression of the scheduled runs; None for no schedule."""
    wanted = os.environ.get("UNDERSTUDY_SCHEDULE", "0 3 * * 1").strip()
    return None if wanted.lower() in ("", "none") else wanted


def _params() -> dict[str, Param]:
    """Parameters of a run. Paths are absolute because a task runs in a temporary directory."""
    return {
        "config": Param(
            os.environ.get("UNDERSTUDY_CONFIG", "/etc/understudy/config.yaml"),
            type="string",
            pattern="^/",
            description="Config file (YAML), an absolute path on the worker.",
        ),
        "store": Param(
            os.environ.get("UNDERSTUDY_STORE", "/var/lib/understudy"),
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
            os.environ.get("UNDERSTUDY_BIN", "understudy"),
            type="string",
            pattern="^(/.*/)?understudy$",
            description="The understudy command, by name or absolute path.",
        ),
    }


def _stage_task(stage: str) -> BashOperator:
    return BashOperator(
        task_id=stage,
        bash_command=STAGE_COMMAND,
        env=ENVIRONMENT | {"RETRAIN_STAGE": stage},
        append_env=True,
        skip_on_exit_code=EXIT_REFUSED if stage in REFUSING else None,
        execution_timeout=timedelta(hours=24 if stage in LONG else 6),
        do_xcom_push=False,
    )


def _settle_task() -> BashOperator:
    """Export, records and notice follow the champion."""
    return BashOperator(
        task_id="settle",
        bash_command=SETTLE_COMMAND,
        env=ENVIRONMENT,
        append_env=True,
        skip_on_exit_code=None,
        execution_timeout=timedelta(hours=1),
        do_xcom_push=False,
    )


def _report_task() -> BashOperator:
    """A teardown task always runs and does not change the state of the DAG run."""
    report = BashOperator(
        task_id="report",
        bash_command=REPORT_COMMAND,
        env=ENVIRONMENT,
        append_env=True,
        skip_on_exit_code=None,
        retries=0,
        execution_timeout=timedelta(minutes=10),
        do_xcom_push=False,
    )
    return report.as_teardown()


with DAG(
    dag_id="draft_retraining",
    description="Distil and examine a draft model, and promote it if it is better",
    doc_md=DOC,
    schedule=_schedule(),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    max_active_tasks=1,
    params=_params(),
    default_args={
        "owner": "understudy",
        "retries": 2,
        "retry_delay": timedelta(minutes=5),
        "retry_exponential_backoff": 2.0,
    },
    tags=["understudy", "speculative-decoding"],
):
    chain(*(_stage_task(stage) for stage in STAGES), _settle_task(), _report_task())
