"""OpenMP threads: how they wait, and how many a pass of compiled code uses."""

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from pipeline.native.threads import SPIN_COUNT, ThreadChoice, limit_spinning


def test_waiting_threads_sleep_soon() -> None:
    """Without settings of the user's own, the spin count is limited."""
    environment: dict[str, str] = {}
    limit_spinning(environment)

    assert {"GOMP_SPINCOUNT": str(SPIN_COUNT)} == environment


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_settings_of_the_user_win(own: dict[str, str]) -> None:
    """Somebody who says how threads wait gets what they asked for."""
    environment = dict(own)
    limit_spinning(environment)

    assert own == environment


def test_the_command_sets_it_before_torch_is_imported() -> None:
    """OpenMP reads its settings once, when torch is imported: `main` must have set them by then."""
    code = (
        "import os, sys\nfrom pipeline import cli\nassert 'torch' not in sys.modules\nsys.argv = ['understudy', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\nprint(os.environ['GOMP_SPINCOUNT'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert str(SPIN_COUNT) == found.stdout.splitlines()[-1]


QUIET_ALL, QUIET_ONE, BUSY_ALL = 0.145, 0.24, 1.6  # milliseconds of a pass


def seconds_of(passes: int, time_of: Callable[[int, int], float], most: int = 2) -> float:
    """The sum over `passes` of the time of pass `number` with `threads`, as the choice goes."""
    choice, total = ThreadChoice(most), 0.0
    for number in range(passes):
        threads = choice.threads()
        seconds = time_of(number, threads)
        choice.record(seconds)
        total += seconds
    return total


def quiet(number: int, threads: int) -> float:
    return QUIET_ALL if threads > 1 else QUIET_ONE


def busy(number: int, threads: int) -> float:
    return BUSY_ALL if threads > 1 else QUIET_ONE


def test_a_quiet_machine_uses_all_threads() -> None:
    """Over 10,000 passes at most half a percent is lost."""
    assert seconds_of(10_000, quiet) < 1.005 * 10_000 * QUIET_ALL


def test_a_short_decode_pays_for_no_trial() -> None:
    """The first 32 passes use all threads."""
    assert seconds_of(32, quiet) == pytest.approx(32 * QUIET_ALL)


def test_a_busy_machine_uses_one_thread() -> None:
    """Over 3,000 passes at most a third above one thread, and never twice."""
    assert seconds_of(3_000, busy) < 1.34 * 3_000 * QUIET_ONE


def test_the_choice_follows_the_machine() -> None:
    """Quiet, busy and quiet again, 3,000 passes each: each third is near the better of the two."""
    times: list[list[float]] = [[], [], []]

    def time_of(number: int, threads: int) -> float:
        third = number // 3_000
        seconds = (quiet, busy, quiet)[third](number, threads)
        times[third].append(seconds)
        return seconds

    seconds_of(9_000, time_of)

    assert sum(times[0]) < 1.02 * 3_000 * QUIET_ALL
    assert sum(times[1]) < 1.34 * 3_000 * QUIET_ONE
    assert sum(times[2]) < 1.25 * 3_000 * QUIET_ALL


def test_a_machine_that_was_busy_for_long_is_followed_soon() -> None:
    """Trials that change nothing become rarer, but one is made every 1,024 passes: quiet after 40,000 passes beside another
    process."""
    times: list[float] = []

    def time_of(number: int, threads: int) -> float:
        times.append(busy(number, threads) if number < 40_000 else quiet(number, threads))
        return times[-1]

    seconds_of(43_000, time_of)

    assert sum(times[40_000:]) < 1.25 * 3_000 * QUIET_ALL


def test_rare_stalls_do_not_cost_a_quiet_machine_its_threads() -> None:
    """One pass in 500 is held up for 4 ms whatever the threads: at most 5% more than with all threads throughout."""
    numbers = random.Random(1)
    stalled = {number for number in range(20_000) if numbers.random() < 1 / 500}

    def time_of(number: int, threads: int) -> float:
        return quiet(number, threads) + (4.0 if number in stalled else 0.0)

    assert seconds_of(20_000, time_of) < 1.05 * sum(time_of(number, 2) for number in range(20_000))


def test_many_cores_pay_little_for_a_trial() -> None:
    """16 threads that are 12 times as fast as one: over 20,000 passes at most 1% is lost."""
    assert seconds_of(20_000, lambda number, threads: 1.0 if threads == 16 else 12.0, most=16) < 1.01 * 20_000


def test_a_longer_context_is_no_reason_to_leave_all_threads() -> None:
    """Passes that become three times as long over 20,000, with one thread as with all: at most 2% is lost."""

    def time_of(number: int, threads: int) -> float:
        return quiet(number, threads) * (1 + number / 10_000)

    assert seconds_of(20_000, time_of) < 1.02 * sum(time_of(number, 2) for number in range(20_000))
