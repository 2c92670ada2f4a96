"""The evaluate stage over a small store: every sampling tuple, row by row, in bounded memory."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import stages.evaluate
from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import counts_from_json
from pipeline.acceptance.schema import SCHEMA
from pipeline.config.loading import parse_config
from pipeline.config.tasks import DraftRole, EvaluateTask
from pipeline.drafts import loading
from pipeline.drafts.kinds import PLAIN
from pipeline.errors import UnderstudyError
from pipeline.examination import cross_check
from pipeline.examination.token_acceptance import FILE as BY_TOKEN
from pipeline.generation.completion_store import write_shard
from pipeline.models.shape import Weights
from pipeline.running.context import Outcome
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Part, Share, drop_parts
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.store.artifacts import Store
from tests.contexts import settings_of, stage_context
from tests.fakes import TableModel, stored_completion, table_model
from tests.pairs import pair_facts

WARM = Sampling(0.5, 0, 0.9)
CANDIDATE = EvaluateTask(kind="plain", role="candidate", variant="unquantized")


def _store(directory: Path, samplings: list[Sampling]) -> None:
    """Six examination prompts at each tuple, in shards of four, and a training prompt, which must not be read."""
    generator = np.random.default_rng(4)
    rows = [stored_completion([1], [2, 3], name="train", split="train", vocabulary=8)]
    for sampling in samplings:
        for number in range(6):
            length = int(generator.integers(3, 25))
            ids = generator.integers(0, 8, 3 + length + 16)
            rows.append(
                stored_completion(
                    ids[:3],
                    ids[3:],
                    name=f"p{number}",
                    split="examination",
                    domain="ab"[number % 2],
                    sampling=sampling,
                    length=length,
                    vocabulary=8,
                )
            )
    for begin in range(0, len(rows), 4):
        write_shard(directory, f"shard-{begin:05d}", rows[begin : begin + 4])


def _by_shard(name: str) -> list[list[str]]:
    """The prompts of each shard that one of the sets has rows in: shards hold four rows, and the first is a training prompt."""
    place = ["deployed", "greedy", "also_1"].index(name)
    rows = range(1 + 6 * place, 7 + 6 * place)
    return [[f"p{row - rows[0]}" for row in rows if row // 4 == shard] for shard in sorted({row // 4 for row in rows})]


def _context(tmp_path: Path, task: EvaluateTask = CANDIDATE, share: Share | None = None, **sections: Any) -> Any:
    reference = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    base = {"name": "t", "pair": reference, "corpus": {"sources": [{"path": "reference"}]}}
    settings = {"max_gamma": 4, "gamma": 3, "crosscheck_prompts": 0, "convention": "vllm"}
    inputs = dict.fromkeys(("completions", "draft", "target"), tmp_path / "store")
    config = parse_config({**base, "evaluate": settings, **sections}, "test")
    return stage_context(
        config,
        "evaluate/candidate",
        tmp_path,
        tmp_path / "out",
        settings=replace(settings_of(config, "evaluate/candidate"), task=task.examination),
        inputs=inputs,
        digests={"completions": "c0", "draft": "d0"},
        share=share,
    )


def _run(tmp_path: Path, task: EvaluateTask = CANDIDATE, **sections: Any) -> tuple[Outcome, dict[str, Any]]:
    """As the runner does."""
    outcome = stages.evaluate.run(_context(tmp_path, task, **sections))
    drop_parts(Store(tmp_path), "out")
    profile = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    by_token = [BY_TOKEN] if task.kind == "plain" and profile["broken"] is None else []
    assert sorted(["acceptance.json", *by_token]) == sorted(path.name for path in (tmp_path / "out").iterdir())
    return outcome, profile


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store at three tuples, and a stage whose draft is a table."""
    for name in ("store", "out"):
        (tmp_path / name).mkdir()
    pair = SimpleNamespace(
        vocabulary=8,
        stop_tokens=[],
        tokenizer=tmp_path,
        context=64,
        path=lambda _: tmp_path,
        dtype=lambda _: "float32",
        facts=pair_facts(),
    )
    monkeypatch.setattr(stages.evaluate, "read_pair", lambda *_: pair)
    monkeypatch.setattr(stages.evaluate, "find_draft", lambda *_: tmp_path)
    monkeypatch.setattr(stages.evaluate, "measure_draft", lambda *_: Weights(10, 40))
    monkeypatch.setattr(loading, "load_tokenizer", lambda *_: None)
    monkeypatch.setattr(loading, "gained_tokens", lambda *_: [])
    for module in (loading, stages.evaluate):  # the draft, the target
        monkeypatch.setattr(module, "kind_of", lambda *_: PLAIN)
        monkeypatch.setattr(module, "load_model", lambda *_: table_model(8, 1))
    return tmp_path


