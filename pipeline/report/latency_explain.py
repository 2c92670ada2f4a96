"""What `understudy latency explain` prints: the arithmetic of one pair, by the rule of thumb and exactly."""

import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.latency.costs.speedup import (
    ForwardTimes,
    acceptance_from_counted,
    break_even_acceptance,
    draft_acceptance_rate,
    ideal_speedup,
    rule_of_thumb_tokens,
)

_PIPE_WIDTH = 140


@dataclass(frozen=True)
class Example:
    """Milliseconds of passes, one request alone."""

    plain: float  # the target over one token
    verify: float  # the target over gamma + 1 tokens
    draft: float  # the draft over one
    gamma: int
    alpha: float

    def times(self, most: int) -> ForwardTimes:
        """For draft lengths up to `most`; verification takes a line through the two times that are known."""
        each = (self.verify - self.plain) / self.gamma
        return ForwardTimes({1 + gamma: self.plain + gamma * each for gamma in range(most + 1)}, self.draft)


def print_explanation(example: Example) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    for line in _arithmetic(example):
        console.print(line, markup=False, soft_wrap=True)
    most = max(8, example.gamma)
    times = example.times(most)
    table = Table()
    for title in (
        "draft tokens",
        "tokens a round",
        "tokens by the rule",
        "times as fast",
        "times by the rule",
        "accepted of drafted",
    ):
        table.add_column(title, justify="right")
    for gamma in range(1, most + 1):
        exact, rule = iid_tokens_per_call(example.alpha, gamma), rule_of_thumb_tokens(example.alpha, gamma)
        fast, said = (ideal_speedup(tokens, gamma, times) for tokens in (exact, rule))
        counted = draft_acceptance_rate(example.alpha, gamma)
        table.add_row(str(gamma), f"{exact:.2f}", f"{rule:.2f}", f"{fast:.2f}", f"{said:.2f}", f"{counted:.2f}")
    console.print(table)
    console.print(_break_even(example, times, most), markup=False, soft_wrap=True)


def _break_even(example: Example, times: ForwardTimes, most: int) -> str:
    """At the draft length given, and at the best one."""
    own, best = (break_even_acceptance(times, gammas) for gammas in ([example.gamma], range(1, most + 1)))
    if best is None:
        return "No acceptance makes this pair pay."
    at = "it never pays" if own is None else f"it pays from an acceptance rate of {own:.2f} on"
    return (
        f"At {example.gamma} draft tokens {at}, at the best draft length from {best:.2f} on. (Other draft lengths: verification "
        "on a line between the two times given.)"
    )


def _arithmetic(example: Example) -> list[str]:
    alpha, gamma = example.alpha, example.gamma
    round_ms = example.times(gamma).round(gamma)
    exact, rule = iid_tokens_per_call(alpha, gamma), rule_of_thumb_tokens(alpha, gamma)
    behind, over = acceptance_from_counted(alpha, gamma), round(100 * (rule / exact - 1))
    said = f"promises {over}% too much" if over else "says the same"
    return [
        f"Without a draft the target says a token every {example.plain:g} ms.",
        f"A round with one: {gamma} draft tokens in {gamma * example.draft:g} ms, one pass of the target over them and one more "
        f"in {example.verify:g} ms: {round_ms:g} ms.",
        "",
        f"Rule of thumb: a share of {alpha:g} of {gamma} draft tokens is kept and the target adds one, {rule:.2f} tokens a "
        f"round: {round_ms / rule:.1f} ms a token, {rule * example.plain / round_ms:.2f} times as fast.",
        f"Exact: a draft token is kept only if all before it were, 1 + {alpha:g} + {alpha:g}^2 + ... = {exact:.2f} tokens a "
        f"round: {round_ms / exact:.1f} ms a token, {exact * example.plain / round_ms:.2f} times as fast.",
        "",
        f"The rule {said} where {alpha:g} is the acceptance rate, the chance that a "
        "token is kept if all before it were,",
        f"as `understudy probe` and every examination report it. It is right where {alpha:g} is what an engine counts, accepted "
        f"over drafted: the acceptance rate is {behind:.2f} then.",
        "Neither knows that acceptance differs from prompt to prompt and token to token: an examination's tokens per target "
        "call do.",
    ]
