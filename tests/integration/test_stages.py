"""`understudy stage`, stage by stage, as a scheduler calls it."""

from pipeline.running.stage_list import STAGE_NAMES
from tests.integration.conftest import JOBS, JOBS_WITH_CHAMPION, NOBODY, RUN, SMOKE, Place


def test_stages_one_by_one_give_the_keys_of_run(loop: Place) -> None:
    """Each stage finds its predecessors through the store and the run's id, and all keys are those of `run`."""
    expected = loop.keys(RUN)
    loop.understudy("champion", "rollback", SMOKE, "--yes")  # as before `run`: no champion
    states = []
    for name in STAGE_NAMES:
        away = (
            {} if name in ("gate", "promote") else {"MLFLOW_TRACKING_URI": NOBODY}
        )  # until then no registry is needed
        ended = loop.understudy("stage", name, SMOKE, "--run", "by-hand", "--force-promote", **away)
        assert 0 == ended.code, ended.err
        assert {name} == {job.partition("/")[0] for job in ended.states}
        states.append(loop.record("by-hand")["state"])
    assert [*["stopped"] * (len(STAGE_NAMES) - 1), "finished"] == states
    assert expected == loop.keys("by-hand")
    assert "1" == loop.champion()


def test_stage_without_its_predecessors_is_refused(place: Place) -> None:
    """A stage whose inputs are not in the store exits 2 and names the first that is missing."""
    ended = place.understudy("run", SMOKE, "--from", "distill", "--run", "early", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert (
        f"pair is not in {place.store} for this config; make it first: leave --from out, or `understudy stage pair`"
        == ended.complaint
    )


def test_a_stage_of_an_unknown_run_is_refused(place: Place) -> None:
    """Only the first stage makes a run: exit 2, and no run is left behind that would be the latest."""
    ended = place.understudy("stage", "distill", SMOKE, "--run", "early", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert f"--run early: no such run in {place.store}; the first stage, pair, creates it" == ended.complaint
    assert not (place.store / "runs").exists()


def test_run_until_then_from(loop: Place) -> None:
    """A run can stop after a stage and continue from the next one, under the same id."""
    first = loop.understudy("run", SMOKE, "--until", "generate", "--run", "parts")
    state = loop.record("parts")["state"]
    second = loop.understudy("run", SMOKE, "--from", "distill", "--run", "parts")
    assert (0, 0) == (first.code, second.code), first.err + second.err
    assert list(JOBS[:4]) == list(first.states)
    assert set(JOBS_WITH_CHAMPION[4:]) == set(second.states)
    assert ("stopped", "finished") == (state, loop.record("parts")["state"])
