"""What launchers say of a process, and how many processes train a draft."""

from typing import Any

import pytest

from pipeline.config.distill import DistillConfig
from pipeline.distillation.launchers import Launch, current, process_count, take_launch
from pipeline.errors import UsageError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "1234",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "ACCELERATE_MIXED_PRECISION": "fp16",
    "ACCELERATE_USE_FSDP": "true",
    "HOME": "/home/a",
}
SRUN = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "node[07-09,12].cluster",
    "SLURM_JOB_ID": "40001",
    "SLURM_STEP_ID": "0",
}
LAUNCH = Launch(rank=0, size=4, local_rank=0, address="node1", port=1, agent=False, attempt="0")


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    take_launch({})


def test_torchrun_is_seen_and_taken_out_of_the_environment() -> None:
    """accelerate would otherwise join the other processes in every stage, and train as `accelerate launch` was told."""
    environment = dict(TORCHRUN)
    found = take_launch(environment)

    assert Launch(rank=3, size=4, local_rank=1, address="node1", port=1234, agent=True, attempt="2") == found
    assert {"HOME": "/home/a"} == environment
    assert found == current()


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node[07-09,12].cluster", "node07.cluster"),
        ("r[1-2]n[3,5],q7", "r1n3"),
        ("a,b", "a"),
        ("n[3,5],m1", "n3"),
        ("one", "one"),
        ("", "127.0.0.1"),
    ],
)
def test_srun_meets_at_its_first_machine(nodes: str, host: str) -> None:
    found = take_launch(SRUN | {"SLURM_STEP_NODELIST": nodes})

    assert Launch(rank=0, size=4, local_rank=0, address=host, port=29008, agent=False, attempt="40001.0") == found


def test_steps_of_one_job_do_not_meet() -> None:
    """Two at once on one machine; all processes of a step meet, whatever else Slurm says of them."""
    steps = (("1", "0"), ("1", "3"), ("2", "0"))
    launches = [take_launch(SRUN | {"SLURM_STEP_ID": step, "SLURM_PROCID": rank}) for step, rank in steps]
    met = [(found.port, found.attempt) for found in launches if found is not None]

    assert met[0] == met[1]
    assert met[0][0] != met[2][0]
    assert met[0][1] != met[2][1]
    within = TORCHRUN | SRUN  # started by a step for each machine
    assert take_launch(within | {"SLURM_STEP_ID": "1"}) == take_launch(within | {"SLURM_STEP_ID": "2"})


def test_a_batch_script_without_srun_is_one_process() -> None:
    """Slurm then says how many tasks the job may start, and that this is the first."""
    assert take_launch({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "9"}) is None


@pytest.mark.parametrize("names", [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")])
def test_mpirun_is_a_launcher(names: tuple[str, str]) -> None:
    found = take_launch({names[0]: "1", names[1]: "2", "MASTER_ADDR": "here"})

    assert found is not None
    assert (1, 2, "here") == (found.rank, found.size, found.address)


def test_a_launcher_of_one_process_is_none() -> None:
    """Its variables would still make accelerate look for others."""
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}

    assert take_launch(environment) is None
    assert {} == environment


def test_accelerate_that_started_one_of_several_is_noticed() -> None:
    """Without GPUs it sets an address for several processes and starts one."""
    with pytest.raises(UsageError, match="asked for several processes and has started one"):
        take_launch({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert take_launch({"ACCELERATE_MIXED_PRECISION": "no"}) is None


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 and WORLD_SIZE=4: no process of a launcher"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK=x: not a number"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 without RANK: no launcher has started this process; unset WORLD_SIZE"),
    ],
)
def test_a_launcher_that_contradicts_itself_is_refused(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        take_launch(environment)


@pytest.mark.parametrize(
    ("asked", "gpus", "launch", "expected"),
    [
        ("auto", 0, None, 1),
        ("auto", 8, None, 6),
        ("auto", 2, None, 2),
        (3, 8, None, 3),
        (3, 3, None, 3),
        (3, 0, None, 3),
        ("auto", 1, LAUNCH, 4),
        (4, 1, LAUNCH, 4),
    ],
)
def test_the_number_of_processes(asked: Any, gpus: int, launch: Launch | None, expected: int) -> None:
    """Of GPUs as many as divide a batch of 12; a launcher has decided already."""
    assert expected == process_count(asked, 12, gpus, launch)


def test_more_processes_than_gpus_are_refused() -> None:
    """NCCL would say it after all of them have loaded the draft."""
    with pytest.raises(
        UsageError, match=r"distill\.processes is 3, and the training may use 2 GPUs, one for each process; set it"
    ):
        process_count(3, 12, 2, None)


def test_a_target_over_several_devices_scores_for_one_process() -> None:
    """Other processes would hold whole targets on one device each."""
    assert [1, 1] == [process_count(asked, 12, 4, None, alone=True) for asked in ("auto", 1)]
    for asked, launch in ((4, None), ("auto", LAUNCH)):
        with pytest.raises(
            UsageError, match=r"pair\.target\.device_map places one .* set distill\.processes to 1 and start no"
        ):
            process_count(asked, 12, 4, launch, alone=True)  # type: ignore[arg-type]


def test_a_launcher_that_does_not_fit_is_refused() -> None:
    """With the numbers that do."""
    with pytest.raises(
        UsageError, match=r"distill\.processes is 2, and the launcher has started 4 processes; set it to auto"
    ):
        process_count(2, 12, 1, LAUNCH)
    with pytest.raises(UsageError, match=r"started 4 processes, and a batch of 6 rows .* only among 1, 2, 3, 6$"):
        process_count("auto", 6, 1, LAUNCH)


@pytest.mark.parametrize("processes", [3, 0, -1, 32])
def test_a_batch_that_cannot_be_divided_is_a_wrong_config(processes: int) -> None:
    with pytest.raises(ValueError, match=rf"cannot be divided among {processes} processes, only among 1, 2, 4, 8, 16"):
        DistillConfig(batch=16, processes=processes)
