"""Text of users in a terminal, Markdown, HTML and XML: shown, never executed. Each language is read by a parser of its own."""

import html as standard_html
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import Environment
from markdown_it import MarkdownIt

from pipeline.escaping.markup import code, finalize, html, markdown, plot_text, xml_text, yaml_text
from pipeline.escaping.terminal import printable, printable_block

_ATTACKS = (
    "![x](http://a.example/x.png)",
    "[x](javascript:alert(1))",
    "<script>alert(1)</script>",
    "a | b `c` *d* _e_ ~~f~~",
    "# heading",
    "1. one",
    "- [x]: http://a.example",
    "&lt;b&gt; &amp;",
    "\x1b[2J\x1b]8;;http://a.example\x07x",
    "a\nb\r\nc\u2028d",
    "abc\u202etxt\u2066",
    "half \ud800",
    "back\\slash\\",
)
_TEXTS = (
    st.sampled_from(_ATTACKS)
    | st.text(st.sampled_from("![](){}<>&`*_~|\\#-+=:. \n1ahtp/"), max_size=20)
    | st.text(max_size=20)
)


@given(_TEXTS)
def test_a_line_stays_one_line_without_control_characters(text: str) -> None:
    """A terminal gets printable characters only, and reads no line break."""
    shown = printable(text)

    assert [] == [one for one in shown if not one.isprintable() and one not in "\u200c\u200d"]
    assert [shown] == (shown.splitlines() or [""])


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31mred", "\\x1b[31mred"), ("abc\u202etxt", "abc\\u202etxt"), ("a\nb", "a\\nb"), ("a\xa0b", "a\\xa0b")]
    + [(same, same) for same in ("日本", "هُوَ", "👩\u200d💻", "naïve [red]", "a b")],
)
def test_only_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    """Letters of every script and emoji stay."""
    assert shown == printable(text)


def test_text_of_several_lines_keeps_its_lines() -> None:
    """A completion keeps line breaks, tabs and spaces; a carriage return would overwrite a line."""
    assert "a\n\tb\u3000c\\r\\x1b" == printable_block("a\n\tb\u3000c\r\x1b")


@given(_TEXTS)
@example("_a_")
@example(" - ")
@example(" >")
def test_markdown_shows_the_text_and_no_markup(text: str) -> None:
    """In a paragraph, a list and a cell, the reader sees the characters of the text; with GitHub's tables."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    seen = " ".join(printable(text).split())
    for page, around in (
        (f"{markdown(text)}x", "<p>{}x</p>"),
        (f"- x{markdown(text)}x", "<ul>\n<li>x{}x</li>\n</ul>"),
        (f"| x |\n|---|\n| x{markdown(text)}x |", "<td>x{}x</td>"),
        (f"**x{markdown(text)}x**", "<strong>x{}x</strong>"),
    ):
        found = " ".join(parser.render(page).split())
        before, after = (" ".join(part.split()) for part in around.split("{}"))
        inner = re.search(re.escape(before) + "(.*)" + re.escape(after), found)
        assert inner is not None, (page, found)
        assert "<" not in inner[1]
        assert "".join(seen.split()) == "".join(standard_html.unescape(inner[1]).split())


@pytest.mark.parametrize("text", ["http://a.example", "https://a.example/x", "www.a.example", "mailto:a@b.example"])
def test_an_address_is_not_made_a_link(text: str) -> None:
    """GitHub and MLflow link what looks like an address; without its colon or dot it does not."""
    assert not re.search(r"https?:|www\.|mailto:", markdown(text))
    assert text == standard_html.unescape(markdown(text))


@given(_TEXTS)
def test_a_code_span_ends_with_its_text(text: str) -> None:
    """Nothing in it is markup, also inside a table."""
    parser = MarkdownIt("commonmark").enable("table")
    found = parser.render(f"| x |\n|---|\n| {code(text)} |")
    inner = re.search("<td>(.*)</td>", found, re.DOTALL)

    assert inner is not None
    assert re.fullmatch("<code>[^<]*</code>", inner[1]), found


@given(_TEXTS)
def test_html_shows_the_text_and_no_markup(text: str) -> None:
    """In an element and in an attribute; bidi overrides end with the text, because they are shown as escapes."""
    page = (
        Environment(autoescape=True, finalize=finalize)
        .from_string('<a title="{{ text }}">{{ text }}</a>')
        .render(text=text)
    )

    assert str(html(text)) in page
    assert not set("\x1b\u202e\u2066\ud800\r") & set(page)
    assert page.count("<") == 2
    assert page.count('"') == 2


@given(_TEXTS)
def test_an_xml_parser_reads_the_text_back(text: str) -> None:
    """The characters that XML forbids become escapes."""
    element = ET.Element("a", {"b": xml_text(text)})
    element.text = xml_text(text)
    read = ET.fromstring(ET.tostring(element, encoding="unicode"))

    assert (xml_text(text), xml_text(text)) == (read.get("b"), read.text or "")


@given(st.dictionaries(st.text(max_size=5), _TEXTS.filter(lambda text: "\ud800" not in text), max_size=3))
def test_yaml_can_be_printed_and_read_back(value: dict[str, str]) -> None:
    """A config on a terminal reorders no text, and is the same config when it is saved."""
    import yaml

    text = yaml_text(value)

    assert text == printable_block(text)
    assert value == yaml.safe_load(text)


@pytest.mark.parametrize("name", ["a$b", "a$b$", "a$\\foo$", "x\\$y$z$", "back\\slash"])
def test_a_chart_shows_the_text_and_no_formula(name: str) -> None:
    """matplotlib reads what is between dollars as a formula, and raises where it is none."""
    from matplotlib.figure import Figure

    figure, out = Figure(), io.StringIO()
    figure.add_subplot().set_title(plot_text(name))
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg")

    assert f">{name}</text>" in out.getvalue()
