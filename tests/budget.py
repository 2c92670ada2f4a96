"""A pytest plugin that prints, at the end of a session, where its time went: `pytest -p tests.budget --budget SECONDS`.

It never fails on seconds. Wall time depends on what else runs, so CPU time is shown beside it: user and system time of the test
process and of its finished children. A process that outlives its test is not counted.
"""

import os
import time
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

_PROPERTY = "seconds"  # of a report: (wall, CPU)
_COLLECTION = "collection_cpu_seconds"  # of a worker, when it has ended
_FOLDERS, _TESTS = 12, 10  # rows printed


class Seconds(NamedTuple):
    """Wall time and CPU time."""

    wall: float = 0.0
    cpu: float = 0.0


def _add(left: Seconds, right: Seconds) -> Seconds:
    return Seconds(left.wall + right.wall, left.cpu + right.cpu)


def _now() -> Seconds:
    used = os.times()
    return Seconds(time.perf_counter(), used.user + used.system + used.children_user + used.children_system)


class Budget:
    """What each process measures, and what the one that reports has been told."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = self.last = _now()
        self.collection: list[float] = []  # CPU seconds, of each process that collected
        self.tests: dict[str, Seconds] = defaultdict(Seconds)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Any:
        found = yield
        self.last = _now()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_COLLECTION] = self.last.cpu
        elif session.items:
            self.collection.append(self.last.cpu)
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """Set-up, call and tear-down each have a report; what happens between two of them belongs to the later one."""
        report = yield
        now = _now()
        report.user_properties.append((_PROPERTY, (now.wall - self.last.wall, now.cpu - self.last.cpu)))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY and isinstance(value, tuple | list):
                self.tests[report.nodeid] = _add(self.tests[report.nodeid], Seconds(*value))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.collection.append(getattr(node, "workeroutput", {}).get(_COLLECTION, 0.0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("time")
        for line in summary(_now().wall - self.began.wall, self.seconds, self.collection, self.tests):
            terminalreporter.write_line(line)


def summary(wall: float, budget: float, collection: list[float], tests: dict[str, Seconds]) -> list[str]:
    """The lines printed: wall time against the budget, CPU time by folder of tests, and the slowest tests."""
    cpu = sum(one.cpu for one in tests.values())
    collected = " + ".join(f"{one:.0f}" for one in collection)
    over = f", {wall - budget:.0f} s over" if wall > budget else ""
    lines = [
        f"wall time {wall:.0f} s of a budget of {budget:.0f} s{over}",
        f"CPU time {cpu + sum(collection):.0f} s: tests {cpu:.0f} s, collection {collected} s",
        "",
        "  wall s   CPU s  folder",
    ]
    folders: dict[str, Seconds] = defaultdict(Seconds)
    for name, one in tests.items():
        folders[_folder(name)] = _add(folders[_folder(name)], one)
    lines += _rows(folders, _FOLDERS, by_cpu=True)
    lines += ["", "  wall s   CPU s  slowest tests"]
    return lines + _rows(tests, _TESTS, by_cpu=False)


def _folder(test: str) -> str:
    """Of `tests/unit/generation/test_served.py::test_x`: `tests/unit/generation`. A file of `tests/unit` itself counts alone."""
    path = test.split("::")[0].split("/")
    return "/".join(path[:3])


def _rows(seconds: dict[str, Seconds], count: int, *, by_cpu: bool) -> list[str]:
    ordered = sorted(seconds.items(), key=lambda item: item[1].cpu if by_cpu else item[1].wall, reverse=True)
    return [f"{one.wall:8.1f}{one.cpu:8.1f}  {name}" for name, one in ordered[:count]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", type=float, metavar="SECONDS", help="print where the time went, against this wall time"
    )


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("--budget")
    if seconds is not None:
        config.pluginmanager.register(Budget(seconds), "understudy budget")
