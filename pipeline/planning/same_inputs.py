"""What a planned run will read: whether an earlier run read the same pair and the same prompts, by content, and what kind of
draft it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.drafts.kinds import KINDS, PLAIN, Kind
from pipeline.models.model_json import CONFIG
from pipeline.models.places import model_places
from pipeline.running.inputs import is_prompts, known_files
from pipeline.store.artifacts import Store
from pipeline.store.runs import OutsideInput, RunRecord

Inputs = Mapping[str, OutsideInput]


@dataclass(frozen=True)
class PlannedInputs:
    """What a config reads, from what the store remembers of the files: nothing is hashed. A file that is new or has changed is
    like no other."""

    inputs: Inputs

    @classmethod
    def of(cls, config: Config, store: Store) -> "PlannedInputs":
        return cls(known_files(config, store))

    def same_target(self, record: RunRecord) -> bool:
        """Whether both targets have one content. Of a target on servers the tokenizer is compared: no server is asked here."""
        return all(
            self._same(name, record)
            for name in ("target", "tokenizer", "reference_text")
            if name in self._known(record)
        )

    def same_speed(self, record: RunRecord) -> bool:
        """Whether passes of the two targets take the same time: of one content, or of one shape, such as one fine-tuned since."""
        own, other = (_fact(inputs, "target", "shape") for inputs in (self.inputs, record.outside))
        return self.same_target(record) or (own != "" and own == other)

    def same_draft(self, record: RunRecord) -> bool:
        """The base draft."""
        return self._same("draft", record)

    def same_prompts(self, record: RunRecord) -> bool:
        """Whether both have the same files, split into tokens by the same tokenizer."""
        own, other = (_fact(inputs, "target", "tokenizer") for inputs in (self.inputs, record.outside))
        prompts = {name for name in self._known(record) if is_prompts(name)}
        same_tokens = self.same_target(record) or (own != "" and own == other)
        return same_tokens and all(self._same(name, record) for name in prompts)

    def _known(self, record: RunRecord) -> set[str]:
        """Inputs of either."""
        served = {"target"} if "tokenizer" in self.inputs else set()
        return (self.inputs.keys() | record.outside.keys()) - served

    def _same(self, name: str, record: RunRecord) -> bool:
        own, other = self.inputs.get(name), record.outside.get(name)
        return own == other is None or (own is not None and other is not None and own.digest == other.digest)


def _fact(inputs: Inputs, role: str, name: str) -> str:
    return str(inputs[role].facts.get(name) or "") if role in inputs else ""


def draft_kind(config: Config) -> Kind:
    """A draft whose files are not on this machine is taken for a model."""
    if config.pair.draft.head is not None:
        return KINDS[config.pair.draft.head.kind]
    place = model_places(config.pair).get("draft")
    path = None if place is None else place.find()
    if path is None or not (path / CONFIG).is_file():
        return PLAIN
    # Imported here because it takes torch, which plans of other drafts do without.
    from pipeline.drafts.head_config import kind_of

    return kind_of(path)
