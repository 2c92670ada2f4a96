"""`understudy doctor`: each line against a machine made up for the test, and the exit code over all of them."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from pipeline.commands import doctor as module
from pipeline.errors import UsageError
from pipeline.models import memory
from pipeline.native import build
from pipeline.native.compiler import compiler
from pipeline.planning.doctor import compiled, machine, services
from pipeline.planning.doctor.check import GIB, Check
from pipeline.planning.doctor.gpus import gpus
from pipeline.planning.doctor.libraries import libraries as library_checks
from pipeline.registry.mlflow_client import Location, client_for
from pipeline.store.artifacts import Store

APP = typer.Typer()
APP.command()(module.doctor)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The system files that are read, by path; what is not in here is absent."""
    made: dict[str, str] = {}
    for reader in (machine, memory):
        monkeypatch.setattr(reader, "read_text", lambda path: made.get(path, ""))
    return made


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Installed versions by name; `understudy` asks for two libraries and, for its developers, a third."""
    made = {"understudy": "0.1.0", "torch": "2.13.0+cpu", "trl": "1.16.0"}

    def version(name: str) -> str:
        if name not in made:
            raise metadata.PackageNotFoundError(name)
        return made[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=2.10", "trl<2,>=1.10", 'pytest>=9; extra == "dev"'])
    return made


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_libraries_within_their_bounds_are_ok(libraries: dict[str, str]) -> None:
    """Each required library has a line; an extra's are not asked for."""
    assert [(check.name, check.mark) for check in library_checks()] == [
        ("understudy", "ok"),
        ("torch", "ok"),
        ("trl", "ok"),
    ]


@pytest.mark.parametrize("version", ["1.9.3", "2.0", None])
def test_library_too_old_too_new_or_absent_is_missing(libraries: dict[str, str], version: str | None) -> None:
    """Both bounds count, and the remedy is a command that can be pasted."""
    libraries.pop("trl")
    if version:
        libraries["trl"] = version
    check = library_checks()[-1]
    assert (check.name, check.mark, check.remedy) == ("trl", "missing", "pip install 'trl<2,>=1.10'")


@pytest.mark.parametrize(
    ("version", "required", "mark"),
    [
        ("2.9", "trl>=2.10", "missing"),
        ("2.10.0", "trl>=2.10", "ok"),
        ("2.10", "trl>=2.10.0", "ok"),
        ("2.10.0+cpu", "trl>=2.10,<2.11", "ok"),
        ("3.11", "trl", "ok"),
        ("4.0.0", "trl>=3,<4", "missing"),
        ("3.99", "trl (>=3, <4)", "ok"),
        ("3.5", "trl!=3.5", "missing"),
        ("3.5", "trl~=3.6", "missing"),
        ("3.7rc1", "trl[extra]~=3.6", "ok"),
    ],
)
def test_versions_are_compared_as_pip_does(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, version: str, required: str, mark: str
) -> None:
    """2.9 is before 2.10, trailing zeros and local versions mean nothing, and every operator counts."""
    libraries["trl"] = version
    monkeypatch.setattr(metadata, "requires", lambda _: [required])
    assert mark == library_checks()[-1].mark


def test_a_library_of_another_platform_is_not_required(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers are evaluated on this machine."""
    monkeypatch.setattr(metadata, "requires", lambda _: ['winonly; python_version < "3"', 'trl; python_version >= "3"'])
    assert ["understudy", "trl"] == [check.name for check in library_checks()]


def test_not_installed_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without metadata nothing is known about what is required, and that is said."""

    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert [(check.name, check.mark) for check in library_checks()] == [("understudy", "missing")]


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ("0::/job/step", "/sys/fs/cgroup/job/memory.max"),
        ("0::/", "/sys/fs/cgroup/memory.max"),
        ("4:cpu,memory:/a", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"),
    ],
)
def test_memory_limit_of_the_control_group_is_seen(files: dict[str, str], group: str, path: str) -> None:
    """A container's limit, its own or that of a group around it, counts instead of the machine's memory."""
    files |= {"/proc/self/cgroup": group, path: str(1024**3)}
    check = machine._memory()
    assert check.found.endswith("cgroup limit 1.0 GiB")
    assert check.mark == "note"


