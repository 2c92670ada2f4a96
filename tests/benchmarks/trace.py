"""The examination against the decoder's own decodes: round by round at temperature 0, in exact standard errors at 1."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from tests.benchmarks.figures import write

PROMPTS, TOKENS, GAMMA, BATCH = 8_192, 64, 5, 256
GREEDY_PROMPTS, GREEDY_TOKENS, GAMMAS = 64, 96, range(1, 17)


def main() -> None:
    figure = {"greedy": _greedy(), "sampled": _sampled(), "prompts": PROMPTS, "tokens": TOKENS, "gamma": GAMMA}
    write("trace", "python -m tests.benchmarks trace", figure)


def _greedy() -> list[dict[str, Any]]:
    """At every gamma: rounds decoded and predicted, and the differences that near-ties explain."""
    from itertools import islice

    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.drafts.plain import PlainDraft
    from pipeline.examination.cross_check import cross_check
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import GREEDY
    from tests.benchmarks.refpair import find_pair

    pair = find_pair()
    target, draft = pair.load("float32")
    stored = list(islice(read_completions(pair.completions, {"examination"}, GREEDY), GREEDY_PROMPTS))
    settings = [EvaluateConfig(crosscheck_gamma=gamma, crosscheck_tokens=GREEDY_TOKENS) for gamma in GAMMAS]
    drafting = PlainDraft(draft, pair.vocabulary)
    return [asdict(cross_check(target, drafting, stored, one, ())) for one in settings]


def _sampled() -> dict[str, Any]:
    """Counts of a decode at temperature 1, and what the examination of its own text expects, with exact deviations."""
    import numpy as np

    from pipeline.acceptance.examine import acceptance_probabilities
    from pipeline.acceptance.moments import round_moments
    from pipeline.acceptance.rounds import CONVENTIONS
    from pipeline.drafts.plain import PlainDraft
    from pipeline.speculation.batch import Request, Round
    from pipeline.speculation.settings import Sampling
    from pipeline.speculation.statistics import count
    from tests.benchmarks.drafts import decoder
    from tests.benchmarks.refpair import find_pair, windows
    from tests.conformance.texts import text

    pair = find_pair()
    target, draft = pair.load("float32")
    made = decoder(target, draft, pair.vocabulary, GAMMA, Sampling())
    prompts, names = windows(pair, PROMPTS, 24, seed=3), ["rounds", "accepted"]
    seen, mean, variance = np.zeros(2 + GAMMA), np.zeros(2 + GAMMA), np.zeros(2 + GAMMA)
    for begin in range(0, PROMPTS, BATCH):
        requests = [Request(prompt, TOKENS, begin + row) for row, prompt in enumerate(prompts[begin : begin + BATCH])]
        log_p: list[list[float]] = [[] for _ in requests]

        def record(round_: Round, log_p: list[list[float]] = log_p) -> None:
            log_p_BTV = round_.logits_BTV.log_softmax(-1)
            for row, number in enumerate(round_.numbers):
                emitted = zip(range(len(round_.emitted[row])), round_.emitted[row], strict=True)
                log_p[number] += [float(log_p_BTV[row, at, token]) for at, token in emitted]

        done = made.decode(requests, record)
        decoded = [
            replace(text(np.array(request.prompt, np.int32), one.tokens, TOKENS), log_p=np.array(own, np.float32))
            for request, one, own in zip(requests, done, log_p, strict=True)
        ]
        found = count(done)
        seen += [found.rounds, found.accepted, *found.accepted_at]
        a = acceptance_probabilities(
            PlainDraft(draft, pair.vocabulary), decoded, Sampling(), Sampling(), batch_tokens=8192
        )
        lengths_B = np.full(len(a), TOKENS)
        moments = round_moments(np.stack(a), lengths_B, GAMMA, CONVENTIONS["transformers"])
        for total, part in ((mean, "mean"), (variance, "variance")):
            counts = [getattr(each, part) for each in (moments.rounds, moments.accepted, moments.per_position)]
            total += [counts[0].sum(), counts[1].sum(), *counts[2].sum(0)]
    names += [f"accepted at position {index + 1}" for index in range(GAMMA)]
    return {
        name: {
            "decoded": seen[at],
            "predicted": mean[at],
            "standard_errors": (seen[at] - mean[at]) / variance[at] ** 0.5,
        }
        for at, name in enumerate(names)
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Examination against the decoder\n"
    greedy = figure["greedy"]
    ties = [tie for row in greedy for tie in row["differences"]]
    gaps = (
        ", ".join(f"gamma {row['gamma']}: {tie['gap']:.1e}" for row in greedy for tie in row["differences"]) or "none"
    )
    same = sum(row["rounds_predicted"] == row["rounds_decoded"] and not row["differences"] for row in greedy)
    yield (
        f"Temperature 0, {greedy[0]['prompts']} prompts, {greedy[0]['tokens']:,} tokens at each gamma 1 to 16, fp32: all "
        f"rounds are as predicted at {same} of {len(greedy)} gammas; near-ties: {len(ties)} ({gaps}).\n"
    )
    yield (
        f"Temperature 1, gamma {figure['gamma']}, {figure['prompts'] * figure['tokens']:,} tokens of the decoder's own text; "
        "deviation in exact standard errors (at most 3):\n"
    )
    yield "| | decoded | predicted | standard errors |"
    yield "|---|---|---|---|"
    for name, row in figure["sampled"].items():
        yield f"| {name} | {row['decoded']:,.0f} | {row['predicted']:,.1f} | {row['standard_errors']:+.2f} |"
