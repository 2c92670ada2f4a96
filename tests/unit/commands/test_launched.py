"""Which processes of a launcher run a command."""

import pytest

from pipeline.commands.launched import led_by_first
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
