"""docs/glossary.md has every table header and metric that is printed or stored. Names are collected from the code."""

import importlib
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

import pipeline
from pipeline.acceptance.decoding_speed import Measured
from pipeline.acceptance.figures import AcceptanceTally
from pipeline.commands.tables.decode import statistics_rows
from pipeline.examination.one_decode import SpeedComparison
from pipeline.judgement.schema import TrainingStep
from pipeline.registry.run_content import decision_points, training_points
from pipeline.review.card import card
from pipeline.speculation.batch import Completion
from pipeline.speculation.statistics import count
from tests.decisions import TRAINING, make_decision
from tests.fakes import counted
from tests.unit.review.test_card import facts

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
PIPELINE = Path(pipeline.__file__).parent

pytestmark = pytest.mark.skipif(not GLOSSARY.exists(), reason="runs in a checkout")


def unexplained(names: list[str]) -> list[str]:
    """Those of `names` that are no term of the glossary. Upper-case words in a term (DOMAIN, NAME, N) stand for anything."""
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    terms = [term.strip(" `") for row in rows for term in _with_list(row.split(" | ")[0].strip("| "))]
    patterns = [re.sub(r"DOMAIN|NAME|(?<![A-Za-z])N(?![A-Za-z])", ".+", re.escape(term)) for term in terms]
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    return [name for name in names if not known.fullmatch(name)]


def _with_list(cell: str) -> list[str]:
    """The whole cell, for headers with commas in them, and its parts."""
    return [cell, *cell.split(", ")]


def _reports_with_tables() -> list[str]:
    return [_module(path) for path in sorted(PIPELINE.rglob("*.py")) if re.search(r"\.table\(", path.read_text())]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PIPELINE).with_suffix("").parts)


def test_a_name_that_nobody_explains_is_found() -> None:
    """Patterns match whole names only."""
    assert ["acceptance_rat", "xspeedup"] == unexplained(["acceptance_rat", "xspeedup", "rules/min_gain", "speedup"])


def test_one_module_makes_tables() -> None:
    """All others print theirs with it, so that no header is missed below."""
    assert ["commands.tables.console"] == [
        _module(path) for path in PIPELINE.rglob("*.py") if "rich.table" in path.read_text()
    ]
    assert {"commands.tables.show", "commands.tables.latency_fit", "commands.profile"} <= set(_reports_with_tables())


@pytest.mark.parametrize("module", _reports_with_tables())
def test_every_table_header_is_in_the_glossary(module: str) -> None:
    """Each report that prints a table has its headers in COLUMNS."""
    columns = importlib.import_module(f"pipeline.{module}").COLUMNS
    assert [] == unexplained([re.sub(r",? γ=.*", "", column).format(tokens=6) for column in columns])


def test_every_row_of_the_statistics_is_in_the_glossary() -> None:
    """What `decode` prints, with and without the target alone."""
    completion = Completion(tokens=[1, 2], drafted=[2], accepted=[1])
    rates = Measured(1.0, 1.0, 1.0)
    compared = SpeedComparison(rates, rates, 6)
    rows = statistics_rows(count([completion]), {}, count([completion]), compared)
    assert [] == unexplained([name for name, *_ in rows])


def test_every_line_of_the_cards_tables_is_in_the_glossary() -> None:
    """Headers of its tables, and the names of facts and metrics."""
    lines = card(facts()).splitlines()
    headers = [cell.strip() for line, after in pairwise(lines) if "|---" in after for cell in line.split("|")]
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    own = {"code", "a\\", "corpus"}  # domains and an artifact of the example
    shown = [re.sub(r", gamma .*", "", name) for name in {*headers, *names} - own if name]
    assert [] == unexplained(shown)


def test_every_figure_of_a_profile_is_in_the_glossary() -> None:
    """Those of acceptance.json, and the metrics in MLflow."""
    assert [] == unexplained(list(_figures()))
    assert [] == unexplained(
        [
            name
            for name, *_ in (
                *decision_points(make_decision()),
                *training_points([TrainingStep(**row) for row in TRAINING]),
            )
        ]
    )


def _figures() -> dict[str, object]:
    tally = AcceptanceTally(2, ())
    tally.add([counted(f"p{number}", 50.0, gammas=2) for number in range(2)])
    return asdict(tally.figures(0.95))
