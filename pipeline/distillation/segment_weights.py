"""The weight of each segment in the loss, so that it has a given share of it. Pure."""

from collections.abc import Iterable, Mapping

from pipeline.distillation.segment_labels import segment_tokens
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion

_ROUNDING = 1e-6


def segment_weights(completions: Iterable[StoredCompletion], shares: Mapping[str, float]) -> dict[str, float]:
    """The weight of a token by its segment's name. The segments of `shares` get these shares of all weight, the others divide
    the rest as they divide tokens; the mean weight of a token is 1. Empty for no shares.

    UsageError for a segment that no completion has, and unless the shares sum to 1 exactly when every segment has one.
    """
    if not shares:
        return {}
    tokens = segment_tokens(completions)
    if unknown := sorted(set(shares) - set(tokens)):
        found = ", ".join(sorted(tokens)) or "none"
        raise UsageError(
            f"distill.segment_shares: no train completion has the segment '{unknown[0]}'; segments are: {found} "
            "(docs/examination.md has how they are found)"
        )
    left = 1 - sum(shares.values())
    others = {name: count for name, count in tokens.items() if name not in shares}
    if bool(others) != (left > _ROUNDING):
        raise UsageError(
            f"distill.segment_shares sum to {1 - left:g}, and "
            + (f"there are other segments ({', '.join(sorted(others))})" if others else "there is no other segment")
            + "; they must sum to 1 if every segment is named, otherwise to less"
        )
    total, rest = tokens.total(), sum(others.values())
    of_others = {name: left * count / rest for name, count in others.items()}
    return {name: share * total / tokens[name] for name, share in (dict(shares) | of_others).items()}
