"""The content of `acceptance.json` above its rows: a draft's examination as figures. Imports no numpy, because reports read it.

Figures by draft length are dictionaries from gamma. `pipeline/acceptance/profile.py` has the rows, one per prompt.
"""

from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from pipeline.config.evaluate import ConventionName, Drafting
from pipeline.drafts.kinds import PLAIN, KindName
from pipeline.errors import BrokenDraft
from pipeline.speculation.settings import SamplingFields
from pipeline.store.parsing import Count, CountKey, Flag, Number, Text, format_of, stored
from pipeline.store.row_files import read_head

SCHEMA = 5
FILE = "acceptance.json"
ROWS = "prompts"  # the key of the rows

DEPLOYED, GREEDY = "deployed", "greedy"  # lists of rows


@stored(kw_only=False)
class Figure:
    """An estimate with its confidence bounds, which are None where they are not known. `conversations`: the number of independent
    units, if it is smaller than that of the prompts."""

    value: Number
    low: Number | None
    high: Number | None
    prompts: Count
    conversations: Count | None = None

    @property
    def units(self) -> int:
        """The number of independent units."""
        return self.prompts if self.conversations is None else self.conversations


def counted(prompts: int, conversations: int | None) -> str:
    """What figures are over, such as `60 prompts`, or `60 prompts of 20 conversations` where a conversation has several."""
    of_prompts = f"{prompts:,} prompt{'' if prompts == 1 else 's'}"
    if conversations is None:
        return of_prompts
    return f"{of_prompts} of {conversations:,} conversation{'' if conversations == 1 else 's'}"


def units_needed(units: int, conversations: int | None) -> str:
    """How many are needed, beside `counted`: `40`, or `40 conversations`."""
    return f"{units:,}" if conversations is None else f"{units:,} conversations"


def unit_name(conversations: int | None) -> str:
    """What independent units are, in the plural."""
    return "prompts" if conversations is None else "conversations"


@stored(kw_only=False)
class Bounds:
    """The bounds of an interval; None where there is none."""

    low: Number | None
    high: Number | None


@stored(kw_only=False)
class Rounds:
    """Rounds of one decode of all examined completions: expectation, and the standard deviation from random acceptance."""

    expected: Number
    standard_deviation: Number


@stored(kw_only=False)
class PositionBin:
    """Acceptance at the positions from `start` to before `end` (None: no end), over the prompts that reach them."""

    start: Count
    end: Count | None
    tokens: Count
    acceptance_rate: Figure


@stored
class SegmentFigures:
    """Figures over the tokens of one segment, such as thinking, of the prompts that have it."""

    prompts: Count
    tokens: Count
    share: Number  # of all tokens
    acceptance_rate: Figure
    tokens_per_target_call: dict[CountKey, Figure]  # of the rounds that begin in it; no prefill counts
    begins: Count  # tokens with which it begins after another segment
    acceptance_of_begins: Figure | None  # None without such tokens


@stored
class Figures:
    """All figures of one set of completions. Lists are by position in the draft, at the largest gamma."""

    prompts: Count
    tokens: Count
    acceptance_rate: Figure  # of prompt-lookup: accepted / examined tokens
    tokens_per_target_call: dict[CountKey, Figure]
    mean_acceptance_length: dict[CountKey, Number]  # 1 + accepted / rounds
    rounds: dict[CountKey, Rounds]
    iid_error: dict[CountKey, Number]  # Omega by the iid formula, minus the exact Omega
    per_position_acceptance: list[Number]
    conditional_acceptance: list[Number]  # given that the token before was accepted; ends where none was
    loop_share: Number
    acceptance_rate_without_loops: Number | None  # None where every token is in a loop, and for prompt-lookup
    by_output_position: list[PositionBin] | None  # None for prompt-lookup
    by_context_length: list[PositionBin] | None
    by_segment: dict[Text, SegmentFigures] = field(default_factory=dict)  # empty where all tokens are of one segment


@stored(kw_only=False)
class DomainFigures:
    """Figures over the prompts of one domain; tokens per target call at `evaluate.gamma` only."""

    prompts: Count
    acceptance_rate: Figure
    tokens_per_target_call: dict[CountKey, Figure]


