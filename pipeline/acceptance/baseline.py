"""A draft's examination as a file that other drafts are compared with: `understudy check --update-baseline` writes it.

It holds only what a paired comparison needs, so it is small enough to be committed to a repository. No I/O, no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile import PromptCounts, counts_from_json, counts_json
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.pair import Dtype
from pipeline.drafts.kinds import PLAIN, KindName
from pipeline.errors import UsageError
from pipeline.store.files import content_key
from pipeline.store.parsing import Text, parse, stored

SCHEMA = 5


@stored
class Conditions:
    """What two examinations must have in common to be compared."""

    completions: Text  # key of the generate artifact
    completions_sha256: Text  # digest of the content of its files
    target: Text  # digest of the model that generated them
    target_dtype: Text
    sampling: dict[str, Any]
    evaluate: dict[str, Any]  # the settings of EvaluateConfig that decide counts and interval
    dtype: Dtype  # of the draft

    @property
    def settings(self) -> EvaluateConfig:
        """ValueError if `evaluate` is damaged."""
        return parse(_SETTINGS, self.evaluate)


@dataclass(frozen=True, kw_only=True)
class ExaminedCounts:
    """A draft's counts on the examination completions, and what they depend on."""

    counts: Sequence[PromptCounts]
    conditions: Conditions
    hardware: str  # class of the device ("cpu x86_64 AVX512"); figures in low precision may differ between classes
    digest: str  # of the draft
    kind: KindName = PLAIN.name
    trained_on: frozenset[str]  # ids of the examined prompts that the draft was trained on


@stored
class _Draft:
    digest: Text
    trained_on: list[Text]
    kind: KindName = PLAIN.name  # files from before there were others do not state it


@stored
class _File:
    schema: int
    conditions: Conditions
    hardware: Text
    draft: _Draft
    sha256: Text  # of everything else in the file
    prompts: list[Any]


_FILE, _SETTINGS = TypeAdapter(_File), TypeAdapter(EvaluateConfig)


def baseline_json(examined: ExaminedCounts) -> dict[str, Any]:
    """The content of a baseline file."""
    rows = [_short(row) for row in counts_json(examined.counts)]
    head = {
        "schema": SCHEMA,
        "conditions": asdict(examined.conditions),
        "hardware": examined.hardware,
        "draft": {"digest": examined.digest, "trained_on": sorted(examined.trained_on), "kind": examined.kind},
    }
    return {**head, "sha256": content_key([head, rows]), "prompts": rows}


def _check_unaltered(raw: Mapping[str, Any]) -> None:
    """ValueError for a file that was edited or merged by hand. It stops accidents: whoever forges a file can forge the digest."""
    head = {name: value for name, value in raw.items() if name not in ("sha256", "prompts")}
    if raw["sha256"] != content_key([head, raw["prompts"]]):
        raise ValueError("it was altered after it was written: its SHA-256 differs")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Lists by draft length or position bin with six significant digits: they are most of the file, and the check reads none of
    them. What it compares keeps every digit."""
    segments = {name: _short(counts) for name, counts in row.get("segments", {}).items()}
    return {
        name: [float(f"{number:.6g}") for number in value] if isinstance(value, list) else value
        for name, value in row.items()
        if name != "segments"
    } | ({"segments": segments} if segments else {})


def read_baseline(raw: Any, where: str) -> ExaminedCounts:
    """The content of a baseline file; UsageError naming `where` if it is not one."""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or schema != SCHEMA:
        raise UsageError(
            f"{where}: a baseline of schema {schema!r}, and this version reads schema {SCHEMA}; "
            f"write it again with `understudy check --draft DRAFT --baseline {where} --update-baseline`"
        )
    try:
        file = parse(_FILE, raw)
        _check_unaltered(raw)
        counts = CountTable.of(counts_from_json(file.prompts))
        if counts and counts.gammas != file.conditions.settings.max_gamma:
            raise ValueError(
                f"rows of {counts.gammas} draft lengths, and max_gamma {file.conditions.settings.max_gamma}"
            )
        return ExaminedCounts(
            counts=counts,
            conditions=file.conditions,
            hardware=file.hardware,
            digest=file.draft.digest,
            kind=file.draft.kind,
            trained_on=frozenset(file.draft.trained_on),
        )
    except ValueError as error:
        raise UsageError(f"{where}: not a complete baseline ({error}); write it again with --update-baseline") from None
