"""How much of the training each domain gets. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion

_ROUNDING = 1e-6


def mix(spoken: Sequence[StoredCompletion], shares: Mapping[str, float], seed: int) -> list[StoredCompletion]:
    """`spoken` with the domains of `shares` making up those shares of it; all completions of the other domains are there once.

    A share that is more than a domain has repeats its completions, one that is less takes some, chosen by `seed`. Where every
    domain is named, none is repeated. Raises UsageError for a domain that is not there, and for shares that leave nothing to
    the domains that are not named, or something to none.
    """
    if not shares:
        return list(spoken)
    by_domain: dict[str, list[StoredCompletion]] = {}
    for item in spoken:
        by_domain.setdefault(item.domain, []).append(item)
    for domain in shares:
        if domain not in by_domain:
            raise UsageError(
                f"distill.shares: no train prompt is of domain '{domain}'; there are {', '.join(sorted(by_domain))}"
            )
    others = [item for item in spoken if item.domain not in shares]
    left = 1 - sum(shares.values())
    if bool(others) != (left > _ROUNDING):
        raise UsageError(
            f"distill.shares sum to {1 - left:g}, and "
            + (f"{len(others)} completions are of other domains" if others else "no other domain is there")
            + "; shares sum to 1 exactly where every domain is named"
        )
    if others:
        total = len(others) / left
    else:
        total = min(len(by_domain[domain]) / share for domain, share in shares.items())
    mixed = others
    for number, (domain, share) in enumerate(sorted(shares.items())):
        mixed += _take(by_domain[domain], max(1, round(share * total)), [seed, number])
    return mixed


def _take(items: Sequence[StoredCompletion], count: int, seed: Sequence[int]) -> list[StoredCompletion]:
    """Whole passes over `items`, then some of them."""
    passes, rest = divmod(count, len(items))
    chosen = np.random.default_rng(seed).permutation(len(items))[:rest]
    return [*items] * passes + [items[number] for number in sorted(chosen)]