@pytest.mark.parametrize("task", [CANDIDATE, EvaluateTask(kind="prompt-lookup")], ids=lambda task: task.kind)
def test_every_tuple_stored_is_examined(place: Path, task: EvaluateTask) -> None:
    """Headline, temperature 0 and further tuples each have figures, which follow from their rows."""
    _store(place / "store", [Sampling(), GREEDY, WARM])
    outcome, profile = _run(place, task)

    assert (SCHEMA, ["deployed", "greedy", "also_1"]) == (profile["schema"], list(profile["prompts"]))
    assert [6, 6, 6] == [len(rows) for rows in profile["prompts"].values()]
    assert [("also_1", {"temperature": 0.5, "top_k": 0, "top_p": 0.9, "min_p": 0.0})] == [
        (entry["prompts_as"], entry["sampling"]) for entry in profile["samplings"]
    ]
    for name, found in (
        ("deployed", profile["headline"]),
        ("greedy", profile["greedy"]),
        ("also_1", profile["samplings"][0]),
    ):
        tally, rows = AcceptanceTally(4, ()), list(counts_from_json(profile["prompts"][name]))
        for shard in _by_shard(name):
            tally.add([row for row in rows if row.id in shard])
        figures = json.loads(json.dumps(asdict(tally.figures(0.95))))
        assert figures == {key: found[key] for key in figures}
    assert profile["headline"]["acceptance_rate"]["value"] == outcome.figures["acceptance_rate"]
    assert {"vllm", "probabilistic", 4, 3, 8192} <= {
        value for value in profile["conditions"].values() if not isinstance(value, dict)
    }
    assert "prompts" == list(profile)[-1]


class _Limited:
    """A table with memory for so many tokens of a batch."""

    def __init__(self, most: int) -> None:
        self.device, self._table, self._most = torch.device("cpu"), table_model(8, 1), most

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        if input_ids.numel() > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self._table(input_ids, **options)


