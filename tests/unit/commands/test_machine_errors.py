"""What a full or limited machine raises, in one line that says what to do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.commands.machine_errors import explain

_WRITE = """
import resource, sys
from pathlib import Path
from pipeline.commands.machine_errors import explain
from pipeline.store.files import write_json
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2)
path = Path(sys.argv[3])
try:
    write_json(path, {"old": 1})
    write_json(path, {"new": "x" * int(sys.argv[4])})
except BaseException as error:
    print(explain(error))
print(path.read_text())
"""


def _os_error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_os_error(errno.ENOSPC, "/s/a"), "/s/a: no space left on the disk"),
        (_os_error(errno.EFBIG), "the store: a file is larger than this process or the file system allows"),
        (_os_error(errno.EIO), "the store: the disk or its server fails"),
        (_os_error(errno.ESTALE), "the store: the disk or its server fails"),
        (_os_error(errno.EDQUOT, "/s/a"), "/s/a: the disk quota is used up"),
        (_os_error(errno.EMFILE), "too many open files (ulimit -n); raise the limit and run again"),
        (_os_error(errno.ENOMEM), "not enough memory"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "not enough memory"),
        (Exception('SafetensorError: I/O error: File too large (os error 27)'), "the store: a file is larger"),
        (Exception("(sqlite3.OperationalError) attempt to write a readonly database"), "the store: the file system is read-only"),
    ],
)  # fmt: skip
def test_each_is_one_line(error: BaseException, said: str) -> None:
    """Also as the cause of another error, or where another one followed it."""
    outer, later = RuntimeError("failed"), RuntimeError("failed")
    outer.__cause__, later.__context__ = error, error
    for one in (error, outer, later):
        found = explain(one)
        assert found is not None
        assert (True, False) == (found.startswith(said), "\n" in found)


def test_other_errors_keep_their_traceback() -> None:
    """A defect is not the machine's fault."""
    assert explain(ZeroDivisionError("division by zero")) is None
    assert explain(_os_error(errno.ENOENT, "/a")) is None


@pytest.mark.parametrize(
    ("limit", "value", "written", "said"),
    [
        ("RLIMIT_FSIZE", 10_000, 100_000, "a file is larger"),
        ("RLIMIT_AS", 200_000_000, 100_000_000, "not enough memory"),
    ],
)
def test_a_limit_of_the_process(tmp_path: Path, limit: str, value: int, written: int, said: str) -> None:
    """`ulimit -f` and `ulimit -v`: one line, the old file is kept, and nothing lies beside it."""
    line = [sys.executable, "-c", _WRITE, limit, str(value), str(tmp_path / "a.json"), str(written)]
    ended = subprocess.run(line, capture_output=True, text=True, check=True)
    assert said in ended.stdout.splitlines()[0]
    assert '"old": 1' in ended.stdout
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())
