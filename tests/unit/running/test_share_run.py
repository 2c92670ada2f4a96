"""Which stages can be made in shards: asked before anything is paid."""

from pathlib import Path

import pytest

from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.running.share_run import IN_PARTS, require_in_parts


def _config(served: bool) -> Config:
    target = {"source": "server", "tokenizer": "/t"} if served else {"source": "/t"}
    engine = {"generate": {"engine": "server", "server": {"endpoints": ["http://a"]}}} if served else {}
    raw = {"name": "n", "pair": {"target": target, "draft": {"source": "/d"}}, "corpus": {"sources": [{"path": "/p"}]}}
    return parse_config({**raw, **engine}, str(Path(__file__)))


def test_a_target_on_servers_is_not_asked_in_shards() -> None:
    """One process asks it. Examinations of its drafts may be shared out, and of a loaded target both."""
    for stage in IN_PARTS:
        require_in_parts(stage, _config(served=False))
    require_in_parts("evaluate", _config(served=True))
    with pytest.raises(UsageError, match=r"^--in-shards: the target is on servers, .*set `shards` of the pair to 0"):
        require_in_parts("generate", _config(served=True), "--in-shards")
    with pytest.raises(UsageError, match="--shards: distill is not made in shards, only generate, evaluate"):
        require_in_parts("distill", _config(served=False))
