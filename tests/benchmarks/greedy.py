"""Losslessness at temperature 0: 10,000 prompts x 64 tokens, speculative against plain, by dtype."""

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import write

PROMPTS, TOKENS, GAMMA = 10_000, 64, 5
# Batches whose passes the compiled forward accepts, where the dtype has one: it is faster, and people decode with it.
BATCHES = {"float64": 200, "float32": 4, "bfloat16": 16}


def main() -> None:
    from pipeline.examination.cross_check import NEAR_TIE

    figure = {dtype: _compare(dtype, batch) for dtype, batch in BATCHES.items()}
    settings = {"prompts": PROMPTS, "tokens": TOKENS, "gamma": GAMMA, "near_tie": NEAR_TIE}
    write("greedy", "python -m tests.benchmarks greedy", {**figure, "settings": settings})


def _compare(dtype: str, batch: int) -> dict[str, Any]:
    """How many texts are equal; for the others, the position of the first divergence and the logit gap there."""
    import torch

    from pipeline.examination.cross_check import first_divergence
    from pipeline.speculation.batch import Request
    from pipeline.speculation.settings import GREEDY
    from tests.benchmarks.drafts import decoder
    from tests.benchmarks.refpair import find_pair, windows

    pair = find_pair()
    target, draft = (model.to(getattr(torch, dtype)) for model in pair.load("float32"))
    plain, speculative = (decoder(target, draft, pair.vocabulary, gamma, GREEDY) for gamma in (0, GAMMA))
    prompts, equal, rounds, partings = windows(pair, PROMPTS, 24, seed=2), 0, 0, []
    for begin in range(0, PROMPTS, batch):
        requests = [Request(prompt, TOKENS, 0) for prompt in prompts[begin : begin + batch]]
        for request, one, other in zip(requests, plain.decode(requests), speculative.decode(requests), strict=True):
            rounds += other.rounds
            found = first_divergence(target, request.prompt, one.tokens, other.tokens, pair.vocabulary)
            equal += found is None
            if found is not None:
                partings.append({"prompt": begin, "position": found[0], "gap": found[1]})
    return {
        "batch": batch,
        "compiled": getattr(speculative.target, "compiled", None) is not None,
        "equal": equal,
        "partings": partings,
        "tokens_per_target_call": PROMPTS * TOKENS / rounds,
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    settings = figure["settings"]
    yield "## Lossless at temperature 0\n"
    yield (
        f"{settings['prompts']:,} prompts of the reference pair x {settings['tokens']} tokens, speculative at gamma "
        f"{settings['gamma']} against plain. In fp32 texts may diverge where two logits are nearly tied (gap "
        f"below {settings['near_tie']:g}), because a block and a single token round differently. In the C forward, a token's "
        "logits are bit-identical for any batch, so there every text must be equal in bf16 too.\n"
    )
    yield "| | batch | forward | equal | tokens per target call | first divergence: position (logit gap) |"
    yield "|---|---|---|---|---|---|"
    for dtype in (dtype for dtype in BATCHES if dtype in figure):
        row = {"batch": "200", "compiled": False, **figure[dtype]}  # as it was before there was a compiled forward
        partings = ", ".join(f"{item['position']} ({item['gap']:.1e})" for item in row["partings"]) or "-"
        forward = "C" if row["compiled"] else "PyTorch"
        share = f"{row['equal']:,} of {settings['prompts']:,}"
        yield f"| {dtype} | {row['batch']} | {forward} | {share} | {row['tokens_per_target_call']:.2f} | {partings} |"
