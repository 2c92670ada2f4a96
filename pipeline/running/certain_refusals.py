"""Why the gate must refuse, whatever the draft: known from config, pair or number of prompts, before anything is paid.

The functions `of_...` return one line for each reason: what, and what to do. Torch-free.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress

EVEN_IF_REFUSED = "--even-if-refused"
_SURE = 1.645  # standard deviations: a split is as large with a probability of 95%
_HOPELESS = 2.326  # or of 1%


def stop_or_warn(refusals: Sequence[str], progress: Progress, go_on: bool) -> None:
    """UsageError with the first of the `refusals`, if there are any; with `go_on`, warnings."""
    if refusals and not go_on:
        more = f" (and {len(refusals) - 1} more such reasons)" if len(refusals) > 1 else ""
        raise UsageError(f"{refusals[0]}{more}; {EVEN_IF_REFUSED} runs the stages all the same")
    for reason in refusals:
        progress.warn(reason)


def of_config(config: Config) -> list[str]:
    """Rules that this config cannot meet."""
    found, served = list[str](), config.gate.served_target
    dtype = "float32" if config.pair.is_reference else config.pair.target.dtype
    if not config.evaluate.crosscheck_prompts:
        found.append(
            "gate: it will refuse, because evaluate.crosscheck_prompts = 0 makes its rule crosscheck inconclusive; set it to 4"
        )
    if served is not None and served.dtype not in (None, dtype):
        found.append(
            f"gate: it will refuse, because gate.served_target.dtype is {served.dtype} and pair.target.dtype is {dtype}; "
            "set both to what the deployment serves"
        )
    return found


def of_pair(config: Config, facts: Mapping[str, Any]) -> list[str]:
    """Rules that no draft of this pair can meet. `facts`: the content of `pair.json`."""
    served, target = config.gate.served_target, facts.get("target")
    if served is None or served.revision is None or not target:
        return []
    if served.revision in (target["revision"], target["digest"]):
        return []
    return [
        f"gate: it will refuse, because gate.served_target.revision is {served.revision} and the target is "
        f"{target['revision'] or target['digest']}; set both to what the deployment serves"
    ]


def of_prompts(config: Config, prompts: Mapping[str, int]) -> list[str]:
    """Domains with too few prompts. `prompts`: by domain, before near-duplicates are removed and prompts are split."""
    least, share = config.gate.min_prompts_per_domain, config.corpus.splits.examination
    return [
        f"corpus: domain '{domain}' has {count:,} different prompts, about {count * share:,.0f} of them for examination, and the "
        f"gate needs {least} (gate.min_prompts_per_domain), so it will refuse: about {needed(least, share):,} prompts are needed "
        f"with corpus.splits.examination = {share:g}; add prompts, raise that share, or lower gate.min_prompts_per_domain"
        for domain, count in prompts.items()
        if _most(count, share) < least
    ]


def of_corpus(config: Config, domains: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Domains with fewer examination prompts than the gate needs. `domains`: prompts by domain and split."""
    least, share = config.gate.min_prompts_per_domain, config.corpus.splits.examination
    return [
        f"corpus: domain '{domain}' has {counts['examination']} examination prompts and the gate needs {least}, so it will "
        f"refuse: about {needed(least, share):,} prompts of the domain are needed with corpus.splits.examination = {share:g}; "
        "add prompts, raise that share, or lower gate.min_prompts_per_domain"
        for domain, counts in domains.items()
        if counts["examination"] < least
    ]


def needed(least: int, share: float) -> int:
    """Prompts of which, with a probability of 95%, at least `least` are in a split with this share (normal approximation of the
    binomial distribution)."""
    root = (_SURE * math.sqrt(1 - share) + math.sqrt(_SURE**2 * (1 - share) + 4 * (least - 0.5))) / (
        2 * math.sqrt(share)
    )
    return math.ceil(root**2)


def _most(count: int, share: float) -> float:
    """The size of a split with this share of `count` prompts that is exceeded with a probability of 1% (as above)."""
    return 0.5 + count * share + _HOPELESS * math.sqrt(count * share * (1 - share))
