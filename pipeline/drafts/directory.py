"""Finds a draft's model directory in an artifact, and the prompts that the draft was trained on. Torch-free.

Every artifact with a draft stores it in `draft/`. `trained_on.json` beside the weights lists its training prompts, so that a
draft is never examined on them.
"""

import os
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path

from pipeline.errors import UnderstudyError
from pipeline.models.places import Places
from pipeline.models.stored_pair import PAIR_FILE, role_directory
from pipeline.store.files import write_json
from pipeline.store.parsing import Text, format_of, stored

TRAINED_ON = "trained_on.json"


def find_draft(given: Path, places: Places) -> Path:
    """The draft's model directory. `given` is a pair, distill or quantize artifact, or already a model directory.

    Of a pair artifact it is the base draft, which may be outside the store; `places` then states where. Raises UnderstudyError if
    the directory has no config.json.
    """
    if (given / PAIR_FILE).exists():
        return role_directory(given, "draft", places)
    path = given / "draft" if (given / "draft").is_dir() else given
    if not (path / "config.json").is_file():
        raise UnderstudyError(
            f"{path}: not a model directory (no config.json there); name the directory of the weights"
        )
    return path


@stored(
    kw_only=False,
    name='list of training prompts, which is {"prompts": [...]}',
    remedy="put back the file that was written with the draft: without it, prompts that the draft was trained on cannot be left "
    "out of its examination",
)
class TrainedOn:
    """The prompts that drafts were trained on: their ids, the ids of their texts (`corpus.same_text`), and the modes of the chat
    template in which they were rendered (`corpus.modes`), empty where these are not known."""

    prompts: frozenset[Text]
    texts: frozenset[Text] = frozenset()
    modes: frozenset[str] = frozenset()

    def __or__(self, other: "TrainedOn") -> "TrainedOn":
        return TrainedOn(self.prompts | other.prompts, self.texts | other.texts, self.modes | other.modes)

    def begun_from(self, base: "TrainedOn") -> "TrainedOn":
        """The prompts of a draft that was trained on these prompts and before on those of `base`: it has seen both, and is for
        the modes of its own training, so that a mode can be given up."""
        return TrainedOn(self.prompts | base.prompts, self.texts | base.texts, self.modes)

    def among(self, text_ids: Mapping[str, str]) -> frozenset[str]:
        """The ids of the prompts of `text_ids` (id -> id of the text) that a draft was trained on, as they are or in a text that
        differs only in case, whitespace or punctuation."""
        return frozenset(name for name, text in text_ids.items() if name in self.prompts or text in self.texts)

    def write(self, draft: Path) -> None:
        """Write `trained_on.json` into the draft's directory."""
        write_json(draft / TRAINED_ON, {name: sorted(ids) for name, ids in vars(self).items()})


NOTHING = TrainedOn(frozenset())


def trained_on(draft: Path) -> TrainedOn:
    """The prompts that the draft in `draft` was trained on. UnderstudyError if the file is missing."""
    path = draft / TRAINED_ON
    if not os.path.lexists(path):  # a link to nowhere is damage
        raise UnderstudyError(
            f"{draft}: {TRAINED_ON} is missing, so the draft's training prompts are unknown and it cannot be evaluated; "
            "restore the file, or train the draft again"
        )
    return format_of(TrainedOn).read(path)


def seen_prompts(drafts: Iterable[Path], places: Places) -> TrainedOn:
    """The prompts that any of `drafts` was trained on. Each is given as to `find_draft`."""
    return reduce(or_, (trained_on(find_draft(given, places)) for given in drafts), NOTHING)


def trained_on_before(base: Path) -> TrainedOn:
    """The prompts that a base draft was trained on; empty if it has no such file, such as a draft from the hub."""
    return trained_on(base) if os.path.lexists(base / TRAINED_ON) else NOTHING