def test_out_of_memory_names_a_batch_that_fits(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with that batch the draft is examined."""
    _store(place / "store", [Sampling(), GREEDY])
    monkeypatch.setattr(loading, "load_model", lambda *_: _Limited(100))
    with pytest.raises(UnderstudyError) as found:
        _run(place)
    said = re.fullmatch(
        r"evaluate\.batch_tokens = 8192: out of memory; (\d+) fits: set evaluate\.batch_tokens to \1 and run again",
        str(found.value),
    )
    assert said is not None
    (place / "out" / "acceptance.json").unlink(missing_ok=True)
    fits = {"max_gamma": 4, "gamma": 3, "crosscheck_prompts": 0, "convention": "vllm", "batch_tokens": int(said[1])}
    _, profile = _run(place, evaluate=fits)
    assert 12 == sum(map(len, profile["prompts"].values()))


def test_stored_log_p_is_cross_checked_at_both_samplings(place: Path) -> None:
    """Greedy completions say nothing of log p, so those of the deployment's sampling are compared too."""
    _store(place / "store", [Sampling(), GREEDY])
    _, profile = _run(place, evaluate={"crosscheck_prompts": 2, "crosscheck_tokens": 3})
    _, greedy = _run(place, sampling={"temperature": 0.0}, evaluate={"crosscheck_prompts": 2, "crosscheck_tokens": 3})

    assert [4, 2] == [found["crosscheck"]["log_p"]["completions"] for found in (profile, greedy)]


def _without_memory(*_: object, **named: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_cross_check_without_memory_names_its_prompts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were tried and fit; where not even the target fits beside the draft, how to do without a cross-check."""
    _store(place / "store", [Sampling(), GREEDY])
    whole, asked = cross_check.cross_check, list[int]()

    def limited(target: Any, draft: Any, stored: Sequence[Any], *rest: Any) -> Any:
        asked.append(len(stored))
        return whole(target, draft, stored, *rest) if len(stored) < 3 else _without_memory()

    for module in (cross_check, stages.evaluate):
        monkeypatch.setattr(module, "cross_check", limited)
    checked = {"crosscheck_prompts": 5, "crosscheck_tokens": 3}
    with pytest.raises(
        UnderstudyError, match=r"^evaluate\.crosscheck_prompts = 5: out of memory; 2 fits: set evaluate"
    ):
        _run(place, evaluate=checked)
    assert [5, 2] == asked
    monkeypatch.setattr(stages.evaluate, "load_model", _without_memory)
    with pytest.raises(
        UnderstudyError, match=r"^cross-check: out of memory; set evaluate\.crosscheck_prompts to 0 for none"
    ):
        _run(place, evaluate=checked)


def test_a_greedy_deployment_is_examined_once(place: Path) -> None:
    """Where temperature 0 is deployed, its figures are the headline's and its rows are written once."""
    _store(place / "store", [GREEDY])
    _, profile = _run(place, sampling={"temperature": 0.0, "top_p": 0.5})

    assert (["deployed"], []) == (list(profile["prompts"]), profile["samplings"])
    assert profile["headline"] == profile["greedy"]


@pytest.mark.parametrize("task", [CANDIDATE, EvaluateTask(kind="prompt-lookup")], ids=lambda task: task.kind)
def test_the_order_in_which_shards_are_examined_changes_no_byte(
    place: Path, monkeypatch: pytest.MonkeyPatch, task: EvaluateTask
) -> None:
    """Not even where one breaks a draft: the reason is that of the first shard that has one."""
    _store(place / "store", [Sampling(), GREEDY])
    in_order, make = Spread.make, Spread.make

    def files() -> dict[str, bytes]:
        _run(place, task)
        return {path.name: path.read_bytes() for path in (place / "out").iterdir()}

    def backwards(self: Spread, parts: Sequence[Part[Any]], label: str, unit: str) -> int:
        return make(self, parts[::-1], label, unit)

    broken = table_model(8, 1)
    broken.table_PVW[:, 3] = math.nan
    for model in (table_model(8, 1), broken):
        monkeypatch.setattr(loading, "load_model", lambda *_, model=model: model)
        monkeypatch.setattr(Spread, "make", in_order)
        found = files()
        monkeypatch.setattr(Spread, "make", backwards)
        assert found == files()
    assert (task.kind == "plain") == (b"NaN logits on completion 1:" in found["acceptance.json"])


def test_shards_that_are_examined_are_not_examined_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed stage goes on with the files of its shards, and gives the same bytes."""
    _store(place / "store", [Sampling(), GREEDY])
    _run(place)
    expected = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
    for name in expected:
        (place / "out" / name).unlink()
    tally = stages.evaluate.tally_counts

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages.evaluate, "tally_counts", killed)
    with pytest.raises(KeyboardInterrupt):
        _run(place)
    monkeypatch.setattr(stages.evaluate, "tally_counts", tally)
    monkeypatch.setattr(loading, "load_model", killed)
    _run(place)

    assert expected == {path.name: path.read_bytes() for path in (place / "out").iterdir()}


class _BreaksLate(TableModel):
    """From the third batch on its logits are NaN."""

    calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        output = super().__call__(*arguments, **named)
        self.calls += 1
        if self.calls > 2:
            output.logits = output.logits * math.nan
        return output


def test_a_broken_draft_has_a_reason_and_no_rows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the failure comes after rows of an earlier window were written."""
    _store(place / "store", [Sampling(), GREEDY])
    monkeypatch.setattr(loading, "load_model", lambda *_: _BreaksLate(table_model(8, 1).table_PVW))
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 2)
    outcome, profile = _run(place)

    assert {"deployed": [], "greedy": []} == profile["prompts"]
    assert "the draft returned NaN logits on completion 4" in profile["broken"]
    assert ({}, {"broken": profile["broken"]}) == (outcome.figures, outcome.notes)


@pytest.mark.parametrize("role", ["base", "candidate", "champion"])
def test_a_draft_of_another_family_is_broken(place: Path, monkeypatch: pytest.MonkeyPatch, role: DraftRole) -> None:
    """Whatever its role, because the role is not in the key."""

    def refuse(*_: object) -> None:
        raise UnderstudyError("token 3 differs")

    _store(place / "store", [Sampling(), GREEDY])
    monkeypatch.setattr(loading, "gained_tokens", refuse)
    _, profile = _run(place, EvaluateTask(kind="plain", role=role))

    assert profile["broken"].startswith("the draft is not of this pair")
    assert profile["broken"].endswith("token 3 differs")


@pytest.mark.parametrize("fits", [True, False])
def test_tasks_make_shares_of_an_examination(place: Path, monkeypatch: pytest.MonkeyPatch, fits: bool) -> None:
    """Which leave the artifact alone, and end without an error where the draft is broken: the stage itself says so, and examines
    nothing again."""
    _store(place / "store", [Sampling(), GREEDY])
    gained = [] if fits else UnderstudyError("token 3 differs")
    monkeypatch.setattr(loading, "gained_tokens", Mock(side_effect=[gained] * 3))
    _, expected = _run(place)
    (place / "out" / "acceptance.json").unlink()
    (place / "out" / BY_TOKEN).unlink(missing_ok=True)
    missing = [stages.evaluate.run(_context(place, share=Share(number, 2))).notes["missing"] for number in (1, 2)]

    assert ([2, 0], []) == (missing, list((place / "out").iterdir()))
    assert expected == _run(place)[1]
    assert fits == (expected["broken"] is None)


def test_dev_prompts_are_counted_as_for_a_user(place: Path) -> None:
    """A task for the dev split reads dev completions, which have no tokens past the end, and only the deployed tuple."""
    write_shard(place / "store", "shard-0", [stored_completion([1, 2], [3, 4, 5], name="d", split="dev", vocabulary=8)])
    _, profile = _run(place, EvaluateTask(kind="plain", role="candidate", variant="int8", split="dev"))

    assert ("user", None) == (profile["conditions"]["convention"], profile["crosscheck"])
    assert {"deployed": ["d"]} == {name: [row["id"] for row in rows] for name, rows in profile["prompts"].items()}


def test_nothing_to_examine_is_an_error(place: Path) -> None:
    """A store without examination completions: one line that says what is missing and what to set."""
    _store(place / "store", [])
    with pytest.raises(
        UnderstudyError, match=r"no deployed and greedy completions to examine.* corpus\.splits\.examination"
    ):
        _run(place)
