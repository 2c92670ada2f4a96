"""Where a draft's model directory lies inside what a stage is given, and what the draft learnt from. Torch-free.

Every artifact that makes a draft keeps it in `draft/`; beside the weights lies `trained_on.json`, the ids of the prompts
it learnt from, so that no draft is ever judged on those.
"""

from pathlib import Path

from pipeline.config.pair import PairConfig
from pipeline.errors import UnderstudyError
from pipeline.models.stored_pair import PAIR_FILE, read_pair
from pipeline.store.files import read_json

TRAINED_ON = "trained_on.json"


def find_draft(given: Path, config: PairConfig) -> Path:
    """The model directory in `given`: a pair artifact, a distill or quantize artifact, or a model directory itself."""
    if (given / PAIR_FILE).exists():
        return read_pair(given, config).path("draft")
    path = given / "draft" if (given / "draft").is_dir() else given
    if not (path / "config.json").is_file():
        raise UnderstudyError(f"{path}: not a model directory (no config.json there)")
    return path


def trained_on(draft: Path) -> frozenset[str]:
    """Ids of the prompts the draft in `draft` learnt from. UnderstudyError if it does not say: it cannot be judged fairly."""
    path = draft / TRAINED_ON
    if not path.exists():
        raise UnderstudyError(
            f"{draft}: does not say which prompts it learnt from ({TRAINED_ON}), so it cannot be judged"
        )
    return frozenset(read_json(path)["prompts"])


def trained_on_before(base: Path) -> frozenset[str]:
    """The same for a base draft, which says nothing if it comes from elsewhere."""
    return trained_on(base) if (base / TRAINED_ON).exists() else frozenset()
