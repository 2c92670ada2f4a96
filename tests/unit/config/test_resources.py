"""Which keys of a config are resources."""

from typing import Any

import pytest

from pipeline.config.resources import differing


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"device": "cpu"}, {"device": "cuda:1"}, []),
        ({"execution": {"local": 1, "ray": None}}, {"execution": {"local": 1, "ray": {"workers": 2}}}, []),
        ({}, {"plan": {"rows": 3}}, []),
        ({"distill": {"processes": 1, "batch": 8}}, {"distill": {"processes": 2, "batch": 16}}, ["distill.batch"]),
        ({"distill": {"shard": False}}, {"distill": {"shard": True}}, []),
        ({"generate": {"server": None}}, {"generate": {"server": {"endpoints": []}}}, ["generate.server"]),
        ({"devices": 1, "seed": 2}, {"devices": 2, "seed": 3}, ["devices", "seed"]),
        ({"sources": [{"path": "a"}]}, {"sources": [{"path": "b"}]}, ["sources"]),
    ],
)
def test_keys_that_differ_apart_from_resources(one: dict[str, Any], other: dict[str, Any], expected: list[str]) -> None:
    """A key of the same beginning is another key; a section that is new is no resource as a whole."""
    assert expected == differing(one, other)
    assert expected == differing(other, one)
