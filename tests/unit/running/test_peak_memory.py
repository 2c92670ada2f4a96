"""The most memory that a piece of work needed."""

import subprocess
import sys

import pytest

from pipeline.running.peak_memory import peak_memory

_MEGABYTE = 1_000_000


def _held(megabytes: int) -> int:
    with peak_memory() as found:
        bytearray(b"x") * (megabytes * _MEGABYTE)
    return found["process"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's own mark cannot be forgotten")
def test_each_piece_has_its_own_peak() -> None:
    """What was given back before a piece began does not count for it, and what was within it does."""
    large, small = _held(250), _held(50)

    assert 150 * _MEGABYTE < large - small < 250 * _MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's own mark is all there is")
def test_what_its_parent_held_is_not_its_own() -> None:
    """A process is born with the highest mark of the one that started it, in what `getrusage` says."""
    ballast = bytearray(b"x") * (300 * _MEGABYTE)
    script = "from pipeline.running.peak_memory import peak_memory\nwith peak_memory() as found: pass\nprint(found['process'])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert len(ballast) == 300 * _MEGABYTE
    assert int(said) < 200 * _MEGABYTE


def test_it_is_told_of_a_piece_that_failed() -> None:
    """As far as it came; and without torch nothing is said of a GPU."""
    with pytest.raises(ValueError, match="stop"), peak_memory() as found:
        raise ValueError("stop")

    assert found["process"] > _MEGABYTE
