"""A draft that the processes of a training divide: what each holds, and checkpoints that any number of processes resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.distill import OnPolicyConfig
from pipeline.config.generate import SamplingConfig
from pipeline.distillation.segments import segment_weights
from pipeline.distillation.settings import RoundSettings, TrainingSettings
from pipeline.distillation.sharding import complete
from pipeline.distillation.training import Training
from pipeline.models.stored_pair import Pair
from tests.fakes import quiet, tiny_llama, tiny_tokenizer
from tests.integration.trained import SETTINGS, flat, in_processes, rows_of, trained, weights_of

Outcome = list[Any]


def _same(one: Outcome, found: Outcome) -> None:
    assert flat(one[1]) == pytest.approx(flat(found[1]), rel=1e-4, abs=1e-4)
    for name, values in one[0].items():
        assert values == pytest.approx(found[0][name], abs=1e-3), name


class _Held:
    """Bytes of weights, gradients and optimizer state that this process holds in a step, by the storage of its tensors."""

    def __init__(self) -> None:
        self.bytes, self._step = 0, torch.optim.AdamW.step

    def step(self, optimizer: Any, closure: Any = None) -> Any:
        found = self._step(optimizer, closure)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        states = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
        tensors = [*weights, *(weight.grad for weight in weights), *states]
        storages = {local.untyped_storage().data_ptr(): local.untyped_storage() for local in map(_local, tensors)}
        self.bytes = sum(storage.nbytes() for storage in storages.values())
        return found


def _local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def _held(work: Path, shard: bool) -> int:
    held = _Held()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: held.step(self, closure))
        trained(SETTINGS, 7, work, shard=shard)
    return held.bytes


def test_each_of_two_processes_holds_half(tmp_path: Path) -> None:
    """Of 16 bytes a parameter; a norm's weights and a last row may be uneven."""
    whole, out = _held(tmp_path / "whole", shard=False), tmp_path / "out.json"
    assert [0, 0] == in_processes(2, lambda: _held(tmp_path / "part", shard=True), out)

    assert 0.5 <= json.loads(out.read_text()) / whole <= 0.51
    assert [0, 0] == in_processes(2, lambda: _held(tmp_path / "copy", shard=False), out)
    assert json.loads(out.read_text()) == whole


class _Killed(SystemExit):
    pass


def _until_killed(settings: Any, work: Path, shard: bool) -> None:
    """The second examination is that at step 3; the last checkpoint is that of step 2."""
    asked = iter(range(2))

    def before() -> None:
        if next(asked) == 1:
            raise _Killed(9)

    trained(settings, 7, work, shard=shard, before=before)


@pytest.mark.parametrize(
    ("killed", "resumed"),
    [
        ((2, True), (1, False)),
        ((1, False), (2, True)),
        pytest.param((2, True), (3, True), marks=pytest.mark.long),
        pytest.param((2, True), (4, True), marks=pytest.mark.long),
        pytest.param((2, False), (2, True), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_checkpoint_is_resumed_however_the_draft_is_divided(
    killed: tuple[int, bool], resumed: tuple[int, bool], tmp_path: Path
) -> None:
    """Processes, and whether they divide the draft: the end is that of an undisturbed training."""
    settings = SETTINGS.model_copy(update={"optimizer": "muon"})  # and AdamW, of embeddings
    out, work = tmp_path / "out.json", tmp_path / "work"
    ends = in_processes(killed[0], lambda: _until_killed(settings, work, killed[1]), out)
    assert 0 not in ends
    assert ["checkpoint-2"] == [path.name for path in (work / "0").glob("checkpoint-*")]
    again = in_processes(resumed[0], lambda: trained(settings, 7, work, shard=resumed[1]), out)

    assert [0] * resumed[0] == again
    _same(trained(settings, 7, tmp_path / "unbroken"), json.loads(out.read_text()))


def _pair(place: Path) -> Any:
    """Target and draft of 32 tokens, and what a training reads of a pair."""
    for role, seed in {"target": 2, "draft": 51}.items():
        tiny_llama(seed, dtype=torch.float32).save_pretrained(place / role)
    tiny_tokenizer().save_pretrained(place / "tokenizer")
    facts: Any = {"vocabulary": 32, "stop_tokens": [0]}
    return Pair(place, facts, {})


def _rounds(pair: Any, work: Path, shard: bool) -> Outcome:
    """An offline phase and an on-policy round, with examinations on dev prompts."""
    rounds = RoundSettings(target_dtype="float32", max_new_tokens=12, distribution_tokens=3, batch=2, shard=3)
    learnt = OnPolicyConfig(rounds=1, prompts=7, max_steps=3, learning_rate=1e-2)
    settings = TrainingSettings(
        distill=SETTINGS.model_copy(update={"on_policy": learnt}),
        rounds=rounds,
        sampling=SamplingConfig(temperature=1.0),
        draft_sampling="probabilistic",
        batch_tokens=200,
        dtype="float32",
        seed=4,
    )
    rows = rows_of(7)
    training = Training(settings, pair, rows_of(9), quiet(), "cpu", False, shard=shard)
    model, log = training.run_phases(rows, segment_weights(rows, {}), work)
    with complete(model) as whole_model:
        return [weights_of(whole_model), log]


@pytest.mark.parametrize("shard", [pytest.param(False, marks=pytest.mark.long), True])
def test_on_policy_rounds_in_two_processes_are_those_of_one(shard: bool, tmp_path: Path) -> None:
    """Each samples a part, from the whole draft, and examines some of the dev prompts; nothing is sampled twice."""
    pair, out = _pair(tmp_path), tmp_path / "out.json"
    one = _rounds(pair, tmp_path / "one", shard=False)
    assert [0, 0] == in_processes(2, lambda: _rounds(pair, tmp_path / "two", shard), out)

    _same(one, json.loads(out.read_text()))
    written = [sorted(path.name for path in (tmp_path / work / "round-1/written").iterdir()) for work in ("one", "two")]
    assert written[0] == written[1]
    assert len(written[0]) >= 3
