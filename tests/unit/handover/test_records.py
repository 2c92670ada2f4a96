"""What runs' records say of their drafts, and what is derived from them."""

import errno
from pathlib import Path
from typing import Any

import pytest

from pipeline.handover import records
from pipeline.handover.records import update_records
from pipeline.registry.aliases import Entry
from pipeline.registry.tracking import PAGE
from pipeline.store.artifacts import Store
from pipeline.store.runs import JobEntry, RunRecord, load_run, run_directory

ROLLED_BACK = Entry(versions={"1": {"understudy.run": "r", "understudy.rolled_back_at": "2026-11-27T00:00:00Z"}})


class Killed(BaseException):
    """The process has died."""


class Uploads:
    """A tracker that remembers the page and the notes which it was given last."""

    def __init__(self, store: Store) -> None:
        self.store, self.seen = store, ("", "")

    def sync(self, record: RunRecord) -> bool:
        page = run_directory(self.store, record.id) / PAGE
        self.seen = (page.read_text(), str(record.promotion["result"]))
        return True


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_what_a_kill_has_left_is_derived_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Killed before or after each of three steps: page, upload and record. Then page, MLflow and record all say what became of
    the draft, and the page was at no time half a page."""
    store = Store(tmp_path)
    entry = JobEntry(stage="promote", key="k", figures={}, notes={"version": "1", "result": "promoted"})
    record = RunRecord(id="r", name="n", created="2026-11-26T00:00:00Z", config={}, outside={}, jobs={"promote": entry})
    record.save(store)
    page = run_directory(store, "r") / PAGE
    page.write_text("promoted")
    monkeypatch.setattr(records, "run_page", lambda _, one: str(one.promotion["result"]))
    uploads: Any = Uploads(store)
    steps = 0

    def dying(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal steps
            steps += 2
            if steps - 1 == at:
                raise Killed
            found = function(*arguments)
            if steps == at:
                raise Killed
            return found

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((records, "_write_page"), (uploads, "sync"), (RunRecord, "save")):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        with pytest.raises(Killed):
            update_records(ROLLED_BACK, None, store, uploads)
    assert page.read_text() in ("promoted", said := "rolled back at 2026-11-27T00:00:00Z")

    update_records(ROLLED_BACK, None, store, uploads)

    again = load_run(store, "r")
    assert again is not None
    assert (said, (said, said), said) == (page.read_text(), uploads.seen, again.promotion["result"])


def test_a_page_that_cannot_be_written_whole_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, or a kill, within the page leaves the old one, and the record as it was."""
    store = Store(tmp_path)
    entry = JobEntry(stage="promote", key="k", figures={}, notes={"version": "1", "result": "promoted"})
    record = RunRecord(id="r", name="n", created="2026-11-26T00:00:00Z", config={}, outside={}, jobs={"promote": entry})
    record.save(store)
    page = run_directory(store, "r") / PAGE
    page.write_text("promoted")
    monkeypatch.setattr(records, "run_page", lambda *_: "rolled back")

    def half(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space"):
            update_records(ROLLED_BACK, None, store, Uploads(store))  # type: ignore[arg-type]

    again = load_run(store, "r")
    assert again is not None
    assert ("promoted", "promoted") == (page.read_text(), again.promotion["result"])
