"""The draft length of a command without a config: the option's, that of the runs, or the default; each is said."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.commands import sampling
from pipeline.commands.sampling import length_of
from pipeline.config.loading import load_config
from pipeline.errors import UsageError

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


def _drafts(monkeypatch: pytest.MonkeyPatch, **gammas: int | None) -> dict[str, Any]:
    """By name; None: of no run."""
    configs = {
        name: (f"run-{name}", load_config(SMOKE, [f"evaluate.gamma={gamma}"]))
        for name, gamma in gammas.items()
        if gamma is not None
    }
    monkeypatch.setattr(sampling, "_configs", lambda drafts, what: configs)
    return {name: SimpleNamespace() for name in gammas}


def test_the_length_is_that_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (3, "evaluate.gamma of run run-a") == length_of(None, _drafts(monkeypatch, a=3, b=3, other=None), 16)
    assert (7, "--gamma") == length_of(7, _drafts(monkeypatch, a=3), 16)
    default = (5, "the default of evaluate.gamma; --gamma sets another")
    assert default == length_of(None, _drafts(monkeypatch, other=None), 16)
    assert (4, "--max-gamma; run run-a has 6") == length_of(None, _drafts(monkeypatch, a=6), 4)


def test_lengths_that_differ_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"different draft lengths .*: 3 of run run-a, 4 of run run-b; give --gamma"):
        length_of(None, _drafts(monkeypatch, a=3, b=4), 16)
    with pytest.raises(UsageError, match="--gamma 9: above --max-gamma 8"):
        length_of(9, {}, 8)
