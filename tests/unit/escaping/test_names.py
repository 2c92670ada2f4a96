"""Names in MLflow: valid by its own rules, readable, and one for each name of a user."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.escaping.names import MAX_KEY, metric_name, model_name, unescaped_name

_PARTS = st.text(st.sampled_from("/._x2fab :-\n\x1b日é"), max_size=12) | st.text(max_size=40)


@settings(deadline=None)  # the first imports MLflow
@given(_PARTS)
@example("/v1/chat/completions")
@example("a//b")
@example(".")
@example("..")
@example("../../x")
@example("_x2f_")
@example("_x41/")
@example("a\n")
def test_every_name_is_a_key_that_mlflow_accepts(domain: str) -> None:
    """A domain behind `gain/` passes MLflow's check of characters and paths, and can be read back."""
    from mlflow.utils.validation import _validate_metric_name, _validate_tag_name

    name = metric_name(f"gain/{domain}")
    _validate_metric_name(name)
    _validate_tag_name(name)

    assert len(name) <= MAX_KEY
    assert "_x110000_" in name or f"gain/{domain}" == unescaped_name(name)


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("code", "code"),
        ("code/python: 3.11", "code/python: 3.11"),
        ("日本", "日本"),
        ("中文", "中文"),
        ("/v1/chat/completions", "_x2f_v1/chat/completions"),
        ("a//b", "a/_x2f_b"),
        ("a/", "a_x2f_"),
        (".", "_x2e_"),
        ("..", "_x2e_."),
        ("a/../b", "a/_x2e_./b"),
        ("...", "..."),
        ("a\x1b[1m", "a_x1b__x5b_1m"),
        ("_x2f_", "_x5f_x2f_"),
        ("max_x", "max_x"),
    ],
)
def test_a_name_stays_readable(domain: str, name: str) -> None:
    """Only what MLflow refuses is escaped."""
    assert f"gain/{name}" == metric_name(f"gain/{domain}")


def test_long_names_that_differ_at_the_end_stay_two() -> None:
    """A cut name ends with a hash of the whole, which no name that fits can be."""
    one, other = metric_name("gain/" + "a" * 300), metric_name("gain/" + "a" * 301)

    assert one != other
    assert (MAX_KEY, MAX_KEY) == (len(one), len(other))
    assert one != metric_name(one)


@given(_PARTS, _PARTS)
def test_registered_models_of_two_targets_stay_two(one: str, other: str) -> None:
    """The name of a registered model has no character that a shell or a URL reads, and can be read back."""
    assert one == unescaped_name(model_name(one))
    assert (one == other) == (model_name(one) == model_name(other))
    assert set() == {
        letter for letter in model_name(one) if not (letter.isascii() and (letter.isalnum() or letter in "._-"))
    }
