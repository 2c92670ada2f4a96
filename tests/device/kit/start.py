"""Runs the parts of the device kit on this machine: `python kit.py [PARTS] [--out DIR] [--tiny]`; METHOD.md beside it.

Needs Python with torch. Of the wheels in wheels/ it installs what the machine lacks into site/, once, without a network.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"


def main() -> int:
    if not SITE.exists():
        install()
    paths = [str(HERE), os.environ.get("PYTHONPATH", ""), str(SITE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return subprocess.call([sys.executable, "-m", "tests.device.kit.run", *sys.argv[1:]], env=environment)


def install() -> None:
    """Those of wheels/ whose package is absent here. Understudy itself is always taken from the folder."""
    missing = [wheel for wheel in sorted((HERE / "wheels").glob("*.whl")) if is_absent(wheel)]
    print(f"installing {', '.join(wheel.name.split('-')[0] for wheel in missing)} into {SITE}", flush=True)
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--disable-pip-version-check",
        "--target",
        str(SITE),
    ]
    subprocess.check_call([sys.executable, "-m", "pip", "install", *options, *map(str, missing)])


def is_absent(wheel: Path) -> bool:
    name = wheel.name.split("-")[0]
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return True
    return name == "understudy"


if __name__ == "__main__":
    sys.exit(main())
