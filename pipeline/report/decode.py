"""What `understudy decode` prints: the text as it comes, in colours, and what the decode did."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.speculation.batch import Completion
from pipeline.speculation.statistics import Statistics, count

_STYLES = {"accepted": "green", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}


class Painter:
    """Prints tokens as they are emitted, by what became of them. Bytes of a character that is not whole yet wait."""

    def __init__(self, tokenizer: Any, console: Console | None = None) -> None:
        self.tokenizer, self.console = tokenizer, console or Console(highlight=False, soft_wrap=True)
        self._said: list[int] = []
        self._from = self._shown = 0  # the tokens decoded as company, and the first that is not printed yet

    def begin(self, prompt: str) -> None:
        """What is continued, set back."""
        self.console.print(Text(prompt, style="dim"), end="")

    def note(self, line: str) -> None:
        self.console.print(f"{line}\n")

    def paint(self, emitted: Sequence[int], accepted: int, drafted: int) -> None:
        """One round: drafted tokens that stood, then a correction, a bonus, or a token that nobody drafted."""
        last = "plain" if not drafted else "bonus" if accepted == drafted else "corrected"
        for index, token in enumerate(emitted):
            self._print(token, "accepted" if index < accepted else last)

    def end(self) -> None:
        self.console.print()
        legend = Text("\n")
        for name in ("accepted", "corrected", "bonus"):
            legend.append(f"{name} ", style=_STYLES[name])
        self.console.print(legend)

    def plain(self, tokens: Sequence[int], title: str) -> None:
        """Another completion, for comparison."""
        self.console.print(Text(f"{title}:", style="bold"))
        self.console.print(Text(self.tokenizer.decode(list(tokens), skip_special_tokens=True)))
        self.console.print()

    def _print(self, token: int, kind: str) -> None:
        """The text that `token` adds. Decoded in the company of the tokens before it: alone, many tokenizers would drop
        its leading space."""
        self._said.append(token)
        before = self.tokenizer.decode(self._said[self._from : self._shown], skip_special_tokens=True)
        text = self.tokenizer.decode(self._said[self._from :], skip_special_tokens=True)
        if text.endswith("\ufffd") and len(self._said) - self._shown < 4:  # no character has more than 4 bytes
            return
        self.console.print(Text(text[len(before) :], style=_STYLES[kind]), end="")
        self._from, self._shown = self._shown, len(self._said)


def print_statistics(completion: Completion, alone: Completion | None, gamma: int) -> None:
    """Tables of one decode, beside the target alone where that was run."""
    found, console = count([completion]), Console(highlight=False)
    table = Table(show_header=alone is not None, box=None, pad_edge=False)
    table.add_column("")
    table.add_column("speculative", justify="right")
    if alone is not None:
        table.add_column("target alone", justify="right")
    for name, value, other in _rows(found, count([alone]) if alone is not None else None):
        table.add_row(name, value, *([other] if alone is not None else []))
    console.print(table)
    shares = zip(found.accepted_at, found.drafted_at, strict=True)
    console.print(
        "drafts accepted up to each position: "
        + " ".join(f"{stood / max(drafted, 1):.2f}" for stood, drafted in shares)
    )
    console.print("rounds by tokens accepted: " + " ".join(f"{n}:{rounds}" for n, rounds in enumerate(found.histogram)))


def _rows(found: Statistics, alone: Statistics | None) -> list[tuple[str, str, str]]:
    def speed(statistics: Statistics) -> float:
        return statistics.tokens / max(statistics.seconds.total - statistics.seconds.prefill, 1e-9)

    rows = [
        ("tokens", str(found.tokens), str(alone.tokens) if alone else ""),
        ("target calls after the prefill", str(found.rounds), str(alone.rounds) if alone else ""),
        ("tokens per target call", f"{found.tokens_per_target_call:.2f}", "1.00"),
        ("drafted / accepted", f"{found.drafted} / {found.accepted}", ""),
        ("accepted / (accepted + first rejected)", f"{found.examined_acceptance_rate:.3f}", ""),
        ("tokens per second", f"{speed(found):.0f}", f"{speed(alone):.0f}" if alone else ""),
        (
            "ms a round: draft, verify, rest",
            ", ".join(
                f"{1000 * value / found.rounds:.2f}"
                for value in (found.seconds.draft, found.seconds.verify, found.seconds.rest)
            ),
            "",
        ),
    ]
    if alone is not None:
        rows.append(("speedup", f"{speed(found) / speed(alone):.2f}", ""))
    return rows
