"""The champion in service, as Airflow 3 DAGs: `understudy watch --once` every few minutes, `understudy canary` once a day.

Imports Airflow, the standard library and its neighbour `understudy_tasks`. The state of the watch is in the store; what was
announced is read from Airflow's own asset events.
"""

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # its neighbour, where the DAG folder is not on the path
from understudy_tasks import ASK, EXIT_REFUSED, Pair, command_task, cron, pairs

DOC = """
### Watches the champion in service

`watch` reads the counters of the engines and reports whether acceptance fell. On a drift, `drift` updates the asset
`understudy/drift/NAME`, with the evidence in the event's `extra`, and `draft_retraining` starts.

| you see | it means |
|---|---|
| `watch` green, `drift` skipped | no drift, or a drift that was announced within the cool-down, see the log of `drift` |
| `drift` green | a drift was announced |
| `drift` red | acceptance is above what it should be, often a loop in the output: a retraining does not help there |
| `watch` red | nothing could be tested: see the last line of its log. The next run looks again |
"""

CANARY_DOC = """
### Asks the engines the examination prompts

`canary` checks that the engines still serve what was examined.

| you see | it means |
|---|---|
| `canary` green, `target` and `engine` skipped | all as examined, or only the traffic changed, which is for `acceptance_watch` |
| `target` green | the target was changed: the asset `understudy/target/NAME` is updated, and `draft_retraining` starts |
| `engine` red | engine or draft are not what was examined, or the engine contradicts itself: see its log. No retraining helps |
| `canary` red | an engine did not answer, or the canary is inconclusive: the last line of its log names the remedy |
"""


def _dag(pair: Pair, kind: str, schedule: str, description: str, doc: str) -> DAG:
    return DAG(
        dag_id=pair.dag_id(kind),
        description=description,
        doc_md=doc,
        schedule=cron(schedule),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args=pair.default_args,
        tags=["understudy", "speculative-decoding"],
    )


def _asked(pair: Pair, task_id: str, command: str, limit: timedelta) -> Any:
    environment = {
        "CALL_EXECUTABLE": pair.bin,
        "CALL_COMMAND": command,
        "CALL_STORE": pair.store,
        "CALL_SUBJECT": pair.config,
    }
    return command_task(pair, task_id, ASK, environment, pushes=True, retries=0, execution_timeout=limit)


def _announcing(pair: Pair, kind: str, evidence: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Any:
    """A task that updates the asset `kind`, unless it is held. `evidence`: what the event says of an answer, or None."""
    asset, started = Asset(pair.asset_name(kind)), Asset(pair.asset_name("retraining"))

    @task(task_id=kind, inlets=[asset, started], outlets=[asset], retries=0)
    def announced(result: dict[str, Any], inlet_events: Any = None, outlet_events: Any = None) -> None:
        said = evidence(result)
        if said is None:
            raise AirflowSkipException("nothing to announce")
        if until := pair.held_until(inlet_events[started], inlet_events[asset]):
            raise AirflowSkipException(f"announced before, or a retraining was started; again after {until:%F %R} UTC")
        outlet_events[asset].extra = said

    return announced


def _drift(result: dict[str, Any]) -> dict[str, Any] | None:
    """What `watch` found; None without a drift. An acceptance that is too high is an alarm, and nothing to learn from."""
    if result["code"] != EXIT_REFUSED:
        return None
    said = dict(result["said"])
    if said["drift"] == "high":
        raise AirflowFailException(said["message"])
    return said


def _target(result: dict[str, Any]) -> dict[str, Any] | None:
    """What `canary` found, where the target was changed. The store has the evidence by request."""
    said = result["said"]
    return (
        {key: value for key, value in said.items() if key != "endpoints"}
        if said["target"]["verdict"] == "changed"
        else None
    )


@task(retries=0)
def engine(result: dict[str, Any]) -> None:
    """Fails where the engine or its draft is not what was examined, or where the engine contradicts itself."""
    wrong = [one for one in (result["said"]["target"], result["said"]["draft"]) if one["verdict"] in _OF_THE_ENGINE]
    if not wrong:
        raise AirflowSkipException("as examined, or not answered")
    raise AirflowFailException("; ".join(one["why"] for one in wrong))


_OF_THE_ENGINE = ("not_as_examined", "contradictory")
_WATCH = "watch --once --json --for-retraining"  # refuses a config whose retraining could not learn from a drift

for _pair in pairs():
    with _dag(_pair, "acceptance_watch", _pair.watch_schedule, "Did the acceptance of the champion fall?", DOC):
        _announcing(_pair, "drift", _drift)(_asked(_pair, "watch", _WATCH, timedelta(minutes=15)).output)
    with _dag(_pair, "acceptance_canary", _pair.canary_schedule, "Do the engines serve what was examined?", CANARY_DOC):
        _answers = _asked(_pair, "canary", "canary --json", timedelta(hours=2)).output
        _announcing(_pair, "target", _target)(_answers)
        engine(_answers)
