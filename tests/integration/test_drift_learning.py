"""A retraining that learns from what changed in the traffic, through the real command."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.commands.watch import check_can_learn
from pipeline.config.loading import load_config
from pipeline.corpus.prompt_store import open_prompts
from pipeline.corpus.same_text import text_id
from pipeline.errors import UsageError
from tests.integration.conftest import NOBODY, SMOKE, Ended, Place, Smoke

CHANGE = datetime(2026, 11, 24, 10, tzinfo=UTC)
SINCE = "corpus.since=2026-11-24T12:00:00+02:00"  # the same moment


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store for all logs: the pair, which is the same for all, is looked at once."""
    return Place(tmp_path_factory.mktemp("paired")).prepare()


def _prompt(number: int) -> str:
    return f"def function_{number}(argument_{number * 7919}):"


def _log(first: int, count: int, hours: float, **extra: Any) -> list[dict[str, Any]]:
    """Rows of so many hours after the change."""
    created = CHANGE.timestamp() + 3600 * hours
    return [
        {"prompt": _prompt(number), "domain": "code", "created": created + number, **extra}
        for number in range(first, first + count)
    ]


def _config(smoke: Smoke, where: Path, **files: list[dict[str, Any]]) -> Path:
    """A config of the smoke pair from its directories, with a source for each of `files`."""
    pair = smoke.place.artifact("pair")
    raw = yaml.safe_load(SMOKE.read_text(encoding="utf-8"))
    raw["pair"] = {role: {"source": str(pair / role)} for role in ("target", "draft")}
    raw["corpus"]["sources"] = [{"path": f"{name}.jsonl"} for name in files]
    for name, rows in files.items():
        (where / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = where / "config.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def _corpus(place: Place, run: str, config: Path, *overrides: str) -> Ended:
    options = [part for override in overrides for part in ("--set", override)]
    return place.understudy("run", config, "--until", "corpus", "--run", run, *options, MLFLOW_TRACKING_URI=NOBODY)


def test_every_split_is_of_rows_since_the_change(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """A source without times is used as always; the moment is the same whatever its zone, and it is in the key."""
    fixed = [{"prompt": _prompt(number), "domain": "fixed"} for number in range(1000, 1060)]
    config = _config(smoke, tmp_path, log=[*_log(0, 60, -30), *_log(60, 60, 1)], fixed=fixed)
    for run, override in (("zone", SINCE), ("utc", "corpus.since=2026-11-24T10:00:00Z"), ("all", "corpus.since=null")):
        ended = _corpus(paired, run, config, override)
        assert 0 == ended.code, ended.err
    found, everything = (list(open_prompts(paired.artifact("corpus", run))) for run in ("zone", "all"))
    expected = {text_id([{"role": "user", "content": _prompt(n)}]) for n in (*range(60, 120), *range(1000, 1060))}

    assert {prompt.text_id for prompt in found} <= expected
    assert {("code", split) for split in ("train", "dev", "examination")} <= {(one.domain, one.split) for one in found}
    assert len(everything) > len(found) > 100
    assert paired.artifact("corpus", "zone") == paired.artifact("corpus", "utc")
    figures = json.loads((paired.artifact("corpus", "zone") / "manifest.json").read_text())["figures"]
    assert (120, 60) == (figures["rows"], figures["older"])


@pytest.mark.parametrize(
    ("files", "overrides", "complaint"),
    [
        (
            {"log": _log(0, 60, -30)},
            [SINCE],
            "log.jsonl: no row is of corpus.since = 2026-11-24T10:00:00Z or later; the newest is of 2026-11-23T04:00:59Z; wait "
            "until the log has more rows, or set corpus.since to an earlier time",
        ),
        (
            {"log": [*_log(0, 60, -30), *_log(60, 20, 1)]},
            [SINCE, "gate.min_prompts_per_domain=40"],
            "these are rows since corpus.since: wait until the log has more, or set it to an earlier time",
        ),
        (
            {"fixed": [{"prompt": _prompt(number)} for number in range(60)]},
            [SINCE],
            "corpus.since = 2026-11-24T10:00:00Z: no source has times (",
        ),
    ],
    ids=["nothing since", "too few since", "no times"],
)
def test_what_cannot_be_learnt_is_said_before_anything_is_paid(
    smoke: Smoke, place: Place, tmp_path: Path, files: dict[str, Any], overrides: list[str], complaint: str
) -> None:
    """Exit 2, one line of what to do, and no artifact."""
    options = [part for override in overrides for part in ("--set", override)]
    ended = place.understudy("run", _config(smoke, tmp_path, **files), *options, MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert complaint in ended.complaint
    assert not (place.store / "artifacts").exists()


def test_one_of_two_logs_may_have_no_row_since_the_change(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """It is named in a warning."""
    config = _config(smoke, tmp_path, idle=_log(0, 60, -30), log=_log(60, 60, 1))
    ended = _corpus(paired, "idle", config, SINCE)
    assert 0 == ended.code, ended.err
    assert f"{tmp_path}/idle.jsonl: no row is of corpus.since = 2026-11-24T10:00:00Z or later" in ended.err


def test_a_row_of_a_log_without_a_time_is_no_row_since(smoke: Smoke, paired: Place, tmp_path: Path) -> None:
    """It is rejected, as in the window of a source; too many stop the run."""
    rows = [*_log(0, 60, 1), *({"prompt": _prompt(number)} for number in range(60, 80))]
    ended = _corpus(paired, "timeless", _config(smoke, tmp_path, log=rows), SINCE)
    assert 2 == ended.code, ended.err
    assert "line 61: no time: 'created' is missing; 20 of 80 rows rejected (25.0%)" in ended.complaint


def test_a_config_without_a_log_cannot_learn_from_drift(smoke: Smoke, tmp_path: Path) -> None:
    """What `understudy watch` asks before it starts anything."""
    fixed = [{"prompt": _prompt(number)} for number in range(60)]
    with pytest.raises(UsageError, match=r"cannot learn from the drift: no source has times \(.*'created'\); name the"):
        check_can_learn(load_config(_config(smoke, tmp_path, fixed=fixed)))
    with pytest.raises(UsageError, match=r"cannot learn from the drift: no source has times; name the"):
        check_can_learn(load_config(SMOKE))
    check_can_learn(load_config(_config(smoke, tmp_path, fixed=fixed, log=_log(0, 60, -1))))
