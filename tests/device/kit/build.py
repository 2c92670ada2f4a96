"""`python -m tests.device.kit.build OUT [--python 3.12]`: the folder of the device kit, from this checkout.

It holds Understudy's wheel, the tests that the kit runs, the configs, and wheels for the given Python of what a machine with
torch and transformers may lack. Nothing in it needs a network.
"""

import argparse
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
MOST_MIB = 50
# What Understudy imports to its examination, beside what a machine for transformers has. Wheels with C code are for one Python;
# versions are those of constraints.txt where it has them.
_NAMES = """
trl datasets dill multiprocess xxhash fsspec datasketch tenacity rich bitsandbytes
markdown-it-py mdurl pygments prometheus-client hypothesis sortedcontainers aiohttp aiosignal aiohappyeyeballs attrs frozenlist
multidict propcache yarl requests charset-normalizer idna urllib3 certifi tzdata pandas python-dateutil pytz six peft
pytest pluggy iniconfig typer shellingham
"""
_WITH_THEIR_OWN = ("pydantic",)  # it takes one version of pydantic-core, which the constraints need not name
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17)] + ["manylinux2014_x86_64"]
_TESTS = (
    "__init__.py",
    "architectures.py",
    "budget.py",
    "fakes.py",
    "heads.py",
    "benchmarks/__init__.py",
    "benchmarks/assisted.py",
    "integration/__init__.py",
    "integration/trained.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    parser.add_argument("--cuda", default="13.0", help="the CUDA that the machine's torch is built for")
    options = parser.parse_args()
    build(options.out, options.python, options.cuda)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()) / 2**20
    print(f"{options.out}: {size:.1f} MiB")
    if size > MOST_MIB:
        print(f"more than the {MOST_MIB} MiB that travel", file=sys.stderr)
    return int(size > MOST_MIB)


def build(out: Path, python: str, cuda: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    (wheels := out / "wheels").mkdir(parents=True)
    _pip("wheel", "--no-deps", "-w", str(wheels), str(ROOT))
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    where = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    versions = _versions()
    wanted = [versions.get(name, name) for name in _NAMES.split()]
    _pip("download", "--no-deps", *where, "-d", str(wheels), *wanted)
    _pip("download", *where, "-d", str(wheels), *(versions.get(name, name) for name in _WITH_THEIR_OWN))
    for wheel in wheels.glob("bitsandbytes-*.whl"):
        keep_kernels(wheel, f"cuda{cuda.replace('.', '')}.so")
    shutil.copy(HERE / "start.py", out / "kit.py")
    shutil.copy(HERE / "METHOD.md", out)
    shutil.copytree(ROOT / "configs", out / "configs")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests" / "device", out / "tests" / "device", ignore=ignored)
    for name in _TESTS:
        (out / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, out / "tests" / name)


def keep_kernels(wheel: Path, *of: str) -> None:
    """Leave a wheel only those of its libraries whose names end so, or in cpu.so: bitsandbytes has 40 MB for a dozen devices."""
    whole = wheel.rename(wheel.with_suffix(".whole"))
    with zipfile.ZipFile(whole) as before, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as after:
        left = [name for name in before.namelist() if name.endswith(".so") and not name.endswith(("cpu.so", *of))]
        for name in (name for name in before.namelist() if name not in left):
            content = before.read(name)
            if name.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                content = "".join(line for line in lines if line.partition(",")[0] not in left).encode()
            after.writestr(name, content)
    whole.unlink()


def _versions() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition("==")[0]: line for line in lines if "==" in line}


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
