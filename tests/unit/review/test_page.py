"""The review page: what it says, that nothing in it is markup of others, and its size."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from pipeline.acceptance.schema import Figure, SegmentFigures
from pipeline.judgement.decision_file import read_decision, write_decision
from pipeline.judgement.schema import (
    ALREADY_CHAMPION,
    BASELINE,
    CANDIDATE,
    REFUSE,
    ChampionVersion,
    Decision,
    Standing,
    VariantFigures,
)
from pipeline.review import page as page_module
from pipeline.review.charts import Charts
from pipeline.review.page import review_page
from tests.decisions import NEW_VOCABULARY, make_decision, make_example_set

CONFIG = {"name": "loop", "pair": {"target": {"source": "org/big"}}}


class Outline(HTMLParser):
    """Elements and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(decision: Decision, *tokens: str, **example: Any) -> str:
    return review_page(decision, make_example_set(*(tokens or ("one", " two")), **example), CONFIG)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(make_decision())


@pytest.fixture
def _no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the text: drawing all charts takes half a second."""
    monkeypatch.setattr("pipeline.review.page._charts", lambda *_: [])


def test_page_says(page: str) -> None:
    """What a reviewer must find."""
    shown = Outline(page).text
    for text in (
        "✓ Passed",
        "Candidate (unquantized) compared with the base draft (there was no champion)",
        "acceptance rate 0.630, base draft 0.520: +10.98 points",
        "tokens per target call 2.50",
        "gain in acceptance rate in 'code' over the base draft",
        "org/big",
        "name: loop",
        "Examples",
    ):
        assert text in shown


@pytest.mark.usefixtures("_no_charts")
def test_refusal_says_why() -> None:
    """The reasons stand at the top."""
    text = Outline(page_of(make_decision(-5.0))).text
    assert text.index("✗ Refused") < text.index("min_gain (fail)") < text.index("Rules")


@pytest.mark.usefixtures("_no_charts")
def test_candidate_that_is_the_champion_has_no_gain() -> None:
    """A decision without a baseline and without rules is shown too."""
    decision = make_decision()
    alone = {CANDIDATE: decision.drafts[CANDIDATE]}
    page = page_of(replace(decision, verdict=ALREADY_CHAMPION, rules=[], drafts=alone, gains=None, benefit=None))
    assert "= Already champion" in Outline(page).text


CHAMPION = ChampionVersion("big-draft", "2")


@pytest.mark.usefixtures("_no_charts")
@pytest.mark.parametrize(
    ("result", "changes", "title"),
    [
        ("promoted", {}, "✓ Promoted as version 3"),
        (
            "promoted",
            {"warnings": ["slower than plain decoding"]},
            "⚠ Promoted as version 3, but slower than plain decoding",
        ),
        ("challenger, to be approved before x", {}, "✓ Passed; version 3: challenger, to be approved before x"),
        ("rolled back at x", {"warnings": ["slower"]}, "✗ Passed; version 3: rolled back at x, but slower"),
        ("already champion", {"verdict": ALREADY_CHAMPION}, "= Already champion"),
    ],
)
def test_page_begins_with_what_became_of_the_draft(result: str, changes: dict[str, Any], title: str) -> None:
    """The registry's version where there is one, in the title and in the first heading."""
    run = {"id": "r", "promotion": {"name": "big-draft", "version": "3", "result": result}}
    found = review_page(make_decision(**changes), make_example_set("one"), CONFIG, run)
    assert f"<title>{title}</title>" in found
    assert f"<h1>{title}</h1>" in found


@pytest.mark.usefixtures("_no_charts")
def test_a_rollback_is_advised_only_where_a_champion_was_replaced() -> None:
    """Before the first promotion there was none."""
    run = {"id": "r", "promotion": {"name": "big-draft", "version": "3", "result": "promoted"}}
    first, later = (
        review_page(make_decision(baseline=baseline, champion=champion), make_example_set("one"), CONFIG, run)
        for baseline, champion in (("base", None), ("champion", CHAMPION))
    )
    assert (False, True) == ("champion rollback" in first, "champion rollback" in later)
    assert (True, False) == ("(there was no champion)" in first, "there was no champion" in later)


