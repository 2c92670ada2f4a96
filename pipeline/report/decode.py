"""What `understudy decode` prints: the text in colours while it is decoded, then the statistics."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.escaping.terminal import printable, printable_block
from pipeline.models.token_text import TokenText
from pipeline.report.console import Report
from pipeline.speculation.batch import Completion
from pipeline.speculation.statistics import Statistics, count

COLUMNS = ("metric", "speculative", "target alone")
_STYLES = {"accepted": "green", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}
_MARKS = {"corrected": "[{}]", "bonus": "{{{}}}"}  # where there are no colours


class Painter:
    """Prints tokens as they are emitted, coloured by kind."""

    def __init__(self, tokenizer: Any, console: Console | None = None) -> None:
        self.tokenizer, self.console = tokenizer, console or Console(highlight=False, soft_wrap=True)
        self._text = TokenText(tokenizer)

    def begin(self, prompt: str) -> None:
        """The prompt, dimmed."""
        self.console.print(Text(printable_block(prompt), style="dim"), end="")

    def note(self, line: str) -> None:
        """A remark under the text."""
        Report(self.console).text(line, indent=2)

    def paint(self, emitted: Sequence[int], accepted: int, drafted: int) -> None:
        """One round: the accepted tokens, then a correction, a bonus token, or a token without a draft."""
        last = "plain" if not drafted else "bonus" if accepted == drafted else "corrected"
        for index, token in enumerate(emitted):
            self._print(token, "accepted" if index < accepted else last)

    def end(self) -> None:
        self.console.print()
        legend = Text("\ntokens: ")
        for name in ("accepted", "corrected", "bonus"):
            legend.append(f"{self._marked(name, name)} ", style=_STYLES[name])
        self.console.print(legend)

    def plain(self, tokens: Sequence[int], title: str) -> None:
        """Another completion, for comparison."""
        self.console.print(Text(printable(f"{title}:"), style="bold"))
        self.console.print(Text(printable_block(self.tokenizer.decode(list(tokens), skip_special_tokens=True))))

    def _print(self, token: int, kind: str) -> None:
        if text := self._text.add(token):
            self.console.print(Text(printable_block(self._marked(text, kind)), style=_STYLES[kind]), end="")

    def _marked(self, text: str, kind: str) -> str:
        colours = self.console.is_terminal and not self.console.no_color
        return text if colours else _MARKS.get(kind, "{}").format(text)


def print_statistics(completion: Completion, alone: Completion | None) -> None:
    """The statistics of one decode, beside those of the target alone if it was run."""
    found, out = count([completion]), Report()
    rows = statistics_rows(found, count([alone]) if alone is not None else None)
    columns = COLUMNS if alone is not None else COLUMNS[:-1]
    out.line()
    out.table(columns, [row[: len(columns)] for row in rows], left=("metric",))
    out.text(
        "Examined acceptance rate: accepted / (accepted + first rejections). Draft tokens after a rejection are not verified "
        "and do not count."
    )
    shares = zip(found.accepted_at, found.drafted_at, strict=True)
    out.text(
        "acceptance by position in the draft: "
        + " ".join(f"{accepted / max(drafted, 1):.2f}" for accepted, drafted in shares)
    )
    out.text("rounds with 0, 1, 2, ... accepted tokens: " + ", ".join(map(str, found.histogram)))


def statistics_rows(found: Statistics, alone: Statistics | None) -> list[tuple[str, str, str]]:
    """Name, speculative, target alone."""

    def speed(statistics: Statistics) -> float:
        return statistics.tokens / max(statistics.seconds.total - statistics.seconds.prefill, 1e-9)

    rows = [
        ("tokens", str(found.tokens), str(alone.tokens) if alone else ""),
        ("target calls after the prefill", str(found.rounds), str(alone.rounds) if alone else ""),
        ("tokens per target call", f"{found.tokens_per_target_call:.2f}", "1.00"),
        ("drafted / accepted tokens", f"{found.drafted} / {found.accepted}", ""),
        ("examined acceptance rate", f"{found.examined_acceptance_rate:.3f}", ""),
        ("tokens per second", f"{speed(found):.0f}", f"{speed(alone):.0f}" if alone else ""),
        (
            "ms per round: draft, verify, other",
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
