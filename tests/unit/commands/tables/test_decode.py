"""What `understudy decode` prints, and names of drafts."""

import io
import re

import pytest
from rich.console import Console

from pipeline.acceptance.decoding_speed import of_turns
from pipeline.commands.tables.decode import Painter, print_statistics
from pipeline.examination.one_decode import SpeedComparison
from pipeline.models.names import short_names
from pipeline.speculation.batch import Completion


class _Bytes:
    """A tokenizer whose tokens are bytes and which, like many, drops a leading space."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode("utf-8", errors="replace").removeprefix(" ")


def _painted(rounds: list[tuple[str, int, int]]) -> str:
    stream = io.StringIO()
    painter = Painter(_Bytes(), Console(file=stream, force_terminal=True, color_system="standard", soft_wrap=True))
    for text, accepted, drafted in rounds:
        painter.paint(list(text.encode()), accepted, drafted)
    return stream.getvalue()


def test_special_tokens_are_seen() -> None:
    """The token that ends the text is counted, so it is shown; that of a chat template is what a reader looks for."""

    class Ending:
        def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(
                "" if one == 0 and skip_special_tokens else "<end>" if one == 0 else chr(one) for one in tokens
            )

    stream = io.StringIO()
    painter = Painter(Ending(), Console(file=stream, color_system=None, soft_wrap=True))
    painter.paint([97, 0], 1, 1)
    painter.plain([97, 0], "alone")

    assert "a{<end>}alone:\na<end>\n" == stream.getvalue()


def test_each_kind_of_token_has_its_colour() -> None:
    """Accepted green, corrected bold red, bonus bold cyan, undrafted plain."""
    green, red, cyan, off = "\x1b[32m", "\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"

    assert f"{green}a{off}{red}b{off}" == _painted([("ab", 1, 2)])
    assert f"{green}a{off}{cyan}b{off}" == _painted([("ab", 1, 1)])
    assert "a" == _painted([("a", 0, 0)])


@pytest.mark.parametrize("options", [{"force_terminal": True, "no_color": True}, {}])
def test_without_colours_tokens_are_marked(options: dict[str, bool]) -> None:
    """Corrected tokens in brackets, bonus tokens in braces, in a terminal with NO_COLOR and in a file; the legend says so."""
    stream = io.StringIO()
    painter = Painter(_Bytes(), Console(file=stream, color_system=None, soft_wrap=True, **options))
    painter.paint(list(b"ab"), 1, 2)
    painter.paint(list(b"cd"), 1, 1)
    painter.end()

    assert ["a[b]c{d}", "tokens: 2 accepted [1 corrected] {1 bonus}"] == [
        line.strip() for line in stream.getvalue().split("\n") if line
    ]


def test_the_figures_are_of_the_tokens_as_they_are_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a round that ends at a stop token only what is shown counts; what was accepted behind it is named beside it."""
    painter = Painter(_Bytes(), Console(file=io.StringIO()))
    completion = Completion(tokens=[1, 2, 3, 4, 5], length=5, drafted=[2, 2, 0, 3], accepted=[1, 2, 0, 3])
    for emitted, accepted, drafted in (([1, 2], 1, 2), ([3], 2, 2), ([4], 0, 0), ([5], 3, 3)):
        painter.paint(emitted, accepted, drafted)
    print_statistics(completion, painter.counts)
    printed = capsys.readouterr().out

    assert {"accepted": 3, "corrected": 1, "without a draft": 1} == dict(painter.counts)
    assert 5 == painter.counts.total()
    assert "7 / 3 (and 3 past the end)" in printed
    assert "1 / 0" in printed
    assert "tokens per second" not in printed.partition("--compare")[0]  # of one cold decode nobody learns anything


def test_one_prompt_has_no_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens per second with their intervals, and who tells more."""
    completion = Completion(tokens=[1, 2], length=2, drafted=[1], accepted=[1])
    compared = SpeedComparison(of_turns([120.0, 110.0, *[120.0] * 4]), of_turns([100.0] * 6), 6)
    print_statistics(completion, {}, completion, compared)
    printed = capsys.readouterr().out

    assert re.search(r"│ tokens per second +│ +120 \[110, 120\] │ +100 \[100, 100\] │", printed)
    assert (
        "speedup does not follow from it: 1 prompt with 2 tokens are too few; at least 8 prompts and 512"
        in " ".join(printed.split())
    )
    assert "x1." not in printed


def test_prompt_and_completion_are_apart() -> None:
    """Each under its name; the prompt is dim."""
    stream = io.StringIO()
    painter = Painter(_Bytes(), Console(file=stream, force_terminal=True, color_system="standard"))
    painter.begin("what")
    painter.paint([97], 0, 0)

    assert "\x1b[1mprompt:\x1b[0m\n\x1b[2mwhat\x1b[0m\n\n\x1b[1mcompletion:\x1b[0m\na" == stream.getvalue()


def test_spaces_and_split_characters_survive() -> None:
    """A token's leading space is kept, and a character whose bytes come apart is printed once, whole."""
    text = "def f (x): 'ä漢🙂'"
    plain = Console(file=(stream := io.StringIO()), soft_wrap=True, highlight=False)
    painter = Painter(_Bytes(), plain)
    for byte in text.encode():
        painter.paint([byte], 0, 0)

    assert text == stream.getvalue()


def test_drafts_are_told_apart_by_the_end_of_their_names() -> None:
    """As many path components as it takes, and no more."""
    assert {"/a/b/one": "one", "/a/b/two": "two"} == short_names(["/a/b/one", "/a/b/two"])
    assert {"/a/x/draft": "x/draft", "/a/y/draft": "y/draft"} == short_names(["/a/x/draft", "/a/y/draft"])
    assert {"/a/one": "one"} == short_names(["/a/one"])


def test_a_position_that_was_never_drafted_has_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    """0.00 would say that all tokens there were rejected."""
    completion = Completion(tokens=[1, 2, 3], length=3, drafted=[2, 0], accepted=[1, 0])
    print_statistics(completion, {"accepted": 1, "corrected": 1, "without a draft": 1})
    assert "acceptance by position in the draft: 1.00 0.00\n" in capsys.readouterr().out
    print_statistics(Completion(tokens=[1], length=1, drafted=[0], accepted=[0]), {"without a draft": 1})
    assert "acceptance by position" not in capsys.readouterr().out
