"""Whose champion a name has: by place and content of the target, not by the last word of its path."""

from pathlib import Path

import pytest

from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.registry.drafts import TargetIdentity
from pipeline.registry.target_identity import identity_in, identity_of, is_chosen, same_target
from pipeline.store.runs import OutsideInput

HERE = TargetIdentity(place="/b/target", content="bbb", source="../b/target")


def _config(source: str, **more: object) -> Config:
    draft = {"source": source if source == "reference" else "/d"}
    revision = {"revision": "0" * 40} if source[0] not in "./~" and source != "reference" else {}
    served = {"tokenizer": "/t"} if source == "server" else {}
    target = {"source": source, **({} if served else revision), **served}
    raw = {"name": "n", "pair": {"target": target, "draft": draft}, "corpus": {"sources": [{"path": "/p.jsonl"}]}}
    return parse_config({**raw, **more}, "test")


@pytest.mark.parametrize(
    ("held", "same"),
    [
        (TargetIdentity(place="/a/target", content="aaa", source="/a/target"), False),
        (TargetIdentity(place="/b/target", content="older", source="./target"), True),  # fine-tuned in place
        (TargetIdentity(place="/a/target", content="bbb"), True),  # moved
        (TargetIdentity(place="/a/target", source="../b/target"), False),  # called so from another directory
        # Of earlier releases: no place, and the source as it was written.
        (TargetIdentity(source="/a/target", content="aaa"), False),
        (TargetIdentity(source="../b/target", content="aaa"), True),
        (TargetIdentity(source="/b/target"), True),
        (TargetIdentity(), True),  # nothing is known of it
    ],
)
def test_a_target_is_the_same_by_place_or_content(held: TargetIdentity, same: bool) -> None:
    """Of paths that end alike nothing follows, and nothing of a server that does not say what it serves."""
    assert same == same_target(HERE, held)
    assert same_target(TargetIdentity(), held)


def test_a_place_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same directory, however it is written; a model of the hub by its name."""
    monkeypatch.chdir(tmp_path)
    relative, absolute = (_config(source) for source in ("./target", str(tmp_path / "target")))
    places = [
        identity_of(config, {"target": OutsideInput("d", facts={"content": "c"})}) for config in (relative, absolute)
    ]

    assert {str(tmp_path / "target")} == {one.place for one in places}
    assert {"c"} == {one.content for one in places}
    assert "org/name" == identity_of(_config("org/name"), {}).place
    assert "reference" == identity_of(_config("reference"), {}).place


def test_tags_of_a_version_are_read_back() -> None:
    """Those of this release, and what earlier ones have."""
    tags = {"target": "./target", "understudy.target_digest": "c", "understudy.target_place": "/b/target"}
    found = TargetIdentity(place="/b/target", content="c", tokenizer="t", source="./target")
    assert found == identity_in(tags | {"understudy.tokenizer_digest": "t"})
    assert TargetIdentity() == identity_in({})


@pytest.mark.parametrize(
    ("source", "more", "chosen"),
    [
        ("/b/target", {}, False),
        ("org/name", {}, False),
        ("/b/target", {"promote": {"target_name": "mine"}}, True),
        ("/b/target", {"promote": {"deployment": "chat"}}, False),
        ("server", {"generate": {"engine": "server", "server": {"endpoints": ["http://a"], "model": "chat"}}}, True),
        (
            "server",
            {"generate": {"engine": "server", "server": {"endpoints": ["http://a"], "model": "/m/target"}}},
            False,
        ),
    ],
)
def test_a_name_is_chosen_or_derived(source: str, more: dict[str, object], chosen: bool) -> None:
    """A deployment says nothing of the target; a served name that is a path was chosen by nobody."""
    assert chosen == is_chosen(_config(source, **more))
