"""Why the gate must refuse, whatever the draft: known from config, pair or number of prompts, before anything is paid.

The functions `of_...` return one line for each reason: what, and what to do. Torch-free.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pipeline.acceptance.schema import unit_name
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress

EVEN_IF_REFUSED = "--even-if-refused"
_SURE = 1.645  # standard deviations: a split is as large with a probability of 95%
_HOPELESS = 2.326  # or of 1%
_MORE_PROMPTS = (
    "add prompts (turns of a chat count as one), raise that share, or lower gate.min_prompts_per_domain; gate.min_domain_share "
    "exempts small domains"
)
_MORE_ROWS = "these are rows since corpus.since: wait until the log has more, or set it to an earlier time; else "
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of a weight


def stop_or_warn(refusals: Sequence[str], progress: Progress, go_on: bool) -> None:
    """UsageError with the first of the `refusals`, if there are any; with `go_on`, warnings."""
    if refusals and not go_on:
        more = f" (and {len(refusals) - 1} more such reasons)" if len(refusals) > 1 else ""
        raise UsageError(f"{refusals[0]}{more}; {EVEN_IF_REFUSED} runs the stages all the same")
    for reason in refusals:
        progress.warn(reason)


def of_config(config: Config) -> list[str]:
    """Rules that this config cannot meet."""
    reasons, served = list[str](), config.gate.served_target
    dtype = "float32" if config.pair.is_reference else config.pair.target.dtype
    if not config.evaluate.crosscheck_prompts:
        reasons.append(
            "gate: it will refuse, because evaluate.crosscheck_prompts = 0 makes its rule crosscheck inconclusive; set it to 4"
        )
    if served is not None and served.dtype not in (None, dtype):
        reasons.append(
            f"gate: it will refuse, because gate.served_target.dtype is {served.dtype} and pair.target.dtype is {dtype}; "
            "set both to what the deployment serves"
        )
    return reasons


def of_pair(config: Config, facts: Mapping[str, Any]) -> list[str]:
    """Rules that no draft of this pair can meet. `facts`: the content of `pair.json`."""
    served, target = config.gate.served_target, facts.get("target")
    reasons = _of_sizes(config, facts)
    if served is None or served.revision is None or not target:
        return reasons
    if served.revision in (target["revision"], target["digest"]):
        return reasons
    return [
        f"gate: it will refuse, because gate.served_target.revision is {served.revision} and the target is "
        f"{target['revision'] or target['digest']}; set both to what the deployment serves",
        *reasons,
    ]


def _of_sizes(config: Config, facts: Mapping[str, Any]) -> list[str]:
    """Limits of size that the pair exceeds. Training leaves a draft's size as it is; a quantized variant, which is smaller, is
    chosen only where the gate has its step times."""
    gate, reasons = config.gate, list[str]()
    smallest = None if set(gate.profile) - {"unquantized"} else _draft_bytes(facts.get("draft"))
    advice = "raise the limit, take a smaller draft, or give the gate the step times of a quantized one (gate.profile)"
    if gate.max_draft_megabytes is not None and smallest is not None and smallest > 1e6 * gate.max_draft_megabytes:
        reasons.append(
            f"gate: it will refuse, because gate.max_draft_megabytes is {gate.max_draft_megabytes:g} and the draft has "
            f"{smallest / 1e6:,.2f} MB; {advice}"
        )
    target = facts.get("target") or {}
    if gate.max_memory_megabytes is None or target.get("bytes") is None:
        return reasons
    batch, context = gate.served
    roles = [target, facts.get("draft") or {}]
    cache = batch * context * sum(role.get("cache_bytes_per_token") or 0 for role in roles)
    needed_bytes = target["bytes"] + (smallest or 0) + cache
    if needed_bytes > 1e6 * gate.max_memory_megabytes:
        reasons.append(
            f"gate: it will refuse, because gate.max_memory_megabytes is {gate.max_memory_megabytes:g} and weights and KV caches "
            f"of {batch} requests with {context:,} tokens take {needed_bytes / 1e6:,.0f} MB; raise the limit, or lower "
            "gate.load.max_batch or gate.load.context"
        )
    return reasons


def _draft_bytes(draft: Mapping[str, Any] | None) -> int | None:
    """The size of the trained draft, at least: it is saved in the number format of `pair.draft.dtype`."""
    if draft is None:
        return None
    return int(min(draft["bytes"], draft["parameters"] * _BYTES.get(draft["dtype"], 0)))


def of_prompts(config: Config, prompts: Mapping[str, int]) -> list[str]:
    """Domains with too few prompts. `prompts`: by domain, before near-duplicates are removed and prompts are split; the turns of
    a conversation are one."""
    least, share = config.gate.min_prompts_per_domain, config.corpus.splits.examination
    return [
        f"corpus: domain '{domain}' has {count:,} different prompts, about {count * share:,.0f} of them for examination, and the "
        f"gate needs {least} (gate.min_prompts_per_domain), so it will refuse: about {needed(least, share):,} prompts are needed "
        f"with corpus.splits.examination = {share:g}; {_more_prompts(config)}"
        for domain, count in prompts.items()
        if _most(count, share) < least
    ]


def near(config: Config, prompts: Mapping[str, int]) -> list[str]:
    """Domains whose examination prompts may or may not be enough, which the split and near-duplicates decide. `prompts`: as for
    `of_prompts`, which has the hopeless ones."""
    least, share = config.gate.min_prompts_per_domain, config.corpus.splits.examination
    return [
        f"corpus: domain '{domain}' has {count:,} different prompts, about {count * share:,.0f} of them for examination, and the "
        f"gate needs {least} (gate.min_prompts_per_domain): it may refuse, since near-duplicates are dropped too; about "
        f"{needed(least, share):,} prompts are enough; {_more_prompts(config)}"
        for domain, count in prompts.items()
        if _most(count, share) >= least and count < needed(least, share)
    ]


def of_corpus(
    config: Config, domains: Mapping[str, Mapping[str, Any]], conversations: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    """Domains with fewer examination prompts than the gate needs. `domains`: prompts by domain and split. `conversations`: of the
    examination prompts, of the domains that have fewer conversations than prompts."""
    least, share = config.gate.min_prompts_per_domain, config.corpus.splits.examination
    judged = config.gate.min_domain_share * sum(counts["examination"] for counts in domains.values())
    return [
        f"corpus: domain '{domain}' has {counts['examination']} examination prompts"
        f"{f' of {conversations[domain]} conversations' if domain in conversations else ''} and the gate needs {least}, so it "
        f"will refuse: about {needed(least, share):,} {unit_name(conversations.get(domain))} of the domain are needed with "
        f"corpus.splits.examination = {share:g}; {_more_prompts(config)}"
        for domain, counts in domains.items()
        if judged <= counts["examination"] and conversations.get(domain, counts["examination"]) < least
    ]


def _more_prompts(config: Config) -> str:
    return (_MORE_ROWS if config.corpus.since else "") + _MORE_PROMPTS


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
