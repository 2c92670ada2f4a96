"""A draft that no run trained: what it needs to be exported as it is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.drafts.kinds import PLAIN
from pipeline.errors import UsageError
from pipeline.export import given
from pipeline.registry.named import Draft
from pipeline.store.artifacts import Store


def test_a_draft_that_lacks_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added by runs; no engine adds them."""
    pair = SimpleNamespace(tokenizer=tmp_path, facts={"target": {"logits_width": 8}})
    config = SimpleNamespace(pair=SimpleNamespace(trust_remote_code=False))
    for name, value in (("pair", pair), ("config", config)):
        monkeypatch.setattr(Draft, name, value)
    for name, found in (("load_tokenizer", None), ("kind_for", PLAIN), ("lacking_tokens", [6, 7])):
        monkeypatch.setattr(given, name, lambda *_, found=found: found)
    record: Any = SimpleNamespace(id="one")
    with pytest.raises(UsageError, match=r"x: it lacks 2 tokens of the target, for which a run adds rows"):
        given.given_draft(Draft(label="x", files=lambda: tmp_path, store=Store(tmp_path)), record)