def test_core_limit_of_the_control_group_is_seen(files: dict[str, str]) -> None:
    """A quota of 1.5 cores is shown beside the number of cores."""
    files |= {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "150000 100000"}
    assert machine._cores().found.endswith("cgroup limit 1.5")


def test_no_limit_is_no_limit(files: dict[str, str]) -> None:
    """`max` and version 1's huge number are not shown as limits."""
    files |= {
        "/proc/self/cgroup": "0::/\n4:memory:/",
        "/sys/fs/cgroup/cpu.max": "max 100000",
        "/sys/fs/cgroup/memory.max": "max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
    }
    assert "limit" not in machine._memory().found + machine._cores().found


@pytest.mark.parametrize(
    ("cpuinfo", "mark", "found"),
    [
        ("model : x\nflags\t\t: fpu avx512_bf16 amx_bf16", "ok", "amx_bf16, avx512_bf16"),
        ("Features\t: fp bf16 i8mm", "ok", "bf16, i8mm"),
        ("flags : fpu avx2", "note", "none of AVX512-BF16, AMX, BF16"),
    ],
)
def test_bf16_units_of_the_cpu_are_named(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, cpuinfo: str, mark: str, found: str
) -> None:
    """On Linux the flags say whether bfloat16 is computed or emulated."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    files["/proc/cpuinfo"] = cpuinfo
    check = machine._cpu_flags()
    assert (check.mark, check.found) == (mark, found)


def _fake_torch(
    capability: tuple[int, int] | None = None, build: str | None = "13.0", mps: bool = False
) -> SimpleNamespace:
    """torch on a machine with one card of a compute capability, or without."""

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nUpdate it.")

    major, minor = capability or (0, 0)
    cuda = SimpleNamespace(
        is_available=lambda: capability is not None,
        device_count=lambda: 1,
        get_device_properties=lambda number: SimpleNamespace(
            name="Card", total_memory=80 * GIB, major=major, minor=minor
        ),
        mem_get_info=lambda number: (70 * GIB, 80 * GIB),
        get_arch_list=lambda: ["sm_75", "sm_80", "sm_90", "compute_90"],
        init=init,
    )
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps))
    return SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=build), cuda=cuda, backends=backends)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that says its version, alone on the path."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.159.03\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("capability", "mark", "says"),
    [
        ((9, 0), "ok", "bfloat16, flash attention by torch, FP8"),
        ((8, 6), "ok", "bfloat16, flash attention by torch, no FP8"),
        ((7, 5), "note", "no bfloat16, no flash attention"),
        ((7, 0), "note", "this torch has no kernels for it"),
        ((12, 0), "ok", "FP8"),
    ],
    ids=str,
)
def test_a_card_and_what_follows_from_it(
    libraries: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    driver: None,
    capability: tuple[int, int],
    mark: str,
    says: str,
) -> None:
    """7.0 is older than all that this torch is built for; for 12.0 it compiles what it has for 9.0."""
    monkeypatch.setitem(sys.modules, "torch", _fake_torch(capability))
    of_driver, card = gpus()
    assert (of_driver.mark, of_driver.found) == ("ok", "driver 580.159.03; torch 2.13.0, built for CUDA 13.0")
    assert (card.name, card.mark) == ("gpu 0", mark)
    assert card.found.startswith(f"Card, 80 GiB (70 free), compute capability {capability[0]}.{capability[1]}: ")
    assert says in card.found
    assert bool(card.remedy) == (mark == "note")


def test_a_driver_that_is_too_old_for_torch_is_one_line(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, driver: None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", _fake_torch())
    (check,) = gpus()
    assert check.mark == "note"
    assert check.found == (
        "none: torch 2.13.0, built for CUDA 13.0, cannot use the driver (driver 580.159.03): The NVIDIA driver on your "
        "system is too old (found version 12020)."
    )
    assert "update the driver" in check.remedy


def test_a_torch_for_cpus_beside_a_driver_is_pointed_out(
    libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, driver: None
) -> None:
    """The usual reason for a slow run."""
    monkeypatch.setitem(sys.modules, "torch", _fake_torch(build=None))
    (check,) = gpus()
    assert check.mark == "note"
    assert "install a CUDA build of torch" in check.remedy


@pytest.mark.parametrize(
    ("mps", "begins"), [(True, "none: CPU only; Apple's GPU (mps) has no"), (False, "none: CPU only")]
)
def test_no_gpu_is_a_note(libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch, mps: bool, begins: str) -> None:
    """Because a CPU will do."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "torch", _fake_torch(mps=mps))
    (check,) = gpus()
    assert check.mark == "note"
    assert check.found.startswith(begins)


