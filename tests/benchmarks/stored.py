"""What the JSON files in results/ say: figures, and on what they were measured."""

import json
from functools import cache
from typing import Any

from tests.benchmarks.figures import RESULTS


class Results:
    """Every file is read once."""

    def has(self, name: str) -> bool:
        """Whether it was measured."""
        return (RESULTS / f"{name}.json").exists()

    def figure(self, name: str) -> Any:
        return _read(name)["figure"]

    def conditions(self, *names: str) -> str:
        """Machines, each with the command that measures there."""
        commands: dict[str, list[str]] = {}
        for name in names:
            machine = _read(name)["machine"]
            processor = machine["cpu"].replace("(R)", "").replace(" Processor", "")
            commands.setdefault(f"{machine['cores']} cores of {processor}", []).append(_read(name)["command"])
        return "; ".join(f"`{_joined(found)}` on {machine}" for machine, found in commands.items())

    def versions(self, name: str) -> str:
        found = _read(name)
        libraries = (f"{library} {version}" for library, version in found["versions"].items())
        return ", ".join((f"Python {found['machine']['python']}", *libraries))


def _joined(commands: list[str]) -> str:
    """Benchmarks of one machine as one command."""
    first, *others = commands
    return " ".join([first, *(other.removeprefix("python -m tests.benchmarks ") for other in others)])


@cache
def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))
