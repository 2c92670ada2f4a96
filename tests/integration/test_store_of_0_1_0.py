"""A store whose champion was promoted and exported by 0.1.0: it is watched and rolled back, and its export says what to do.

`tests/fixtures/store_0_1_0` is what 0.1.0 wrote in a smoke run: the record of the run, what was told of the champion, and the
expected counters of its export for vLLM.
"""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.commands.tables.runs import list_lines
from pipeline.errors import UnderstudyError
from pipeline.export.plan import plan_export
from pipeline.handover.settled import SETTLED
from pipeline.registry.named import version_draft
from pipeline.store.runs import list_runs, require_run
from pipeline.watch.prediction import served
from tests.integration.test_handover import Site, site_of
from tests.registry_in_memory import memory_store, store_of

__all__ = ["memory_store"]

WRITTEN = Path(__file__).parents[1] / "fixtures" / "store_0_1_0"
RUN = "20261126-124219-smoke-9690"


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Two versions, of which 0.1.0 has settled the first and was killed before it settled the second."""
    found = site_of(store_of(request), tmp_path)
    (found.store.runs / RUN).mkdir(parents=True)
    shutil.copy(WRITTEN / "run.json", found.store.runs / RUN)
    for name in ("a", "b"):
        found.promote(name, run_id=RUN)
    for version in ("1", "2"):
        exported = found.out / f"version-{version}" / "expected.json"
        digest = json.loads(exported.read_text())["draft"]["digest"]
        expected = json.loads((WRITTEN / "expected.json").read_text())
        exported.write_text(json.dumps(expected | {"draft": expected["draft"] | {"digest": digest}}))
    SETTLED.path(found.store, "reference-draft").parent.mkdir()
    shutil.copy(WRITTEN / "handover.json", SETTLED.path(found.store, "reference-draft"))
    return found


def test_its_runs_are_listed(site: Site) -> None:
    """The schema of a record is the same."""
    assert [RUN] == list_runs(site.store)
    assert "finished" == require_run(site.store, RUN).state


def test_its_runs_have_a_line_with_what_can_be_read(site: Site) -> None:
    """Verdict and gain of its decision, although the speed in it has another form."""
    (line,) = list_lines(site.store)
    assert (RUN, "smoke", "of version 0.1.0", "") == (line.run, line.config, line.state, line.problem)
    assert line.verdict.startswith("promoted as version 1")
    assert line.gain is not None
    assert 0.2445 == round(line.gain.value, 4)


def test_its_champion_is_rolled_back(site: Site) -> None:
    """After what was left is settled; link, notices and record follow."""
    site.settle()
    assert ("version-2", [2]) == (site.link, [one["change"] for one in site.notices])
    site.roll_back()
    assert ("version-1", "1") == (site.link, site.aliases["champion"])
    settled = SETTLED.find(site.store, "reference-draft")
    assert settled is not None
    assert 3 == settled.change


def test_its_champion_is_watched(site: Site) -> None:
    """By the expected counters of its export, which have no design effect."""
    site.settle()
    predicted = served(site.config).predicted
    assert predicted is not None
    assert (5, None) == (predicted.gamma, predicted.design_effect)
    assert 0 < predicted.first < 1


def test_its_champion_is_not_exported_again(site: Site, tmp_path: Path) -> None:
    """The examination is of another schema: one line says how to get one that is exported."""
    champion = site.registry.champion()
    assert champion is not None
    with pytest.raises(UnderstudyError, match=rf"^run {RUN}: the decision has schema 9, .*; run the config again$"):
        plan_export(version_draft(site.store, site.registry, champion), "vllm", tmp_path / "out")
