"""Text of users in what people open: MLflow's descriptions, the draft card, the review page."""

import re
from dataclasses import replace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pipeline.judgement.schema import Decision
from pipeline.registry.run_content import note
from pipeline.review.card import card, version_description
from pipeline.review.page import review_page
from pipeline.store.runs import RunRecord
from tests.decisions import make_decision
from tests.integration.mlflow_fixtures import config_of
from tests.unit.review.test_card import facts

BAD = "![x](http://a.example/x.png) <img src=x> [y](http://a.example) `z` | http://b.example \x1b[1m\u202e"


def _decision() -> Decision:
    """Every text that can quote a user does."""
    found = make_decision(-5.0, domain=BAD)
    rules = [replace(rule, name=f"{rule.name}:{BAD}", text=f"{BAD}: {rule.text}") for rule in found.rules]
    return replace(found, reasons=[f"{BAD} is worse"], warnings=[BAD], rules=rules)


def _record() -> RunRecord:
    record = RunRecord(
        id="r", name="n", created="2026-11-20T00:00:00Z", config=config_of().model_dump(mode="json"), outside={}
    )
    record.failure = f"gate: {BAD}"
    return record


def _card_facts() -> dict[str, Any]:
    model = {"source": BAD, "revision": BAD, "digest": "d1", "parameters": 5, "license": BAD}
    return {
        **facts(),
        "decision": _decision(),
        "license": BAD,
        "target": model,
        "base": model,
        "provenance": {BAD: "k"},
    }


@pytest.mark.parametrize("what", ["note", "version", "card"])
def test_no_text_of_a_user_is_markup(what: str) -> None:
    """An image would be fetched by everyone who opens the page, and a link leads anywhere."""
    text = {
        "note": lambda: note(_record(), _decision(), None),
        "version": lambda: version_description(_decision(), "m", "r", "t"),
        "card": lambda: card(_card_facts()).split("---\n", 2)[2],
    }[what]()
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)

    assert "x.png" in page
    assert [] == re.findall(r"<(?:img|a)\b", page)
    assert not set("\x1b\u202e") & set(text)
    assert "http://" not in text.replace("`", "").replace("speculative-config", "") or what == "card"


def test_no_text_of_a_user_is_an_element_of_the_page() -> None:
    """Domain, prompt, tokens and config, in elements and in attributes."""
    example = {
        "domain": f'"><img src=x>{BAD}',
        "id": BAD,
        "title": f"<script>alert(2)</script>{BAD}",
        "prompt": [[f"</p><script>alert(1)</script>{BAD}", False], [f"<img src=x>{BAD}", True]],
        "length": 1,
        "tokens": [f"</b>{BAD}"],
        "candidate": {"acceptance_rate": 0.5, "outcomes": "a"},
        "baseline": {"acceptance_rate": 0.5, "outcomes": "a"},
    }
    page = review_page(_decision(), {"examples": [example]}, {"name": BAD}, {"id": BAD, "promotion": None})

    assert "x.png" in page
    assert [] == re.findall(r"<img|<script>alert", page)
    assert not set("\x1b\u202e") & set(page)
