"""`understudy store gc` on the smoke store: nothing goes that its registered draft needs."""

import json
import shutil
from pathlib import Path

from pipeline.running.retention import needs_of
from pipeline.store.artifacts import Store
from pipeline.store.runs import require_run
from tests.integration.conftest import JOBS, JOBS_WITH_CHAMPION, NOBODY, RUN, SMOKE, Place, Smoke


def _add_artifact(place: Place) -> Path:
    """A draft that no run knows any more."""
    source = place.artifact("distill")
    copied = source.with_name("distill-forgotten")
    shutil.copytree(source, copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(
        json.dumps(manifest | {"key": "forgotten", "provides": {"draft": "forgotten", "shared": "forgotten"}})
    )
    return copied


def test_only_what_no_draft_needs_is_deleted(loop: Place) -> None:
    """By default nothing is changed. With --delete the forgotten artifact goes, and a repeated run finds all the others; without
    an answer of MLflow, or with a wrong file, nothing goes."""
    forgotten, before = _add_artifact(loop), loop.committed()
    dry = loop.understudy("store", "gc", "--keep-runs", 0, COLUMNS="100")
    down = loop.understudy("store", "gc", "--delete", MLFLOW_TRACKING_URI=NOBODY)
    wrong = loop.understudy("store", "gc", "--delete", "--baseline", loop.root / "nowhere.json")
    after = loop.committed()
    deleted = loop.understudy("store", "gc", "--keep-runs", 0, "--delete")
    again = loop.understudy("run", SMOKE, "--run", "again")

    assert (0, before) == (dry.code, after), dry.err
    assert "1 directory," in dry.out
    assert "can be deleted; nothing was changed, add --delete to do so" in " ".join(dry.out.split())
    assert (1, True) == (down.code, f"MLflow at {NOBODY} does not answer" in down.complaint)
    assert (2, f"{loop.root}/nowhere.json: No such file or directory") == (wrong.code, wrong.complaint)
    assert (0, False) == (deleted.code, forgotten.exists()), deleted.err
    assert "deleted 1 directory," in deleted.out
    assert set(before) - {forgotten.name} == set(loop.committed()) & set(before)
    found = {again.states[job] for job in JOBS_WITH_CHAMPION if job not in ("gate", "promote")}
    assert (0, {"skipped"}) == (again.code, found), again.err


def test_a_run_that_has_just_begun_needs_what_it_will_find(smoke: Smoke) -> None:
    """Its record names no artifact yet: the keys follow from its config and its inputs."""
    record = require_run(Store(smoke.place.store), RUN)
    recorded = {smoke.place.artifact(job).name for job in JOBS}
    record.jobs.clear()
    needs = needs_of(Store(smoke.place.store), record)

    assert (recorded, frozenset()) == (set(needs.artifacts), needs.unknown)
