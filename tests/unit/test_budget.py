"""What `make test` prints about its time."""

from pathlib import Path

import pytest

from tests.benchmarks.suite import printed
from tests.budget import Seconds, summary

pytest_plugins = ("pytester",)


def test_time_is_summed_by_folder_and_listed_by_test() -> None:
    """Folders by CPU time, tests by wall time."""
    waits, computes = Seconds(20.0, 0.25), Seconds(3.0, 2.5)
    tests = {"tests/unit/a/test_a.py::test_waits": waits, "tests/unit/b/test_b.py::test_computes[1]": computes}
    assert [
        "wall time 310 s of a budget of 300 s, 10 s over",
        "CPU time 25 s: tests 3 s, collection 11 + 11 s",
        "",
        "  wall s   CPU s  folder",
        "     3.0     2.5  tests/unit/b",
        "    20.0     0.2  tests/unit/a",
        "",
        "  wall s   CPU s  slowest tests",
        "    20.0     0.2  tests/unit/a/test_a.py::test_waits",
        "     3.0     2.5  tests/unit/b/test_b.py::test_computes[1]",
    ] == summary(310.0, 300.0, [11.0, 11.0], tests)


def test_the_figure_of_the_suite_is_what_is_printed() -> None:
    """Or nothing, where tests failed or a line is missing."""
    lines = summary(310.0, 300.0, [11.0, 12.0], {"tests/unit/a.py::test_a[x - 1.0]": Seconds(20.04, 0.25)})
    text = "\n".join(("....", *lines, "2 skipped, 17 passed, 3 warnings in 310.5s (0:05:10)"))
    assert {
        "passed": 17,
        "seconds": 310.0,
        "cpu_seconds": 23.0,
        "collection_cpu_seconds": [11.0, 12.0],
        "slowest": [{"seconds": 20.0, "cpu_seconds": 0.2, "test": "tests/unit/a.py::test_a[x - 1.0]"}],
    } == printed(text)
    for damaged, said in (
        (text.replace("2 skipped", "2 failed"), "2 tests failed"),
        (text.replace("17 passed", "17 passed, 1 error"), "1 tests failed"),
        (text.replace("wall time", ""), "wall time"),
    ):
        with pytest.raises(ValueError, match=said):
            printed(damaged)


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["one process", "two workers"])
def test_every_test_is_timed_wherever_it_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """With the CPU time of processes that it started; a session over its budget passes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        test_one="""
        import subprocess, sys
        def test_starts_a_process():
            subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"], check=True)
        """,
        test_other="def test_does_nothing(): pass",
    )
    done = pytester.runpytest_subprocess("-p", "tests.budget", "--budget", "0", *workers)
    done.assert_outcomes(passed=2)
    collected = r" \+ ".join([r"\d+"] * (2 if workers else 1))
    done.stdout.re_match_lines(
        [
            r"wall time \d+ s of a budget of 0 s, \d+ s over",
            rf"CPU time \d+ s: tests \d+ s, collection {collected} s",
            r"  wall s   CPU s  folder",
            r" +\d+\.\d +(0\.[2-9]|[1-9]\d*\.\d)  test_one\.py",
            r" +\d+\.\d +\d+\.\d  test_other\.py",
            r"  wall s   CPU s  slowest tests",
            r" .*  test_one\.py::test_starts_a_process",
        ]
    )