def test_broken_torch_is_missing(libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed but not importable is no torch, and not a traceback either."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (check,) = gpus()
    assert check.mark == "missing"


def test_absent_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing needs a compiler; the line says what is lost."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiled._tool("ninja", "do this") == Check("ninja", "note", "not found", "do this")


def test_missing_c_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing needs a C compiler; the lines say what to install."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("UNDERSTUDY_NATIVE", raising=False)
    assert (compiled._c_compiler().mark, compiled._c_compiler().found) == ("note", "not found")
    assert compiled._compiled_code() == Check("compiled code", "note", "not buildable: no C compiler")


def test_switched_off_compiled_code_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """UNDERSTUDY_NATIVE=0 explains a slow decode."""
    monkeypatch.setenv("UNDERSTUDY_NATIVE", "0")
    check = compiled._compiled_code()
    assert (check.mark, check.found) == ("note", "off: UNDERSTUDY_NATIVE=0 is set")


@pytest.mark.skipif(compiler() is None, reason="no C compiler here")
def test_instruction_sets_of_compiled_code_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dtype of the weights has its own; nothing is written into the cache."""
    monkeypatch.delenv("UNDERSTUDY_NATIVE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-O0"])
    check = compiled._compiled_code()
    vectors = "(AVX-512|AVX2|NEON|baseline vectors)"
    bf16 = r"(, AVX512-BF16|, AMX tiles \(bf16\))?"
    assert check.mark == "ok"
    assert re.fullmatch(f"on: float32: {vectors}; bfloat16: {vectors}{bf16}", check.found)
    assert list(tmp_path.iterdir()) == []


def test_compiler_error_is_shown_by_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line holds what the compiler says first, not the whole of its output."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no such header' >&2\necho 'more' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("UNDERSTUDY_NATIVE", raising=False)
    check = compiled._compiled_code()
    assert (check.mark, check.found) == ("note", "not buildable: llama_forward.c: no such header")


def test_cache_of_compiled_code_is_shown_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory to be made, one that exists, one that other users can write to, and one behind a file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "understudy"
    assert compiled._compiled_cache() == Check("compiled cache", "ok", f"{place} (to be made)")
    assert list(tmp_path.iterdir()) == []
    place.mkdir(mode=0o700)
    assert compiled._compiled_cache() == Check("compiled cache", "ok", str(place))
    place.chmod(0o777)
    shared = compiled._compiled_cache()
    assert (shared.mark, shared.found) == ("note", f"{place} is writable by other users")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled._compiled_cache().mark == "note"


def test_store_is_looked_at_and_not_made(tmp_path: Path) -> None:
    """A store that does not exist yet is judged by where it would be made. Where a file stands it cannot be written."""
    disk, store = services.storage(tmp_path / "a" / "store")
    assert (disk.mark, store.mark) == ("ok", "ok")
    assert "will be created" in store.found
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    disk, store = services.storage(tmp_path / "file" / "store")
    assert (store.mark, store.remedy) == ("missing", "choose another one with --store")
    assert disk.name == "disk"


@pytest.mark.parametrize(("free", "mark"), [(10.0, "ok"), (2.0, "note"), (0.1, "missing")])
def test_scarce_disk_is_noted_and_a_full_one_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, mark: str
) -> None:
    """The reference run fits in half a GiB; a real pair wants more."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * 1024**3))
    assert services.storage(tmp_path)[0].mark == mark


def test_a_registry_is_asked_for_a_connection() -> None:
    """Where nothing listens it is missing: without a registry nothing is promoted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        assert services.registry(uri) == Check("registry", "ok", f"{uri} accepts connections")
    check = services.registry(uri)
    assert check.mark == "missing"
    assert "MLFLOW_TRACKING_URI" in check.remedy


def test_database_is_ok_where_it_is_or_can_be_made(tmp_path: Path) -> None:
    """SQLite: an existing file, or a directory to make it in; nothing is made. No directory of its name, no file on the way."""
    assert services.registry(f"sqlite:///{tmp_path}/a/mlflow.db").found.endswith("(will be created)")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").touch()
    assert services.registry(f"sqlite:///{tmp_path}/mlflow.db") == Check(
        "registry", "ok", f"SQLite at {tmp_path}/mlflow.db"
    )
    (tmp_path / "file").touch()
    assert services.registry(f"sqlite:///{tmp_path}").mark == "missing"
    assert services.registry(f"sqlite:///{tmp_path}/file/mlflow.db").mark == "missing"


def test_registry_of_a_run_is_inside_the_store_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    """The same place that a run would use: MLFLOW_TRACKING_URI, else the store's own database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    inside = {check.name: check.found for check in module.checks(tmp_path)}["registry"]
    assert inside.startswith(f"SQLite at {tmp_path}/mlflow/mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    named = {check.name: check.found for check in module.checks(tmp_path)}["registry"]
    assert named == f"http://127.0.0.1:{port} accepts connections"


def test_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the hub's token nor a password in the registry's address, in either format."""
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    for uri in ("http://user:sesame@127.0.0.1:1/?key=sesame", "postgresql://user:sesame@host/db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        for format_ in ([], ["--json"]):
            output = CliRunner().invoke(APP, ["--store", str(tmp_path), *format_]).output
            assert "HF_TOKEN is set" in output
            assert "sesame" not in output


@pytest.mark.parametrize(
    ("uri", "said", "todo"),
    [
        ("mysql+pymysql_of_ours://u@h/d", "no address of a database", "correct it"),
        ("mssql+pyodbc://u@h/d", "the Python module pyodbc, is not installed here", "install it beside understudy"),
    ],
)
def test_a_database_without_its_driver_is_missing(tmp_path: Path, uri: str, said: str, todo: str) -> None:
    """It was "nothing is missing", and then a traceback of the first command that needs MLflow."""
    check = services.registry(uri)
    assert ("missing", todo) == (check.mark, check.remedy)
    assert said in check.found
    with pytest.raises(UsageError, match=said):
        client_for(Location(uri, None, "e", Store(tmp_path)))


def test_offline_hub_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE explains a model that is not found."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "only cached models" in services.hub().found


@pytest.mark.parametrize(("mark", "code"), [("ok", 0), ("note", 0), ("missing", 1)])
def test_exit_code_is_1_only_if_something_needed_is_missing(
    monkeypatch: pytest.MonkeyPatch, mark: str, code: int
) -> None:
    """Notes do not fail a setup script."""
    monkeypatch.setattr(module, "checks", lambda store: [Check("python", "ok", "3"), Check("thing", mark, "x", "do y")])
    result = CliRunner().invoke(APP, [])
    assert result.exit_code == code
    assert "-> do y" in result.output
    assert ("missing: thing" in result.output) == (code == 1)


def test_json_holds_the_same_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--json` for scripts: the same lines, and the same exit code."""
    monkeypatch.setattr(module, "checks", lambda store: [Check("thing", "missing", "x", "do y")])
    result = CliRunner().invoke(APP, ["--json"])
    assert json.loads(result.output) == [{"name": "thing", "mark": "missing", "found": "x", "remedy": "do y"}]
    assert result.exit_code == 1


def test_importing_the_command_imports_nothing_heavy() -> None:
    """`--help` stays quick: typer and the standard library."""
    heavy = "{'torch', 'mlflow', 'numpy', 'pydantic'}"
    program = f"import sys, pipeline.commands.doctor; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