@pytest.mark.usefixtures("_no_charts")
def test_variants_have_a_row_each() -> None:
    """Acceptance, tokens per target call, size, and predicted latency where it is known; one that was not made says why."""
    rate, omega = Figure(0.61, 0.6, 0.62, 50), Figure(2.4, 2.3, 2.5, 50)
    figures = VariantFigures(bytes=430_000, acceptance_rate=rate, tokens_per_target_call=omega)
    whole = Standing(name="unquantized", verdict="slower", text="x", figures=figures, seconds=2.5)
    int8 = Standing(name="int8", verdict="chosen", text="x", figures=figures, seconds=1.25)
    int4 = Standing(name="int4", verdict="not made", text="int4: 172 inputs", figures=None, seconds=None)
    found = page_of(make_decision(variants=[whole, int8, int4]))
    assert (
        '<th scope="row"><div>int8</div></th>'
        '<td data-label="acceptance rate">0.610 [0.600, 0.620]</td><td data-label="tokens per target call">2.40 [2.30, 2.50]</td>'
        '<td data-label="MB">0.43</td><td data-label="latency (s)">1.25</td>' in found
    )
    assert "not made: 172 inputs" in found
    untimed = page_of(make_decision(variants=[replace(one, seconds=None) for one in (whole, int8)]))
    assert "latency (s)" not in untimed
    assert "Variants of the candidate" not in page_of(make_decision(variants=[whole]))


def test_examples_are_titled_and_their_template_is_grey(page: str) -> None:
    """By the first words; what the template wrote is an element of its own."""
    assert "<summary>The prompt <span" in page
    assert "<s>&lt;|user|&gt;</s>The prompt</p>" in page


def test_every_cell_has_the_name_of_its_column(page: str) -> None:
    """A phone shows a row as a list of names and values; in a table that scrolls, the speedup was out of sight."""
    tables = [found for found in re.findall(r"<table.*?</table>", page, re.DOTALL) if "<thead>" in found]
    assert len(tables) >= 3
    for table in tables:
        head, body = table.split("</thead>")
        columns = [re.sub("<[^>]*>", "", found) for found in re.findall(r"<th .*?</th>", head)]
        for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL):
            cells = re.findall(r'<td(?: data-label="([^"]*)")?', row)
            assert columns[1 : len(cells) + 1] == cells, row


def test_a_narrow_page_has_no_table_that_scrolls(page: str) -> None:
    """Rows are lists there; a caption inside of a table would be cut off at the right."""
    assert "<caption" not in page
    narrow = page.partition("@media screen and (max-width:54rem) {")[2].partition("@page")[0]
    assert ".wide { overflow:visible;" in narrow
    assert ".wide thead { display:none; }" in narrow
    assert "content:attr(data-label)" in narrow


