"""What `understudy decode` prints: the text in colours while it is decoded, then the statistics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.acceptance.decoding_speed import too_few
from pipeline.commands.tables.console import Report
from pipeline.escaping.terminal import printable, printable_block
from pipeline.examination.one_decode import SpeedComparison
from pipeline.judgement.speed import per_second
from pipeline.models.token_text import TokenText
from pipeline.speculation.batch import Completion
from pipeline.speculation.statistics import Statistics, count

COLUMNS = ("metric", "speculative", "target alone")
_STYLES = {"accepted": "green", "corrected": "bold red", "bonus": "bold cyan", "without a draft": ""}
_MARKS = {"corrected": "[{}]", "bonus": "{{{}}}"}  # where there are no colours


class Painter:
    """Prints tokens as they are emitted, coloured by kind, and counts them: `counts` are of the tokens as they are coloured."""

    def __init__(self, tokenizer: Any, console: Console | None = None) -> None:
        self.tokenizer, self.console = tokenizer, console or Console(highlight=False, soft_wrap=True)
        self.counts: Counter[str] = Counter()
        self._text = TokenText(tokenizer, special=True)

    def begin(self, prompt: str) -> None:
        """The prompt, dimmed, apart from the completion that follows."""
        self.console.print(Text("prompt:", style="bold"))
        self.console.print(Text(printable_block(prompt), style="dim"))
        self.console.print(Text("\ncompletion:", style="bold"))

    def note(self, line: str) -> None:
        """A remark under the text."""
        Report(self.console).text(line, indent=2)

    def paint(self, emitted: Sequence[int], accepted: int, drafted: int) -> None:
        """One round: the accepted tokens, then a correction, a bonus token, or a token without a draft."""
        last = "without a draft" if not drafted else "bonus" if accepted == drafted else "corrected"
        for index, token in enumerate(emitted):
            self._print(token, "accepted" if index < accepted else last)

    def end(self) -> None:
        """The legend, with the number of tokens of each colour."""
        self.console.print()
        legend = Text("\ntokens:")
        for name, style in _STYLES.items():
            if name != "without a draft" or self.counts[name]:
                legend.append(" ").append(self._marked(f"{self.counts[name]} {name}", name), style=style)
        self.console.print(legend)

    def plain(self, tokens: Sequence[int], title: str) -> None:
        """Another completion, for comparison."""
        self.console.print(Text(printable(f"{title}:"), style="bold"))
        self.console.print(Text(printable_block(self.tokenizer.decode(list(tokens), skip_special_tokens=False))))

    def _print(self, token: int, kind: str) -> None:
        self.counts[kind] += 1
        if text := self._text.add(token):
            self.console.print(Text(printable_block(self._marked(text, kind)), style=_STYLES[kind]), end="")

    def _marked(self, text: str, kind: str) -> str:
        colours = self.console.is_terminal and not self.console.no_color
        return text if colours else _MARKS.get(kind, "{}").format(text)


def print_statistics(
    completion: Completion,
    counts: Mapping[str, int],
    alone: Completion | None = None,
    compared: SpeedComparison | None = None,
) -> None:
    """The statistics of one decode, whose tokens were coloured as in `counts`, beside those of the target alone if it was
    run."""
    statistics, out = count([completion]), Report()
    rows = statistics_rows(statistics, counts, count([alone]) if alone is not None else None, compared)
    columns = COLUMNS if alone is not None else COLUMNS[:-1]
    out.line()
    out.table(columns, [row[: len(columns)] for row in rows], left=("metric",))
    if compared is not None:
        out.text(
            f"tokens per second: medians of {compared.turns} turns of each in alternation, [95% interval], on this prompt. A "
            f"speedup does not follow from it: {too_few(1, statistics.tokens)} (`understudy probe` predicts it, `understudy run` "
            "measures it)"
        )
    else:
        out.text("--compare measures tokens per second")
    out.text(
        "Examined acceptance rate: accepted / (accepted + first rejections). Draft tokens after a rejection are not verified "
        "and do not count."
    )
    reached = [
        (accepted, drafted)
        for accepted, drafted in zip(statistics.accepted_at, statistics.drafted_at, strict=True)
        if drafted
    ]
    if reached:
        shares = " ".join(f"{accepted / drafted:.2f}" for accepted, drafted in reached)
        out.text(f"acceptance by position in the draft: {shares}")
    out.text("rounds with 0, 1, 2, ... accepted tokens: " + ", ".join(map(str, statistics.histogram)))


def statistics_rows(
    statistics: Statistics, counts: Mapping[str, int], alone: Statistics | None, compared: SpeedComparison | None
) -> list[tuple[str, str, str]]:
    """Name, speculative, target alone."""
    shown = counts.get("accepted", 0)
    past = f" (and {statistics.accepted - shown} past the end)" if statistics.accepted > shown else ""
    rows = [
        ("tokens", str(statistics.tokens), str(alone.tokens) if alone else ""),
        ("target calls after the prefill", str(statistics.rounds), str(alone.rounds) if alone else ""),
        ("tokens per target call", f"{statistics.tokens_per_target_call:.2f}", "1.00"),
        ("drafted / accepted tokens", f"{statistics.drafted} / {shown}{past}", ""),
        ("corrected / bonus tokens", f"{counts.get('corrected', 0)} / {counts.get('bonus', 0)}", ""),
        ("examined acceptance rate", f"{statistics.examined_acceptance_rate:.3f}", ""),
        (
            "ms per round: draft, verify, other",
            ", ".join(
                f"{1000 * value / statistics.rounds:.2f}"
                for value in (statistics.seconds.draft, statistics.seconds.verify, statistics.seconds.rest)
            ),
            "",
        ),
    ]
    if compared is not None:
        rows.append(("tokens per second", per_second(compared.speculative), per_second(compared.plain)))
    return rows
