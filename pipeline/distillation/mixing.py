"""How often each completion is in the training data: the shares of the domains. Pure."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import chosen, column

_ROUNDING = 1e-6


def mix(completions: Sequence[StoredCompletion], shares: Mapping[str, float], seed: int) -> Sequence[StoredCompletion]:
    """`completions` resampled so that the domains of `shares` have these shares; the other domains are used once each.

    If a domain has fewer completions than its share needs, they are repeated; if it has more, a subset is chosen by `seed`. If
    every domain has a share, none is repeated. Raises UsageError for an unknown domain, and unless the shares sum to 1 exactly
    when every domain has one.
    """
    if not shares:
        return completions
    domains, domain_N = np.unique(column(completions, "domain"), return_inverse=True)
    names = [domain.decode() for domain in domains.tolist()]
    check_shares(names, shares)
    by_domain = {name: np.flatnonzero(domain_N == number) for number, name in enumerate(names)}
    others = np.flatnonzero(np.isin(domain_N, [number for number, name in enumerate(names) if name not in shares]))
    if len(others):
        total = len(others) / (1 - sum(shares.values()))
    else:
        total = min(len(by_domain[domain]) / share for domain, share in shares.items())
    mixed = [others]
    for number, (domain, share) in enumerate(sorted(shares.items())):
        mixed.append(_repeat_or_sample(by_domain[domain], max(1, round(share * total)), [seed, number]))
    return chosen(completions, np.concatenate(mixed))


def check_shares(domains: Collection[str], shares: Mapping[str, float]) -> None:
    """UsageError unless train prompts of `domains` can be mixed by `shares`."""
    for domain in shares:
        if domain not in domains:
            raise UsageError(
                f"distill.domain_shares: no train prompt has domain '{domain}'; domains are {', '.join(sorted(domains))}"
            )
    others, left = sorted(set(domains) - set(shares)), 1 - sum(shares.values())
    if shares and bool(others) != (left > _ROUNDING):
        raise UsageError(
            f"distill.domain_shares sum to {1 - left:g}, and "
            + (f"there are other domains ({', '.join(others)})" if others else "there is no other domain")
            + "; they must sum to 1 if every domain is named, otherwise to less"
        )


def _repeat_or_sample(places: NDArray[np.intp], count: int, seed: Sequence[int]) -> NDArray[np.intp]:
    """Full passes over `places`, then a random subset."""
    passes, rest = divmod(count, len(places))
    subset = np.random.default_rng(seed).permutation(len(places))[:rest]
    return np.concatenate([np.tile(places, passes), places[np.sort(subset)]])
