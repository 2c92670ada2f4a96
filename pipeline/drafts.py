"""Where a draft's model directory lies inside what a stage is given. Torch-free.

Every artifact that makes a draft keeps it in `draft/`; beside the weights lies `trained_on.json`, the ids of the prompts
it learnt from, so that no draft is ever judged on those.
"""

from pathlib import Path

from pipeline.artifacts import read_json
from pipeline.errors import UnderstudyError
from pipeline.pairfile import PAIR_FILE, read_pair

TRAINED_ON = "trained_on.json"


def find_draft(given: Path, part: str = "") -> Path:
    """The model directory in `given`: a pair artifact, a distill or quantize artifact, or a model directory itself."""
    if (given / PAIR_FILE).exists():
        return read_pair(given).path("draft")
    path = given / "draft" if (given / "draft").is_dir() else given
    if not (path / "config.json").is_file():
        raise UnderstudyError(f"{path}: not a model directory (no config.json there){f' for {part}' if part else ''}")
    return path


def trained_on(draft: Path) -> frozenset[str]:
    """Ids of the prompts the draft in `draft` learnt from; empty for a stock draft, which states none."""
    path = draft / TRAINED_ON
    return frozenset(read_json(path)["prompts"]) if path.exists() else frozenset()