def test_every_row_and_column_of_a_table_has_a_header(page: str) -> None:
    """A screen reader reads them beside each figure."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert [] == [row for row in rows if not row.startswith(('<th scope="row">', '<th scope="col"'))]
    assert "<th>" not in page


def test_the_search_needs_a_script(page: str) -> None:
    """Without one it would do nothing; the script shows it."""
    assert '<p class="find" hidden>' in page
    assert 'querySelector(".find").hidden = false' in page


def test_a_position_that_no_draft_reaches_is_in_no_curve(page: str) -> None:
    """An acceptance of 0 there would be made up."""
    decision = make_decision()
    ours = decision.drafts[CANDIDATE]
    short = {**decision.drafts, CANDIDATE: replace(ours, conditional_acceptance=ours.conditional_acceptance[:2])}
    shown = [len(re.findall(r"<use ", svg)) for svg in _svgs(page_of(replace(decision, drafts=short)))]
    whole = [len(re.findall(r"<use ", svg)) for svg in _svgs(page)]
    assert len(ours.conditional_acceptance) - 2 == whole[1] - shown[1]


def _svgs(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def test_a_candidate_without_figures_has_a_page() -> None:
    """One that cannot be examined: the other drafts and the domains are shown, and the reason."""
    decision = make_decision(reasons=["examined (fail): the candidate cannot be examined: NaN"], gains=None)
    others = {side: found for side, found in decision.drafts.items() if side != CANDIDATE}
    text = Outline(page_of(replace(decision, verdict=REFUSE, drafts=others))).text
    for shown in ("✗ Refused", "cannot be examined: NaN", "no figures", "Base draft", "50 examination prompts", "code"):
        assert shown in text
    assert "Charts" not in text


def test_a_legend_hides_no_figure(page: str) -> None:
    """It stands above the axes: in them it would lie on curves and intervals."""
    legends = [(svg, svg.partition('legend_1">')[2]) for svg in _svgs(page)]
    assert 5 == sum(bool(legend) for _, legend in legends)
    for svg, legend in legends:
        corners = re.findall(
            r"^[ML<a-z =\"]*[ML] [\d.]+ ([\d.]+)", svg.partition('patch_2">')[2].partition("</g>")[0], re.MULTILINE
        )
        texts = [float(baseline) for baseline in re.findall(r'<text[^>]* y="([\d.]+)"', legend)]
        assert all(one < min(map(float, corners)) for one in texts)


def test_power_is_folded(page: str) -> None:
    """It answers a question that most readers do not have."""
    folded = [
        attributes
        for tag, attributes in Outline(page).elements
        if tag == "details" and attributes.get("class") == "power"
    ]
    assert [{"class": "power"}] == folded


@pytest.mark.usefixtures("_no_charts")
def test_markup_of_prompts_stays_text() -> None:
    """Prompts, tokens, domains and reasons come from others."""
    nasty = "<script>alert(1)</script>"
    decision = make_decision(-5.0, domain=nasty)
    page = page_of(
        replace(decision, provenance=replace(decision.provenance, corpus=nasty)),
        nasty,
        "'" + '"' + nasty,
        domain=f'"><script>{nasty}',
    )
    outline = Outline(page)
    assert 1 == sum(tag == "script" for tag, _ in outline.elements)
    assert "alert(1)" not in "".join(re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    assert nasty in outline.text


def test_page_needs_no_network(page: str) -> None:
    """No address is loaded: not by an element, a style sheet or a script."""
    loaded = [
        value
        for _, attributes in Outline(page).elements
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "srcset") and not (value or "").startswith("#")
    ]
    assert [] == loaded
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|localStorage", page)


def test_page_of_a_stored_decision_is_the_same(page: str, tmp_path: Path) -> None:
    """JSON files sort their keys as text: 10 before 2, and `baseline` before `candidate`."""
    write_decision(tmp_path, make_decision())
    page_module._drawn.clear()  # the charts are drawn again
    assert page == page_of(read_decision(tmp_path))


def test_charts_are_those_of_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn once while a run writes its page again and again, and anew for another decision."""
    monkeypatch.setattr(page_module, "_drawn", [])
    drawn = list[Decision]()

    def counting(decision: Decision, charts: Charts) -> list[tuple[str, Markup]]:
        drawn.append(decision)
        return [(f"chart {len(drawn)}", Markup("<svg></svg>"))]

    monkeypatch.setattr(page_module, "_draw", counting)
    one, other = make_decision(), make_decision(gain=20.0)
    pages = [page_of(decision) for decision in (one, one, other, one)]
    assert [one, other, one] == drawn
    assert ["chart 1", "chart 1", "chart 2", "chart 3"] == [re.findall(r"chart \d", page)[0] for page in pages]


def test_trials_of_learning_rates_have_a_table(page: str) -> None:
    """By rate; one that diverged has no figures. The chart of the training is without them."""
    table = page.partition('aria-label="Learning rates"')[2].partition("</table>")[0]
    rows = [re.sub("<[^>]*>", " ", row).split() for row in table.partition("<tbody>")[2].split("</tr>")[:-1]]
    assert [["0.003", "0.910", "1.950"], ["0.05", "diverged"]] == rows
    assert "The candidate was trained at 0.006: " in page
    without = page_of(make_decision(training=make_decision().training[3:]))
    assert "Learning rates that were tried" not in without
    assert re.findall("<path[^>]*>", page) == re.findall("<path[^>]*>", without)


