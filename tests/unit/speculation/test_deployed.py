"""Which sampling a command without a config takes for the deployment's, and what it says of it."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.commands.sampling import of_options, of_runs
from pipeline.errors import UsageError
from pipeline.registry.named import Draft
from pipeline.speculation.deployed import FILE, StatedSettings, of_log, resolve
from pipeline.speculation.settings import GREEDY, Sampling

QWEN = StatedSettings(
    FILE, {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "max_new_tokens": 2048}
)


def test_later_sources_go_before_earlier_ones() -> None:
    """Setting by setting; each is named with its source, and what cannot be applied is said."""
    log = of_log(Counter({(("temperature", 0.6),): 90, (("temperature", 0.2),): 10, (): 900}))
    found = resolve([QWEN, *log, *of_options(None, 5, None, None)])

    assert Sampling(temperature=0.6, top_k=5, top_p=0.8) == found.sampling
    assert [
        f"sampling: temperature 0.6 from 90 of 100 rows that state theirs; top_k 5 from --top-k; top_p 0.8 from {FILE}; min_p 0 "
        f"by default, stated by no option, run, log or {FILE}",
        f"sampling: {FILE} also sets repetition_penalty 1.05, which is not applied here",
    ] == found.lines


def test_what_nobody_states_is_the_default() -> None:
    """It is said, too."""
    found = resolve([StatedSettings(FILE, {})])

    assert (Sampling(), "temperature 1, top_k 0, top_p 1, min_p 0 by default" in found.lines[0]) == (
        found.sampling,
        True,
    )


def test_cut_offs_have_no_effect_at_temperature_0() -> None:
    """Such settings are the greedy ones, whatever the file says of cut-offs."""
    found = resolve([QWEN, *of_options(0, None, None, None)])

    assert (GREEDY, "sampling: temperature 0 from --temperature") == (found.sampling, found.lines[0])


def test_values_that_no_engine_takes_are_left_out_aloud() -> None:
    """The rest stays."""
    found = resolve([QWEN, StatedSettings("3 rows", {"temperature": 99.0})])

    assert 0.7 == found.sampling.temperature
    assert "sampling: 3 rows: temperature 99.0 is out of range and not used" in found.lines


def _draft(monkeypatch: pytest.MonkeyPatch, **sampling: float) -> Draft:
    settings = Sampling(**sampling)  # type: ignore[arg-type]
    config = SimpleNamespace(sampling=SimpleNamespace(model_dump=lambda: dict(vars(settings))))
    monkeypatch.setattr("pipeline.config.stored.run_config", lambda record: record.config)
    return cast(Draft, SimpleNamespace(trained_by=SimpleNamespace(id="nightly", config=config)))


def test_the_run_that_trained_a_draft_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that disagree are refused, unless the options settle it."""
    warm, cold = _draft(monkeypatch, temperature=0.7, top_k=20), _draft(monkeypatch, temperature=0.7)
    named: dict[str, Any] = {"a": warm, "elsewhere": SimpleNamespace(trained_by=None)}

    assert Sampling(0.7, 20) == resolve([StatedSettings(FILE, {"temperature": 0.3}), *of_runs(named, [])]).sampling
    with pytest.raises(UsageError, match=r"different sampling: a at .*; b at .*; give --temperature"):
        of_runs(named | {"b": cold}, [])
    assert of_runs(named | {"b": cold}, of_options(None, 5, None, None))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"temperature": 12.0}, r"--temperature 12: input should be less than or equal to 10"),
        ({"temperature": float("nan")}, r"--temperature nan: input should be "),
        ({"min_p": 1.0}, r"--min-p 1: input should be less than 1"),
    ],
)
def test_an_option_out_of_range_is_refused(option: dict[str, float], message: str) -> None:
    """What a file says out of range is left out with a note. What somebody asked for is not."""
    with pytest.raises(UsageError, match=message):
        of_options(**{"temperature": None, "top_k": None, "top_p": None, "min_p": None} | option)
