"""The examination at sixteen draft lengths against examining by assisted generation at one: same prompts, same figures."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

PROMPTS, GAMMA, REPEATS, OFTEN = 128, 5, 3, 10


def main() -> None:
    write("evaluator_speed", "python -m tests.benchmarks evaluator_speed", _measure())


def _measure() -> dict[str, Any]:
    """Both examine a draft on PROMPTS prompts at temperature 0, where the figures must agree: target calls at GAMMA."""
    from itertools import islice

    from pipeline.acceptance.figures import AcceptanceTally
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.drafts.plain import PlainDraft
    from pipeline.examination.examiner import Examiner
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import GREEDY
    from tests.benchmarks import assisted
    from tests.benchmarks.refpair import counted_calls, find_pair
    from tests.benchmarks.timing import in_turns, median_ratio, seconds_of

    pair, settings = find_pair(), EvaluateConfig(convention="transformers")
    target, draft = pair.load("float32")
    stored = list(islice(read_completions(pair.completions, {"examination"}, GREEDY), PROMPTS))
    tokens = sum(item.length for item in stored)

    def examined() -> AcceptanceTally:
        tally = AcceptanceTally(settings.max_gamma, ())
        for counts in Examiner(GREEDY, settings).counts(PlainDraft(draft, pair.vocabulary), stored):
            tally.add(counts)
        return tally

    def generated() -> int:
        with counted_calls(target) as calls:
            for item in stored:
                assisted.generate(target, draft, GAMMA, item.prompt.tolist(), item.length, sample=False)
        return len(calls)

    def examined_often() -> None:
        for _ in range(OFTEN):
            examined()

    tally, calls = examined(), generated()
    ways = {"theirs": seconds_of(generated), "ours": seconds_of(examined_often)}
    theirs, often = in_turns(ways, REPEATS).values()
    ours = [seconds / OFTEN for seconds in often]
    figures = tally.figures(settings.confidence)
    return {
        "prompts": len(stored),
        "tokens": tokens,
        "gamma": GAMMA,
        "gammas_examined": settings.max_gamma,
        "seconds": {"assisted generation": median(theirs), "examination": median(ours)},
        "ratio": median_ratio(theirs, ours),
        "tokens_per_target_call": {
            "assisted generation": tokens / calls,
            "examination": figures.tokens_per_target_call[GAMMA].value,
        },
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    seconds, omega = figure["seconds"], figure["tokens_per_target_call"]
    yield "## Speed of the examination against decoding\n"
    yield (
        f"{figure['prompts']} prompts, {figure['tokens']:,} tokens of the reference pair, temperature 0, fp32. "
        f"Assisted generation at gamma {figure['gamma']} alone: {seconds['assisted generation']:.1f} s, "
        f"{omega['assisted generation']:.4f} tokens per target call. The examination, gamma 1 to "
        f"{figure['gammas_examined']} with second moments: {1000 * seconds['examination']:.0f} ms, "
        f"{omega['examination']:.4f}. **{figure['ratio']:.0f} times faster** (target 100).\n"
    )