def test_ids_are_unique(page: str) -> None:
    """The charts are documents of their own; on one page their ids must differ."""
    ids = [attributes["id"] for _, attributes in Outline(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("_no_charts")
def test_page_stays_under_two_megabytes() -> None:
    """Examples that do not fit are left out, and the page says how many."""
    page = review_page(make_decision(), make_example_set(*["&<token>"] * 256, count=400), CONFIG)
    assert len(page.encode()) < 2_000_000
    assert re.search(r"[1-9]\d* examples are left out", page)


@pytest.mark.usefixtures("_no_charts")
def test_every_token_is_painted() -> None:
    """Accepted, corrected and bonus tokens are elements of their own; a token without a draft is text."""
    examples = make_example_set("w", "x", "y", "z")
    examples["examples"][0][CANDIDATE]["outcomes"] = "pacb"
    assert "w<b>x</b><i>y</i><u>z</u>" in review_page(make_decision(), examples)


@pytest.mark.usefixtures("_no_charts")
def test_segments_have_a_table(tmp_path: Path) -> None:
    """With their share, each draft's figures and the gain; of a segment that never begins after another one a dash."""

    def part(rate: float, begins: Figure | None) -> SegmentFigures:
        return SegmentFigures(
            prompts=31,
            tokens=400,
            share=0.4,
            acceptance_rate=Figure(rate, rate - 0.01, rate + 0.01, 31),
            tokens_per_target_call={5: Figure(2.5, 2.4, 2.6, 31)},
            begins=31 if begins else 0,
            acceptance_of_begins=begins,
        )

    decision = make_decision()
    found = {CANDIDATE: 0.61, BASELINE: 0.52}
    drafts = {
        side: replace(
            draft,
            by_segment={"tool_call": part(found[side], Figure(0.125, 0.1, 0.15, 31)), "thinking": part(0.7, None)}
            if side in found
            else {},
        )
        for side, draft in decision.drafts.items()
    }
    assert decision.gains is not None
    gains = replace(decision.gains, segments={"tool_call": Figure(0.09, 0.07, 0.11, 31)})
    write_decision(tmp_path, replace(decision, drafts=drafts, gains=gains))
    text = " ".join(Outline(page_of(read_decision(tmp_path))).text.split())
    table = text.partition("By segment of the completion")[2].partition("Charts")[0]
    for shown in ("tool_call", "40%", "0.610 [0.600, 0.620]", "0.520 [0.510, 0.530]", "31 tokens", "0 tokens", "0.125"):
        assert shown in table
    assert "+9.00 points [+7.00, +11.00]" in table
    assert "2.50 [2.40, 2.60]" in table
    assert "By segment" not in Outline(page_of(make_decision())).text


def test_a_head_has_no_completions_by_token_and_the_page_says_why(page: str) -> None:
    """Nor charts by position in the output, which would be empty."""
    decision = make_decision()
    heads = {
        side: replace(found, draft=replace(found.draft, kind="eagle3"))
        for side, found in decision.drafts.items()
        if side in (CANDIDATE, BASELINE)
    }
    made = replace(decision, drafts={**decision.drafts, **heads})
    shown = review_page(made, {**make_example_set("one"), "examples": []}, CONFIG)

    assert "No completions are shown by token" in shown
    assert re.search(r"of the candidate and the base draft it depends on", shown)
    assert "Acceptance rate by position in the output." not in shown
    assert "Acceptance by position in the draft" in shown
    assert "No completions are shown by token" not in page


@pytest.mark.usefixtures("_no_charts")
def test_the_page_says_how_weak_a_base_with_another_tokenizer_was() -> None:
    """And how its rows were made; nothing of other drafts."""
    text = Outline(page_of(make_decision(new_vocabulary=NEW_VOCABULARY))).text

    assert "Before training it had an acceptance rate of 0.376 [0.360, 0.390], beside " in text
    assert "cannot write 0.4% of the examined text: it loses capital letters." in text
    assert "<|end|> in answer: no counterpart" in text
    assert "acceptance before training" not in Outline(page_of(make_decision())).text
