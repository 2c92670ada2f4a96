"""`python -m tests.device.kit.build OUT [--python 3.12]`: the folder of the device kit, from this checkout.

It holds Understudy's wheel, the tests that the kit runs, the configs, and wheels for the given Python of what a machine with
torch and transformers may lack. Nothing in it needs a network.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
MOST_MIB = 50
# What Understudy imports to its examination, beside what a machine for transformers has. Wheels with C code are for one Python;
# versions are those of constraints.txt where it has them.
_NAMES = """
trl datasets dill multiprocess xxhash fsspec pydantic pydantic-core annotated-types typing-inspection datasketch tenacity rich
markdown-it-py mdurl pygments prometheus-client hypothesis sortedcontainers aiohttp aiosignal aiohappyeyeballs attrs frozenlist
multidict propcache yarl requests charset-normalizer idna urllib3 certifi tzdata pandas python-dateutil pytz six peft
pytest pluggy iniconfig typer shellingham
"""
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17)] + ["manylinux2014_x86_64"]
_TESTS = (
    "__init__.py",
    "architectures.py",
    "budget.py",
    "fakes.py",
    "benchmarks/__init__.py",
    "benchmarks/assisted.py",
    "integration/__init__.py",
    "integration/trained.py",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    options = parser.parse_args()
    build(options.out, options.python)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()) / 2**20
    print(f"{options.out}: {size:.1f} MiB")
    if size > MOST_MIB:
        print(f"more than the {MOST_MIB} MiB that travel", file=sys.stderr)
    return int(size > MOST_MIB)


def build(out: Path, python: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    (wheels := out / "wheels").mkdir(parents=True)
    _pip("wheel", "--no-deps", "-w", str(wheels), str(ROOT))
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    where = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    versions = _versions()
    wanted = [versions.get(name, name) for name in _NAMES.split()]
    _pip("download", "--no-deps", *where, "-d", str(wheels), *wanted)
    shutil.copy(HERE / "start.py", out / "kit.py")
    shutil.copy(HERE / "METHOD.md", out)
    shutil.copytree(ROOT / "configs", out / "configs")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests" / "device", out / "tests" / "device", ignore=ignored)
    for name in _TESTS:
        (out / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, out / "tests" / name)


def _versions() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition("==")[0]: line for line in lines if "==" in line}


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
