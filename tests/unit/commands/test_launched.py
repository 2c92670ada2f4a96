"""Which processes of a launcher run a command."""

import os
from types import SimpleNamespace

import pytest

from pipeline import cli
from pipeline.commands.launched import in_first_alone, led_by_first
from pipeline.distillation.launchers import current, take_launch

SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "nowhere.invalid"}


@pytest.fixture
def ran() -> list[str]:
    return []


def test_without_a_launcher_a_command_runs_as_it_is(ran: list[str]) -> None:
    @led_by_first
    def command(name: str) -> None:
        """What it does."""
        ran.append(name)

    command(name="run")
    assert (["run"], "What it does.", None) == (ran, command.__doc__, current())


def test_shares_of_shards_are_each_made_alone(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where srun starts them all at once: none waits for another."""
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)

    @led_by_first
    def command(shards: str | None) -> None:
        ran.append(shards or "")

    try:
        command(shards="2/3")
        assert (["2/3"], None) == (ran, current())
    finally:
        take_launch({})


COMMANDS = {
    f"{getattr(group, 'name', '')} {command.callback.__name__}".strip(): command.callback
    for group in (cli.app, *cli.app.registered_groups)
    for command in getattr(group, "typer_instance", group).registered_commands
    if command.callback is not None
}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"run", "stage"}))
def test_every_other_command_is_run_by_the_first_process_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others end before they miss its arguments. What it starts itself sees no launcher."""
    for key, value in SRUN.items():
        monkeypatch.setenv(key, value)
    try:
        COMMANDS[name]()
        assert set(SRUN) & set(os.environ) == {"SLURM_STEP_NODELIST"}
    finally:
        take_launch({})


def test_the_first_process_says_that_it_works_alone(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in (SRUN | {"SLURM_PROCID": "0"}).items():
        monkeypatch.setenv(key, value)

    @in_first_alone
    def command(name: str) -> None:
        ran.append(name)

    try:
        command(name="gate")
    finally:
        take_launch({})
    assert ["gate"] == ran
    assert capsys.readouterr().err.startswith("warning: the launcher has started 3 processes, and only `run` and")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_command_that_trains_is_run_by_the_first_process(
    rank: int, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others take part in its trainings until it ends, and run nothing themselves."""
    for key, value in (SRUN | {"SLURM_PROCID": str(rank)}).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("pipeline.distillation.workers.serve", lambda control: ran.append("serve"))  # imports Control
    monkeypatch.setattr(
        "pipeline.distillation.processes.Control", lambda launch: SimpleNamespace(end=lambda: ran.append("end"))
    )

    @led_by_first
    def command(name: str) -> None:
        ran.append(name)

    try:
        command(name="run")
    finally:
        take_launch({})
    assert [["run", "end"], ["serve"]][rank] == ran
