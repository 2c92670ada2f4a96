"""The breaks of `make mutants` fit the code as it is; whether tests notice them takes minutes (`make mutants`)."""

import ast
from pathlib import Path

import pytest

from tests.mutants import BREAKS, Break, broken

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout")


def test_every_break_finds_its_function_and_its_tests() -> None:
    """A function that was renamed, or a file of tests that was moved, is changed in the list too."""
    for one in BREAKS:
        path, source = broken(one, ROOT)
        assert ast.unparse(ast.parse(path.read_text(encoding="utf-8"))) != source
        assert (ROOT / one.tests[0]).is_file()


def test_an_expression_is_found_whatever_stands_for_its_parts(tmp_path: Path) -> None:
    """In the function that is named, in all places, and the parts are kept; a name that occurs twice is the same part."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/a.py").write_text(
        "class C:\n    def f(x):\n        return min(x + 1, 0.0), min(x, 1.0)\ndef f(x):\n    return min(x, 0.0)\n"
    )
    path, source = broken(Break("", "C.f", "min(A, 0.0)", "abs(A)", ()), tmp_path)
    assert path == tmp_path / "pipeline/a.py"
    assert "return (abs(x + 1), min(x, 1.0))" in source
    assert "return min(x, 0.0)" in source
    with pytest.raises(LookupError, match="0 functions g"):
        broken(Break("", "g", "A", "A", ()), tmp_path)
    with pytest.raises(LookupError, match=r"0 functions f have the expression A \+ A"):
        broken(Break("", "f", "A + A", "A", ()), tmp_path)
