"""MLflow does not answer: all artifacts up to evaluate are kept, and the run can be finished later."""

import contextlib
import sqlite3

from tests.integration.conftest import JOBS, NOBODY, RUN, SMOKE, Place


def test_gate_stops_and_the_run_is_finished_later(loop: Place) -> None:
    """The gate does not decide (exit 1, one line); with a registry the same run finishes, and `sync` has nothing to do."""
    down = loop.understudy("run", SMOKE, "--run", "down", MLFLOW_TRACKING_URI=NOBODY)
    record = loop.record("down")
    shown = loop.understudy("show", "down")
    finished = loop.understudy("run", SMOKE, "--run", "down")
    again = loop.record("down")
    assert 1 == down.code, down.err
    assert f"MLflow at {NOBODY} does not answer" in down.complaint
    assert down.complaint.endswith(
        "the champion is not known, so the gate cannot decide; all artifacts up to evaluate are kept; "
        "run again when the registry answers"
    )
    assert list(JOBS[:-2]) == list(down.states)
    assert ("failed", None, None) == (record["state"], record["decision"], record["mlflow"])
    assert 0 == shown.code
    assert "candidate, int4" in shown.out
    assert (0, "finished", "already_champion") == (finished.code, again["state"], again["decision"]["verdict"])


def test_sync_uploads_what_was_not(loop: Place) -> None:
    """`sync` uploads a run that MLflow lacks completely, and only once."""
    loop.understudy("run", SMOKE, "--run", "down", MLFLOW_TRACKING_URI=NOBODY)
    still = loop.understudy("store", "sync", "down", MLFLOW_TRACKING_URI=NOBODY)
    first = loop.understudy("store", "sync", "down")
    uploaded = _runs(loop, "down")
    second = loop.understudy("store", "sync")
    assert 1 == still.code, still.err
    assert "down was not uploaded; run `understudy store sync` again when the server answers" == still.complaint
    assert (0, 0) == (first.code, second.code), first.err + second.err
    assert f"mlflow ui --backend-store-uri sqlite:///{loop.store}/mlflow/mlflow.db  # then open" in first.out
    assert {"! failed down"} == set(uploaded)
    assert uploaded == _runs(loop, "down")
    assert loop.record("down")["mlflow"]["run_id"] == uploaded["! failed down"]
    assert {"down", RUN} == {line.partition(":")[0] for line in second.out.splitlines()}


def _runs(place: Place, run: str) -> dict[str, str]:
    """MLflow's runs of one run: name -> MLflow run id."""
    with contextlib.closing(sqlite3.connect(f"file:{place.store}/mlflow/mlflow.db?mode=ro", uri=True)) as database:
        query = (
            "SELECT runs.name, runs.run_uuid FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid "
            "WHERE tags.key = 'understudy.run' AND tags.value = ?"
        )
        found = list(database.execute(query, (run,)))
    assert len(found) == len(dict(found))
    return dict(found)
