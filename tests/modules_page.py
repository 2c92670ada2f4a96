"""docs/modules.md, made from the docstrings of all modules: `python -m tests.modules_page`, which `make docs` calls."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.progress import say_block
from tests.structure import ORDER, PIPELINE, STAGES, tree

_HEAD = """# Modules

The first sentence of every module, by folder, in the order of imports: a folder imports only from those above it. Made by
`make docs`. [architecture.md](architecture.md) says what flows between the folders.
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(f"\n## {name}\n\n{''.join(lines)}" for name, lines in _folders())


def _folders() -> Iterator[tuple[str, list[str]]]:
    for name in ORDER:
        root = STAGES if name == "stages" else PIPELINE / name.replace(".", "/")
        paths = sorted(root.rglob("*.py")) if root.is_dir() else [root.with_suffix(".py")]
        lines = [
            f"- `{path.relative_to(root) if root.is_dir() else path.name}`: {sentence}\n"
            for path in paths
            if (sentence := _first_sentence(path))
        ]
        yield f"{name.replace('.', '/')}{'/' if root.is_dir() else '.py'}", lines


def _first_sentence(path: Path) -> str:
    """Nothing where a module is empty."""
    text = ast.get_docstring(tree(path)) or ""
    return re.split(r"(?<=[.?!]) +(?=[A-Z`])", " ".join(text.partition("\n\n")[0].split()))[0]


if __name__ == "__main__":
    say_block(page())
