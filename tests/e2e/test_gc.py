"""`understudy store gc --delete`, called again and again while a run is at work."""

from tests.e2e.conftest import without_registry
from tests.integration.conftest import JOBS, SMOKE, Place, Smoke


def test_a_run_beside_gc_loses_nothing(smoke: Smoke, place: Place) -> None:
    """Nothing is registered and no run is kept, so all that protects the artifacts is that the run needs them: it finds those of
    an earlier run, trains another draft, and ends as if it were alone."""
    copied = without_registry(smoke.place, place.root / "copy")
    process = copied.start("run", SMOKE, "--set", "distill.learning_rate=0.0041", "--run", "beside")
    codes = []
    while process.poll() is None:
        if (copied.store / "runs" / "beside" / "run.json").exists():
            codes.append(copied.understudy("store", "gc", "--keep-runs", 0, "--delete").code)
    _, err = process.communicate()
    record = copied.record("beside")
    kept = {path.name for path in (copied.store / "artifacts").iterdir()}

    assert process.returncode in (0, 3), err
    assert ({0}, True) == (set(codes), len(codes) > 3)
    assert {"skipped"} == {record["jobs"][job]["state"] for job in ("pair", "corpus", "generate", "generate/before")}
    assert {copied.artifact(job, "beside").name for job in record["jobs"] if job != "promote"} <= kept
    assert "done" == record["jobs"][JOBS[4]]["state"]
