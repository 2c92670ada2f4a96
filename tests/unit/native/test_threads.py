"""Thread settings that are made before torch is imported."""

import subprocess
import sys

import pytest

from pipeline.native.threads import SPIN_COUNT, limit_spinning


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
