"""What `understudy latency explain` prints: the speedup of one pair, by the rule of thumb and exactly."""

from dataclasses import dataclass

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.commands.tables.console import Report
from pipeline.latency.costs.ideal_speedup import (
    ForwardTimes,
    acceptance_from_counted,
    break_even_acceptance,
    draft_acceptance_rate,
    ideal_speedup,
    rule_of_thumb_tokens,
)

COLUMNS = (
    "draft length",
    "tokens per round",
    "tokens by rule of thumb",
    "speedup",
    "speedup by rule of thumb",
    "draft acceptance rate",
)


@dataclass(frozen=True)
class WorkedExample:
    """Forward times at batch size 1, in ms."""

    plain: float  # the target over one token
    verify: float  # the target over gamma + 1 tokens
    draft: float  # the draft over one
    gamma: int
    alpha: float

    def times(self, most: int) -> ForwardTimes:
        """Step times for draft lengths up to `most`; the verification time is linear between the two given times."""
        each = (self.verify - self.plain) / self.gamma
        return ForwardTimes({1 + gamma: self.plain + gamma * each for gamma in range(most + 1)}, self.draft)


def print_explanation(example: WorkedExample) -> None:
    """Print the explanation to stdout."""
    out = Report()
    for line in _explanation(example):
        out.text(line)
    most = max(8, example.gamma)
    times = example.times(most)
    rows = []
    for gamma in range(1, most + 1):
        exact, rule = iid_tokens_per_call(example.alpha, gamma), rule_of_thumb_tokens(example.alpha, gamma)
        fast, said = (ideal_speedup(tokens, gamma, times) for tokens in (exact, rule))
        counted = draft_acceptance_rate(example.alpha, gamma)
        rows.append([str(gamma), *(f"{figure:.2f}" for figure in (exact, rule, fast, said, counted))])
    out.table(COLUMNS, rows)
    out.text(_break_even(example, times, most))


def _break_even(example: WorkedExample, times: ForwardTimes, most: int) -> str:
    """The break-even acceptance rate at the given draft length, and at the best one."""
    own, best = (break_even_acceptance(times, gammas) for gammas in ([example.gamma], range(1, most + 1)))
    if best is None:
        return "This pair is not faster than plain decoding at any acceptance rate."
    at = "none" if own is None else f"{own:.2f}"
    return (
        f"Break-even acceptance rate: {at} at draft length {example.gamma}, {best:.2f} at the best draft length. The time of a "
        "target pass at other draft lengths is interpolated (for longer ones extrapolated) linearly from --plain-ms and "
        "--verify-ms."
    )


def _explanation(example: WorkedExample) -> list[str]:
    alpha, gamma = example.alpha, example.gamma
    round_ms = example.times(gamma).round(gamma)
    exact, rule = iid_tokens_per_call(alpha, gamma), rule_of_thumb_tokens(alpha, gamma)
    counted, over = acceptance_from_counted(alpha, gamma), round(100 * (rule / exact - 1))
    verdict = f"is {over}% too high" if over else "agrees"
    return [
        f"Plain decoding: one token per target pass, {example.plain:g} ms per token.",
        f"One round: {gamma} draft tokens in {gamma * example.draft:g} ms, then one target pass over {gamma + 1} "
        f"tokens in {example.verify:g} ms: {round_ms:g} ms.",
        "",
        f"Rule of thumb: {alpha:.0%} of {gamma} draft tokens are accepted and the target adds one: {rule:.2f} tokens per round, "
        f"{round_ms / rule:.1f} ms per token, speedup {rule * example.plain / round_ms:.2f}.",
        f"Exact: a draft token counts only if all draft tokens before it were accepted: 1 + {alpha:g} + {alpha:g}^2 + ... = "
        f"{exact:.2f} tokens per round, {round_ms / exact:.1f} ms per token, speedup {exact * example.plain / round_ms:.2f}.",
        "",
        f"If {alpha:g} is the acceptance rate (the probability that a draft token is accepted if all draft "
        f"tokens before it were), the rule "
        f"of thumb {verdict}. `understudy probe` and every examination report this rate.",
        f"If {alpha:g} is the draft acceptance rate of an engine (accepted / drafted tokens), the rule of thumb is right. The "
        f"acceptance rate is then {counted:.2f}.",
        "Both formulas assume the same acceptance rate for every token. The tokens per target call that an examination reports "
        "do not rely on this assumption.",
    ]
