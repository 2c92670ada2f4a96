"""`python tests/lowest.py`: constraints that pin everything pyproject.toml names to the lowest version that it allows, but for
torch, of which only one build is tested on a machine without a GPU. Needs the standard library alone."""

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def lowest() -> list[str]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(one for some in project["optional-dependencies"].values() for one in some)]
    pinned = re.findall(r"^(torch==\S+)$", (_ROOT / "constraints.txt").read_text(), re.MULTILINE)
    for requirement in named:
        if (found := re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", requirement)) and found[1] not in ("torch", "ray"):
            version = found[2] if "." in found[2] else f"{found[2]}.0"
            pinned.append(f"{found[1]}=={version}")
    return pinned


if __name__ == "__main__":
    print("\n".join(lowest()))
