"""Old names of commands and options: refused with the new name, which exists."""

import pytest
import typer
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import UsageError


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("rollback c.yaml", "rollback is now: understudy champion rollback"),
        ("sync", "sync is now: understudy store sync"),
        ("show --run x", "--run is now an argument: understudy show RUN"),
        ("check --run=x", "--run is now an argument: understudy check RUN"),
        ("profile --batches 1", "--batches is now --batch-sizes"),
        ("profile --contexts 1", "--contexts is now --context-lengths"),
        ("profile --prompts 1", "--prompts is now --prompt-lengths"),
        ("latency predict --times x", "--times is now --costs"),
        ("latency predict --tokens 1", "--tokens is now --output-tokens"),
        ("latency predict --batch-cap 1", "--batch-cap is now --max-num-seqs"),
        ("latency predict --rate 1", "--rate is now --request-rate"),
        ("latency schedule --times x", "--times is now --costs"),
        ("latency schedule --tokens 1", "--tokens is now --output-tokens"),
        ("latency schedule --batch-cap 1", "--batch-cap is now --max-num-seqs"),
        ("latency explain --acceptance=0.8", "--acceptance is now --acceptance-rate"),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(line: str, complaint: str) -> None:
    """Whatever else the line lacks; the new name is one that the command has."""
    error = CliRunner().invoke(app, line.split()).exception

    assert (UsageError, complaint) == (type(error), str(error))
    if "understudy" not in complaint:
        assert complaint.split()[-1] in _options(line.partition(" --")[0].split())


def _options(names: list[str]) -> set[str]:
    """The options of a command."""
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts}
