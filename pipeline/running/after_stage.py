"""What is known of a config once a stage is done: settings that it decides, and mistakes that only its result shows.

It is found at every run, also where the artifact is in the store already, so nothing of it is in an artifact. Torch-free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.models.stored_pair import PAIR_FILE
from pipeline.running.pair_checks import apply_pair
from pipeline.store.artifacts import read_manifest
from pipeline.store.files import read_json


@dataclass(frozen=True, kw_only=True)
class After:
    """The config with what the stage decides, and what people should know."""

    config: Config
    notes: list[str]
    warnings: list[str]


def after_stage(stage: str, config: Config, artifact: Path) -> After:
    """Raises UsageError, which names the key, for a setting that cannot work with the stage's result."""
    found = _AFTER.get(stage)
    return found(config, artifact) if found else After(config=config, notes=[], warnings=[])


def _after_pair(config: Config, artifact: Path) -> After:
    completed, notes = apply_pair(config, read_json(artifact / PAIR_FILE))
    return After(config=completed, notes=notes, warnings=[])


def _after_corpus(config: Config, artifact: Path) -> After:
    """Domains that the training or the gate needs: known here, so not an error after hours of generation."""
    domains = read_manifest(artifact)["notes"].get("domains", {})
    if config.distill.domain_shares:
        from pipeline.distillation.mixing import check_shares

        check_shares([name for name, counts in domains.items() if counts.get("train")], config.distill.domain_shares)
    return After(config=config, notes=[], warnings=small_domains(domains, config.gate.min_prompts_per_domain))


def small_domains(domains: Mapping[str, Mapping[str, Any]], least: int) -> list[str]:
    """A line for each domain with fewer examination prompts than the gate needs. `domains`: prompts by domain and split."""
    return [
        f"corpus: domain '{domain}' has {counts['examination']} examination prompts and the gate needs {least}, so it will "
        "refuse; add prompts, or lower gate.min_prompts_per_domain"
        for domain, counts in domains.items()
        if counts["examination"] < least
    ]


_AFTER: dict[str, Callable[[Config, Path], After]] = {"pair": _after_pair, "corpus": _after_corpus}