@stored(kw_only=False)
class SamplingSettings:
    """Sampling settings at which completions were generated."""

    temperature: Number
    top_k: Count
    top_p: Number
    min_p: Number

    @classmethod
    def of(cls, settings: SamplingFields) -> "SamplingSettings":
        """The settings of a config section, or of `Sampling`."""
        return cls(settings.temperature, settings.top_k, settings.top_p, settings.min_p)


@stored
class SamplingFigures(Figures):
    """Figures at one of `generate.examination_samplings`. `prompts_as`: the name of its rows."""

    prompts_as: Text
    sampling: SamplingSettings


@stored(kw_only=False)
class ExaminedDraft:
    """The draft. A kind without weights has no digest."""

    # 0.1.0 wrote `model` for a plain draft
    kind: Annotated[KindName, BeforeValidator(lambda name: PLAIN.name if name == "model" else name)]
    bytes: Count
    parameters: Count
    digest: Text | None = None


@stored
class ProfileConditions:
    """What the figures depend on, beside the draft."""

    completions: Text  # key
    convention: ConventionName
    draft_sampling: Drafting
    sampling: SamplingSettings  # of the deployment
    dtype: Text
    confidence: Number
    gamma: Count
    max_gamma: Count
    batch_tokens: Count


@stored
class Difference:
    """The place where a decode differs from the examination: in a token of the target, or in the end of a round of the draft."""

    prompt: Text
    position: Count
    of: Literal["target", "draft"]
    gap: Number  # between the two logits
    round: Count | None = None  # of the draft


@stored(kw_only=False)
class DifferentCompletion:
    """A completion whose stored log p is not that of the target. `difference`: mean of its tokens, in nats."""

    prompt: Text
    difference: Number


@stored
class LogPCheck:
    """Stored log p compared with a teacher-forced pass of the target."""

    completions: Count
    largest_difference: Number
    tolerance: Number
    different: list[DifferentCompletion]
    agrees: Flag


@stored
class CrossCheck:
    """A greedy decode compared with the prediction of the examination."""

    prompts: Count
    tokens: Count
    gamma: Count
    rounds_predicted: Count
    rounds_decoded: Count
    differences: list[Difference]
    exact_arithmetic: Flag
    log_p: LogPCheck
    agrees: Flag


@stored(
    name="acceptance profile",
    schema=SCHEMA,
    remedy="examine the draft again (`understudy run` with the same config)",
)
class AcceptanceProfile:
    """The examination of one draft. One that cannot be examined has `broken`, the reason, and no figures."""

    draft: ExaminedDraft
    conditions: ProfileConditions
    broken: Text | None = None
    headline: Figures | None = None  # at the deployment's sampling settings
    greedy: Figures | None = None  # at temperature 0
    samplings: list[SamplingFigures] = field(default_factory=list)
    domains: dict[Text, DomainFigures] = field(default_factory=dict)
    crosscheck: CrossCheck | None = None

    @property
    def examined(self) -> tuple[Figures, Figures]:
        """`headline` and `greedy`. BrokenDraft for a draft without figures."""
        if self.headline is None or self.greedy is None:
            raise BrokenDraft(self.broken or "the draft has no figures")
        return self.headline, self.greedy


def parse_profile(raw: Any, where: str) -> AcceptanceProfile:
    """The content of an `acceptance.json`, whose rows are not looked at. UnderstudyError naming `where` if it is not one."""
    head = {name: value for name, value in raw.items() if name != ROWS} if isinstance(raw, dict) else raw
    return format_of(AcceptanceProfile).parse(head, where)


def read_profile(examination: Path) -> AcceptanceProfile:
    """The figures in an `evaluate` artifact; its rows are not read. UnderstudyError naming the file if it is damaged."""
    path = examination / FILE
    return parse_profile(read_head(path, ROWS, format_of(AcceptanceProfile)), str(path))


def figures_of(figures: Figures) -> dict[str, Any]:
    """The figures by name, for a class that adds fields to them."""
    return {item.name: getattr(figures, item.name) for item in fields(Figures)}
