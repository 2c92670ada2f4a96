"""A share of the completions, for a point of the learning curve. Pure."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import chosen, column


def subset(completions: Sequence[StoredCompletion], share: float) -> Sequence[StoredCompletion]:
    """The completions of a share of each domain's prompts. The subset of a smaller share is contained in that of a larger one."""
    id_N, domain_N = column(completions, "id"), column(completions, "domain")
    is_chosen_N = np.zeros(len(id_N), dtype=bool)
    for domain in np.unique(domain_N):
        prompts = np.unique(id_N[domain_N == domain])
        is_chosen_N |= np.isin(id_N, _ordered(prompts)[: max(1, round(share * len(prompts)))])
    return chosen(completions, np.flatnonzero(is_chosen_N))


def _ordered(prompts: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """By a digest of each, so that the order of two does not depend on the others."""
    digests = b"".join(hashlib.sha256(b"learning curve " + prompt).digest() for prompt in prompts.tolist())
    words_PW = np.frombuffer(digests, dtype=">u8").reshape(len(prompts), -1)
    return prompts[np.lexsort(words_PW.T[::-1])]
