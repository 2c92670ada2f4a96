"""What is known of a config once a stage is done: settings that it decides, and mistakes that only its result shows.

It is found at every run, also where the artifact is in the store already, so nothing of it is in an artifact. Torch-free.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.corpus.answers import differing, settings_text
from pipeline.corpus.splits import SPLITS
from pipeline.errors import UsageError
from pipeline.models.stored_pair import read_facts
from pipeline.running import certain_refusals
from pipeline.running.pair_checks import apply_pair
from pipeline.store.artifacts import MANIFEST, read_manifest
from pipeline.store.parsing import Count, Format, Number, Text

# Recorded answers, counted by the sampling settings that their rows state.
STATED = Format(name="manifest of a corpus", content=list[tuple[dict[Text, Number], Count]])
DOMAINS = Format(
    name="manifest of a corpus",
    content=dict[Text, dict[Text, Count]],
    check=lambda settings: _check_splits(settings),
)
CONVERSATIONS = Format(name="manifest of a corpus", content=dict[Text, Count])


@dataclass(frozen=True, kw_only=True)
class After:
    """The config with what the stage decides, and what people should know."""

    config: Config
    notes: list[str]
    refusals: list[str]  # why the gate must refuse


def after_stage(stage: str, config: Config, artifact: Path) -> After:
    """Raises UsageError, which names the key, for a setting that cannot work with the stage's result."""
    action = _AFTER.get(stage)
    return action(config, artifact) if action else After(config=config, notes=[], refusals=[])


def _check_splits(domains: Mapping[str, Mapping[Any, int]]) -> None:
    """ValueError for a domain whose prompts are not counted in every split."""
    if any(set(counts) != set(SPLITS) for counts in domains.values()):
        raise ValueError(f"domains: each needs {', '.join(SPLITS)}")


def _after_pair(config: Config, artifact: Path) -> After:
    facts = read_facts(artifact)
    completed, notes = apply_pair(config, facts)
    return After(config=completed, notes=notes, refusals=certain_refusals.of_pair(config, facts))


def _after_corpus(config: Config, artifact: Path) -> After:
    """Domains that the training or the gate needs: known here, so not an error after hours of generation."""
    notes = read_manifest(artifact).notes
    domains = DOMAINS.parse(notes.get("domains", {}), str(artifact / MANIFEST))
    conversations = CONVERSATIONS.parse(notes.get("conversations", {}), str(artifact / MANIFEST))
    stated = STATED.parse(notes.get("stated_sampling", []), str(artifact / MANIFEST))
    if config.distill.domain_shares:
        from pipeline.distillation.mixing import check_shares

        check_shares([name for name, counts in domains.items() if counts.get("train")], config.distill.domain_shares)
    other = _other_sampling(stated, config)
    return After(config=config, notes=other, refusals=certain_refusals.of_corpus(config, domains, conversations))


def _other_sampling(stated: Sequence[tuple[Mapping[str, float], int]], config: Config) -> list[str]:
    """A line where recorded answers were sampled with other settings than `sampling`. `stated`: what their rows state, with the
    number of answers. UsageError where all were: the target would answer all prompts again, which has its price."""
    reasons = Counter[str]()
    for settings, count in stated:
        reasons[differing(settings, config.sampling)] += count
    total, right = reasons.total(), reasons.pop("", 0)
    if not reasons:
        return []
    listed = ", ".join(f"{count:,} were {reason}" for reason, count in reasons.most_common(5))
    if not right:
        raise UsageError(
            f"none of {total:,} recorded answers can be used: {listed}, and `sampling` is "
            f"{settings_text(config.sampling.model_dump())}; set it to what the deployment used, or "
            "corpus.sources.N.use_answers to false"
        )
    return [
        f"corpus: {total - right:,} of {total:,} recorded answers are not used, because they were sampled otherwise than "
        f"`sampling` states: {listed}; the target answers these prompts again"
    ]


_AFTER: dict[str, Callable[[Config, Path], After]] = {"pair": _after_pair, "corpus": _after_corpus}
