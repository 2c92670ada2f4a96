"""Entry point of the `understudy` command. It sees to it that `pipeline` and `stages` are Understudy's own packages.

The two names are generic: with `PYTHONPATH=.` in a repository that has a folder `pipeline`, Python would import that folder. So
the packages beside this file are bound to their names before anything imports them. The search path stays as it is.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGES = ("pipeline", "stages")


def main() -> None:
    """Bind the packages, then run the command."""
    try:
        for name in PACKAGES:
            _bind(name)
        from pipeline.cli import main as command
    except KeyboardInterrupt:  # imports take a second; from here on the command says what an interruption keeps
        print("understudy: interrupted", file=sys.stderr)
        sys.exit(130)
    command()


def _bind(name: str) -> None:
    """Make `name` stand for the package beside this file."""
    loaded = sys.modules.get(name)
    if loaded is None:
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None or spec.origin is None:
            sys.exit(f"understudy: {ROOT / name}: not there; install Understudy again")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
    if Path(loaded.__file__ or "").resolve().parent != ROOT / name:
        sys.exit(
            f"understudy: the package `{name}` is already imported from {loaded.__file__ or 'elsewhere'}, not from "
            f"{ROOT / name}; start `understudy` in a process of its own"
        )


if __name__ == "__main__":
    main()
