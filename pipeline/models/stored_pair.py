"""Reads `pair.json`, the result of the pair stage. Torch-free."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from pipeline.drafts.kinds import KindName, Trait
from pipeline.models.places import Places
from pipeline.store.parsing import Count, Format, Number, Text, known_fields_only

PAIR_FILE = "pair.json"


@known_fields_only
class ModelFacts(TypedDict):
    """Facts of the model of one role. What is None is not known of a served target."""

    source: Text
    revision: Text | None
    dtype: Text
    digest: Text
    parameters: Count | None
    bytes: Count | None
    license: Text | None
    logits_width: Count
    context: Count  # tokens
    cache_bytes_per_token: Number | None
    step_shape: NotRequired[Text]  # `step_shape.py`; of a pair of an earlier version, and of a served target, not there
    forward: NotRequired[Text]  # how the decoder computes it; of no served target
    log_probabilities: NotRequired[dict[Text, Any]]  # of a served target: see `servers/abilities.py`


@known_fields_only
class HeadFacts(TypedDict):
    """Facts of a draft that is a head on the target's hidden states."""

    kind: NotRequired[KindName]  # of a pair of an earlier version not there
    longest: Count | None  # tokens that it proposes in a round; None: no limit
    traits: NotRequired[list[Trait]]  # what of it not every engine computes; of a pair of an earlier version not there


@known_fields_only
class RowsFacts(TypedDict):
    """Of how many tokens of the target which rows of a draft are that had another tokenizer: see `drafts/transplant.py`."""

    copied: Count
    special: Count
    mapped: Count
    pieces: Count
    mean: Count
    padded: Count
    map_error: Number | None
    output_map_error: Number | None
    # Of a pair of an earlier version not there:
    no_map: NotRequired[Text]
    unwritten: NotRequired[Count]
    lost: NotRequired[list[Text]]
    unmatched: NotRequired[list[Text]]


class PairFacts(TypedDict):
    """The content of `pair.json`."""

    target: ModelFacts
    draft: ModelFacts
    target_before: NotRequired[ModelFacts]
    head: NotRequired[HeadFacts]
    transplant: NotRequired[RowsFacts]
    vocabulary: Count
    context: Count
    tokens: Count
    stop_tokens: list[Count]
    chat_template: bool
    generation_config: dict[Text, Any]
    impossible_variants: dict[Text, Text]
    differences: list[Text]
    memory: dict[Text, Number] | None
    template_day: NotRequired[
        Text
    ]  # ISO date; of a chat template that writes the date, and prompts without a time of their own
    served: NotRequired[dict[Text, Any]]  # see `servers/identity.py`


PAIR = Format(name="result of the pair stage", content=PairFacts)


@dataclass(frozen=True)
class Pair:
    """The pair of a run. Roles are target, draft and, if configured, target_before."""

    directory: Path
    facts: PairFacts
    places: Places  # of the models that the stage did not make

    @property
    def vocabulary(self) -> int:
        """Tokens that all roles share; logits columns beyond are padding."""
        return int(self.facts["vocabulary"])

    @property
    def context(self) -> int:
        """Shortest maximum sequence length of all roles."""
        return int(self.facts["context"])

    @property
    def stop_tokens(self) -> list[int]:
        return list(self.facts["stop_tokens"])

    @property
    def template_day(self) -> date | None:
        """The day that the target's chat template writes; None where it writes none."""
        return day_of(self.facts)

    @property
    def tokenizer(self) -> Path:
        return self.directory / "tokenizer"

    @property
    def cache_bytes_per_token(self) -> float | None:
        """KV-cache bytes of one token of one request, for both models; None if the target's are not known."""
        by_model = [self.facts["target"]["cache_bytes_per_token"], self.facts["draft"]["cache_bytes_per_token"]]
        return None if None in by_model else float(sum(filter(None, by_model)))

    def serving_bytes(self, draft_bytes: float, batch: int, context: int) -> float | None:
        """Bytes of the target's and a draft's weights, and of the KV cache of `batch` requests with `context` tokens. None for a
        served target, whose weights are not known here."""
        weights = self.facts["target"]["bytes"]
        if weights is None:
            return None
        return float(weights) + draft_bytes + (self.cache_bytes_per_token or 0.0) * batch * context

    def path(self, role: str) -> Path:
        return role_directory(self.directory, role, self.places)

    def dtype(self, role: str) -> str:
        return cast(ModelFacts, cast(dict[str, Any], self.facts)[role])["dtype"]


def day_of(facts: PairFacts) -> date | None:
    """What `Pair.template_day` is, for facts."""
    return date.fromisoformat(facts["template_day"]) if "template_day" in facts else None


def read_pair(artifact: Path, places: Places) -> Pair:
    """The pair of a finished pair artifact; `places`: where the models of the run that reads it lie."""
    return Pair(artifact, read_facts(artifact), places)


def read_facts(artifact: Path) -> PairFacts:
    """The content of `pair.json`. UnderstudyError naming the file if it is missing or damaged."""
    return PAIR.read(artifact / PAIR_FILE)


def role_directory(artifact: Path, role: str, places: Places) -> Path:
    """The directory of a role's model: in the artifact if the stage made it, otherwise where it lies now (a model may have been
    moved since the artifact was made; its digest is the same)."""
    made = artifact / role
    return made if role not in places or made.is_dir() else places[role].directory()
