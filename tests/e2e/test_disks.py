"""A disk that fills up at one stage or another, and stores that cannot be written to. Needs the right to mount."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import RUN, SMOKE, Place, Smoke

Mount = Callable[..., None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """`mount ... DIRECTORY`, undone afterwards; skips where it is not permitted."""
    mounted: list[Path] = []

    def call(directory: Path, *arguments: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        line = ["mount", *map(str, arguments), str(directory)]
        try:
            ended = subprocess.run(line, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"mount cannot be run here: {error}")
        if ended.returncode:
            if mounted:
                pytest.fail(f"{line}: {ended.stderr}")
            pytest.skip(f"mounting is not permitted here: {ended.stderr.strip()}")
        if "remount" not in " ".join(line):
            mounted.append(directory)

    yield call
    for directory in mounted:
        subprocess.run(["umount", str(directory)], check=True)


def test_disk_that_fills_up(smoke: Smoke, place: Place, mount: Mount) -> None:
    """At seven sizes, each too small, the run ends with exit 1 and says so in one line; on a large disk it finishes
    with the bytes of an undisturbed run, and what had been committed was kept."""
    mount(place.store, "-t", "tmpfs", "-o", "size=400k", "understudy-test")
    reached = []
    for kilobytes in (400, 2_000, 5_000, 7_000, 8_500, 11_500, 12_200):
        mount(place.store, "-o", f"remount,size={kilobytes}k")
        ended = place.process("run", SMOKE)
        committed = place.committed()
        assert 1 == ended.code, (kilobytes, ended.err)
        assert "no space left on the disk; free some space and run again" in ended.complaint, kilobytes
        reached.append(len(committed))
    mount(place.store, "-o", "remount,size=200m")
    ended = place.process("run", SMOKE, "--run", "last")
    assert 0 == ended.code, ended.err
    assert smoke.place.contents() == place.contents()
    assert committed == {name: seen for name, seen in place.committed().items() if name in committed}
    assert "1" == place.champion()
    assert sorted(reached) == reached
    assert len(set(reached)) >= 4, f"the sizes hit too few different stages: {reached}"


def test_read_only_store(loop: Place, mount: Mount) -> None:
    """A store on a read-only file system: what only reads works, the rest ends with exit 1 and one line."""
    mount(loop.store, "--bind", loop.store)
    mount(loop.store, "-o", "remount,ro,bind")
    shown = loop.process("show", RUN)
    assert (0, "") == (shown.code, shown.err)
    for arguments in (
        ("run", SMOKE),
        ("run", SMOKE, "--run", RUN),
        ("champion", "rollback", SMOKE),
        ("store", "sync", RUN),
    ):
        ended = loop.process(*arguments)
        assert (1, True) == (ended.code, "read-only" in ended.err.lower()), (arguments, ended.err)
        assert ended.complaint


def test_fresh_store_on_a_read_only_disk(place: Place, mount: Mount) -> None:
    """A store that cannot be created: exit 1 and one line that names a remedy."""
    mount(place.store, "-t", "tmpfs", "-o", "ro", "understudy-test")
    ended = place.process("run", SMOKE)
    assert 1 == ended.code, ended.err
    assert "the file system is read-only; choose a writable --store" in ended.complaint
