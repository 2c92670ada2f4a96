"""The summary of a run as text."""

import shlex

import pytest

from pipeline.report.show import print_summary
from tests.decisions import make_summary


def test_printed_commands_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Names with spaces and other characters of the shell are quoted."""
    directories = {"target": "/my models/it's", "draft": "org/name@main", "completions": "/a/$b"}
    print_summary(make_summary(directories=directories, examination="/a b/(c)"))
    printed = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if "understudy " in line]
    options = [word for name, value in directories.items() for word in (f"--{name}", value)]

    assert ["understudy", "probe", *options] == shlex.split(printed[0])
    assert ["--acceptance", "/a b/(c)"] == shlex.split(printed[1])[-2:]
