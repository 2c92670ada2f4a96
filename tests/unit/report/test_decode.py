"""What `understudy decode` prints, and names of drafts."""

import io

import pytest
from rich.console import Console

from pipeline.models.named_pair import short_names
from pipeline.report.decode import Painter


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

    assert ["a[b]c{d}", "tokens: accepted [corrected] {bonus}"] == [
        line.strip() for line in stream.getvalue().split("\n") if line
    ]


def test_the_prompt_is_dim() -> None:
    """The prompt is told apart from the completion."""
    stream = io.StringIO()
    Painter(_Bytes(), Console(file=stream, force_terminal=True, color_system="standard")).begin("what")

    assert "\x1b[2mwhat\x1b[0m" == stream.getvalue()


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
