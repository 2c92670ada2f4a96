"""Training: bit-equal after a kill, only whole checkpoints, and no loss that is not a number."""

import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.distill import DistillConfig, LoraConfig
from pipeline.distillation.adapters import add_adapters, merge_adapters
from pipeline.distillation.trained_head import TrainedHead
from pipeline.distillation.weighted_completions import ScoredPrompts
from pipeline.drafts.made_heads import new_eagle3, new_medusa
from pipeline.errors import UnderstudyError, UsageError
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.generation.completion_store import StoredCompletion
from pipeline.models.output_head import linear_head
from pipeline.progress import Progress
from pipeline.speculation.target_states import TargetStates
from tests.architectures import tiny_model
from tests.fakes import quiet, stored_completion, tiny_llama, tiny_tokenizer

SETTINGS = DistillConfig(bf16=False, max_steps=6, batch=2, save_every=2, evaluate_every=5, learning_rate=1e-2)
Log = list[dict[str, Any]]


class _Killed(Exception):
    pass


def _rows(count: int = 10) -> list[StoredCompletion]:
    generator = np.random.default_rng(0)
    return [
        stored_completion(
            generator.integers(0, 32, 3), generator.integers(0, 32, 4 + n % 3), name=f"prompt-{n}", seed=n
        )
        for n in range(count)
    ]


def _length(model: Any) -> float:
    """A figure that depends on every weight."""
    return float(sum(weight.detach().square().sum() for weight in model.parameters()))


def _later_is_better() -> Callable[[Any], AcceptanceSummary]:
    """Figures that depend on every weight, and an omega that rises with each asking."""
    asked: list[int] = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(1)
        return AcceptanceSummary(_length(model), float(len(asked)))

    return examine


def _train(
    work: Path,
    settings: DistillConfig = SETTINGS,
    examine: Callable[[Any], AcceptanceSummary] | None = None,
    rows: list[StoredCompletion] | None = None,
    vocabulary: int = 32,
    seed: int = 3,
    wrap: Callable[[Any], Any] = lambda model: model,
    progress: Progress | None = None,
    may_diverge: bool = False,
    prompts: ScoredPrompts | None = None,
) -> tuple[Any, Log]:
    from pipeline.distillation.segments import segment_weights
    from pipeline.distillation.trainer import distill
    from pipeline.distillation.weighted_completions import WeightedCompletions

    model = wrap(tiny_llama(51, layers=1, dtype=torch.float32))
    rows = _rows() if rows is None else rows
    if settings.learning_rate == "auto":
        settings = settings.model_copy(update={"learning_rate": 2e-3})
    return model, distill(
        model,
        tiny_tokenizer(),
        WeightedCompletions(rows, vocabulary, segment_weights(rows, settings.segment_shares), prompts),
        settings,
        seed=seed,
        work=work,
        examine=examine or _later_is_better(),
        progress=progress or quiet(),
        may_diverge=may_diverge,
    )


def _killed_at_step_5(work: Path, wrap: Callable[[Any], Any] = lambda model: model) -> None:
    asked = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(1)
        if len(asked) == 2:
            raise _Killed
        return AcceptanceSummary(_length(model), 1.0)

    with pytest.raises(_Killed):
        _train(work, examine=examine, wrap=wrap)


def _weights(model: Any) -> dict[str, list[float]]:
    return {name: weight.flatten().tolist() for name, weight in model.state_dict().items()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Log]:
    return _train(tmp_path_factory.mktemp("unbroken"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run killed at step 5 left behind."""
    work = tmp_path_factory.mktemp("killed")
    _killed_at_step_5(work)
    return work


def test_training_moves_the_draft_towards_the_target(unbroken: tuple[Any, Log]) -> None:
    """The log holds the loss of every step, falling, and the dev figure before, at step 5 and at the end."""
    model, log = unbroken
    losses = [entry["loss"] for entry in log if "loss" in entry]

    assert 6 == len(losses)
    assert losses[-1] < losses[0]
    assert [0, 5, 6] == [entry["step"] for entry in log if "dev_acceptance_rate" in entry]
    assert _length(model) == next(entry["dev_acceptance_rate"] for entry in log[::-1] if "dev_acceptance_rate" in entry)


def test_a_killed_run_ends_as_an_unbroken_one(
    unbroken: tuple[Any, Log], killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed at step 5 and started again, it resumes from step 4, which it says, and ends with the same weights and log, bit by
    bit."""
    work = shutil.copytree(killed, tmp_path / "work")
    asked: list[float] = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(_length(model))
        return AcceptanceSummary(asked[-1], 1.0 + len(asked))

    model, log = _train(work, examine=examine, progress=Progress(False))

    assert "distill: continues from step 4 of 6" in capsys.readouterr().err.splitlines()
    assert 2 == len(asked)  # at steps 5 and 6, not at the beginning: it did not start over
    assert _weights(unbroken[0]) == _weights(model)
    assert unbroken[1] == log


def test_a_checkpoint_without_its_mark_is_not_resumed_from(
    unbroken: tuple[Any, Log], killed: Path, tmp_path: Path
) -> None:
    """A checkpoint that a kill cut short is passed over for the one before it, and the end is the same."""
    work = shutil.copytree(killed, tmp_path / "work")
    (work / "checkpoint-4" / "checkpoint_complete").unlink()
    for name in ("weights.safetensors", "optimizer.pt"):
        (work / "checkpoint-4" / name).write_bytes(b"half")
    model, _ = _train(work)

    assert ["checkpoint-4", "checkpoint-6"] == sorted(path.name for path in work.glob("checkpoint-*"))
    assert _weights(unbroken[0]) == _weights(model)


def test_a_finished_run_is_not_trained_again(unbroken: tuple[Any, Log], tmp_path: Path) -> None:
    """Started again behind its last checkpoint, it returns the same weights."""
    first, _ = _train(tmp_path)
    again, log = _train(tmp_path)

    assert _weights(first) == _weights(again)
    assert unbroken[1] == log


def _judged(*omegas: float) -> Callable[[Any], AcceptanceSummary]:
    given = iter(omegas)
    return lambda model: AcceptanceSummary(_length(model), next(given))


@pytest.mark.parametrize(
    ("omegas", "best"), [((1.0, 3.0, 2.0), 5), ((3.0, 1.0, 2.0), 0), ((1.0, 2.0, 3.0), 6), ((3.0, 3.0, 2.0), 0)]
)
def test_the_best_draft_on_dev_is_kept(omegas: tuple[float, ...], best: int, tmp_path: Path) -> None:
    """By tokens per target call, wherever in the training it was, the base draft included."""
    model, log = _train(tmp_path, examine=_judged(*omegas))
    expected = next(
        entry["dev_acceptance_rate"] for entry in log if entry["step"] == best and "dev_tokens_per_target_call" in entry
    )

    assert list(omegas) == [
        entry["dev_tokens_per_target_call"] for entry in log if "dev_tokens_per_target_call" in entry
    ]
    assert expected == _length(model)


def test_patience_stops_a_training_that_gains_nothing(tmp_path: Path) -> None:
    """After that many examinations without a better draft."""
    settings = DistillConfig(
        bf16=False, max_steps=20, batch=2, save_every=2, evaluate_every=2, learning_rate=1e-2, patience=2
    )
    model, log = _train(tmp_path, settings, examine=_judged(1.0, 3.0, 2.0, 2.5, 9.0))

    assert [0, 2, 4, 6] == [entry["step"] for entry in log if "dev_tokens_per_target_call" in entry]
    assert _length(model) == next(
        e["dev_acceptance_rate"] for e in log if e["step"] == 2 and "dev_tokens_per_target_call" in e
    )


def test_a_run_that_patience_ended_is_not_trained_on(tmp_path: Path) -> None:
    """Killed after its last checkpoint and started again, it ends where it ended, with the same weights."""
    settings = DistillConfig(
        bf16=False, max_steps=20, batch=2, save_every=2, evaluate_every=2, learning_rate=1e-2, patience=2
    )
    first, log = _train(tmp_path, settings, examine=_judged(1.0, 3.0, 2.0, 2.5))
    again, same = _train(tmp_path, settings, examine=_judged(9.0))

    assert _weights(first) == _weights(again)
    assert log == same


def test_weights_are_those_of_the_step_that_the_log_names(tmp_path: Path) -> None:
    """Killed after a better draft that the resumed run, whose figures differ in the last digits, does not find again."""
    settings = DistillConfig(bf16=False, max_steps=8, batch=2, save_every=4, evaluate_every=3, learning_rate=1e-2)
    given = iter([1.0, 1.3, 1.5])

    def examine(model: Any) -> AcceptanceSummary:
        try:
            return AcceptanceSummary(_length(model), next(given))
        finally:
            if not given.__length_hint__():
                asked.append(1)

    asked: list[int] = []
    lengths: dict[int, float] = {}

    class _Stop(Exception):
        pass

    def killed(model: Any) -> AcceptanceSummary:
        if asked:
            raise _Stop
        return examine(model)

    with pytest.raises(_Stop):
        _train(tmp_path, settings, examine=killed)
    model, log = _train(tmp_path, settings, examine=_judged(1.29, 1.28))
    lengths = {int(e["step"]): e["dev_acceptance_rate"] for e in log if "dev_tokens_per_target_call" in e}

    assert [0, 3, 6, 8] == list(lengths)
    assert _length(model) == lengths[3]


def test_a_killed_run_keeps_the_best_of_an_unbroken_one(tmp_path: Path) -> None:
    """Killed after a better draft was written than any before the checkpoint that it resumes from."""
    whole, _ = _train(tmp_path / "whole", examine=_judged(1.0, 3.0, 2.0))
    broken = _judged(1.0, 3.0)

    def examine(model: Any) -> AcceptanceSummary:
        try:
            return broken(model)
        except StopIteration:
            raise _Killed from None

    with pytest.raises(_Killed):
        _train(tmp_path / "work", examine=examine)
    (tmp_path / "work" / ".best-3.safetensors.77.partial").write_bytes(b"half")
    resumed, _ = _train(tmp_path / "work", examine=_judged(3.0, 2.0))

    assert _weights(whole) == _weights(resumed)


@pytest.mark.parametrize("loss", ["forward_kl", "lk_hybrid", "cross_entropy"])
def test_a_loss_that_is_not_a_number_names_step_and_prompts(loss: Any, tmp_path: Path) -> None:
    """Weights damaged after the second step stop the run at the third, with the prompts of its batch."""
    asked: list[int] = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(1)
        if len(asked) == 2:
            model.lm_head.weight.data[:] = torch.nan
        return AcceptanceSummary(0.0, 0.0)

    settings = DistillConfig(
        bf16=False, max_steps=6, batch=2, save_every=6, evaluate_every=2, loss=loss, learning_rate=2e-3
    )
    with pytest.raises(UnderstudyError, match=r"loss is nan at step 3 on .* prompts prompt-\d, prompt-\d;"):
        _train(tmp_path, settings, examine)


def test_a_trial_that_diverges_goes_on_to_its_end(tmp_path: Path) -> None:
    """In several processes only one may see that a loss is no number, and the others wait for it."""
    asked: list[int] = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(1)
        model.lm_head.weight.data[:] = torch.nan
        return AcceptanceSummary(0.0, 0.0)

    settings = DistillConfig(bf16=False, max_steps=2, batch=2, save_every=3, evaluate_every=2, learning_rate=1e-2)
    _, log = _train(tmp_path, settings, examine, may_diverge=True)
    assert 2 == len(asked)
    assert 2 == log[-1]["step"]


@pytest.mark.parametrize("way", ["at once", "in chunks", "by the model's own logits"])
def test_padding_and_prompts_do_not_enter_the_loss(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first loss, of one batch of unequal rows, one of two documents, equals the loss computed by hand over the
    completion positions and the shared vocabulary."""
    from pipeline.distillation import chunked_loss, trainer
    from pipeline.distillation.losses import cross_entropy
    from tests.fakes import full_logits

    if way == "in chunks":
        monkeypatch.setattr(chunked_loss, "_LOGITS", 2 * 28)
    if way == "by the model's own logits":
        monkeypatch.setattr(trainer, "linear_head", lambda model: None)
    rows = [
        stored_completion([3, 4], [5, 6, 7], name="a"),
        stored_completion([8], [9], name="b"),
        stored_completion([10, 11], [12], name="c"),
    ]
    settings = DistillConfig(bf16=False, max_steps=1, batch=2, save_every=1, loss="cross_entropy")
    _, log = _train(tmp_path, settings, rows=rows, vocabulary=28)
    model = tiny_llama(51, layers=1, dtype=torch.float32)
    texts = [([3, 4, 5, 6, 7], 1), ([8, 9], 0), ([10, 11, 12], 1)]
    logits = torch.cat([full_logits(model, text)[first:-1, :28] for text, first in texts])

    assert cross_entropy(logits.log_softmax(-1), torch.tensor([5, 6, 7, 9, 12])).mean().item() == pytest.approx(
        next(entry["loss"] for entry in log if "loss" in entry), abs=1e-4
    )


def test_the_loss_is_the_one_asked_for(tmp_path: Path) -> None:
    """Each has a first loss of its own."""
    from pipeline.distillation.losses import LOSSES

    names: list[Any] = [*LOSSES, "cross_entropy"]
    settings = [DistillConfig(bf16=False, max_steps=1, batch=2, save_every=1, loss=name) for name in names]
    logs = [_train(tmp_path / one.loss, one)[1] for one in settings]

    assert len(names) == len({entry["loss"] for log in logs for entry in log if "loss" in entry})


def test_the_seed_decides_the_order(unbroken: tuple[Any, Log], tmp_path: Path) -> None:
    """Another seed begins with another batch."""
    _, log = _train(tmp_path, seed=4)

    assert unbroken[1][1]["loss"] != log[1]["loss"]


def test_the_newest_checkpoint_has_the_highest_step(tmp_path: Path) -> None:
    """As a number, not as text."""
    from pipeline.distillation.checkpoints import last_checkpoint

    for step in (8, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "checkpoint_complete").touch()

    assert tmp_path / "checkpoint-10" == last_checkpoint(tmp_path)


def test_a_kill_while_the_best_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run that finds nothing better would otherwise end on half a file."""
    from pipeline.distillation import checkpoints

    own, sizes = checkpoints.save_file, list[int]()

    def save_file(weights: Any, path: Path) -> None:
        if sizes and "best" in path.name:
            path.write_bytes(b"half")
            raise _Killed
        own(weights, path)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(checkpoints, "save_file", save_file)
    with pytest.raises(_Killed):
        _train(tmp_path, examine=_judged(1.0, 2.0))

    assert sizes[0] == (tmp_path / "best-0.safetensors").stat().st_size
    assert ["best-0.safetensors"] == [path.name for path in tmp_path.glob("best-*.safetensors")]


def test_a_draft_is_examined_as_it_will_run_and_trained_as_it_learns(tmp_path: Path) -> None:
    """Dropout is off for the one and on for the other."""
    examined: list[bool] = []
    trained: list[bool] = []

    def examine(model: Any) -> AcceptanceSummary:
        if not examined:
            model.model.register_forward_pre_hook(lambda module, inputs: trained.append(module.training))
        examined.append(model.training)
        return AcceptanceSummary(0.0, 0.0)

    _train(tmp_path, examine=examine)

    assert [False] * 3 == examined
    assert [True] * 6 == trained


def _adapted(model: Any) -> Any:
    return add_adapters(model, LoraConfig(rank=2), seed=5)


def test_adapters_begin_as_no_change_and_end_in_the_weights(tmp_path: Path) -> None:
    """Frozen weights stay; what was trained and what is merged say the same."""
    plain, ids = tiny_llama(51, layers=1, dtype=torch.float32), torch.arange(6)[None]
    adapted = _adapted(tiny_llama(51, layers=1, dtype=torch.float32))
    torch.testing.assert_close(plain(ids).logits, adapted(ids).logits)
    adapted, _ = _train(tmp_path, wrap=_adapted)
    said = adapted.eval()(ids).logits
    merged = merge_adapters(adapted)

    assert type(plain) is type(merged)
    assert not torch.allclose(plain(ids).logits, said, atol=1e-3)
    torch.testing.assert_close(said, merged(ids).logits, atol=1e-5, rtol=1e-4)
    for name in ("embed_tokens", "norm"):
        torch.testing.assert_close(
            getattr(plain.model, name).weight, getattr(merged.model, name).weight, atol=0, rtol=0
        )


def _eagle3(target: Any) -> TrainedHead:
    return TrainedHead(new_eagle3(target.requires_grad_(False), (0, 1), seed=5), TargetStates(target), steps=2)


def _medusa(target: Any) -> TrainedHead:
    return TrainedHead(new_medusa(target.requires_grad_(False), places=2), TargetStates(target), steps=2)


@pytest.mark.parametrize("head", [_eagle3, _medusa])
def test_a_killed_training_of_a_head_ends_as_an_unbroken_one(head: Any, tmp_path: Path) -> None:
    """Bit by bit; the target stays as it is."""
    _killed_at_step_5(tmp_path / "killed", head)
    resumed, _ = _train(tmp_path / "killed", wrap=head)
    unbroken, log = _train(tmp_path / "unbroken", wrap=head)

    assert _weights(unbroken) == _weights(resumed)
    assert _weights(unbroken) != _weights(head(tiny_llama(51, layers=1, dtype=torch.float32)))
    assert all(math.isfinite(entry["loss"]) for entry in log if "loss" in entry)
    before = tiny_llama(51, layers=1, dtype=torch.float32)
    assert _weights(before) == _weights(unbroken.states.target)


def test_a_killed_run_with_adapters_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    """Their checkpoints hold the adapters alone, and a resumed run goes on from them, bit by bit."""
    _killed_at_step_5(tmp_path / "killed", _adapted)
    resumed, _ = _train(tmp_path / "killed", wrap=_adapted)
    unbroken, _ = _train(tmp_path / "unbroken", wrap=_adapted)

    assert _weights(unbroken) == _weights(resumed)


def test_a_killed_run_with_muon_ends_as_an_unbroken_one(unbroken: tuple[Any, Log], tmp_path: Path) -> None:
    """The optimizer's state is in the checkpoint; and it is another optimizer."""
    settings = SETTINGS.model_copy(update={"optimizer": "muon"})
    asked: list[int] = []

    def examine(model: Any) -> AcceptanceSummary:
        asked.append(1)
        if len(asked) == 2:
            raise _Killed
        return AcceptanceSummary(_length(model), float(len(asked)))

    with pytest.raises(_Killed):
        _train(tmp_path / "killed", settings, examine)
    resumed, _ = _train(tmp_path / "killed", settings)
    whole, _ = _train(tmp_path / "whole", settings)

    assert _weights(whole) == _weights(resumed)
    assert _weights(whole) != _weights(unbroken[0])


@pytest.mark.parametrize(
    "settings",
    [{"batch": 2, "accumulation": 2}, {"batch": 1, "accumulation": 4}, {"batch": 4, "gradient_checkpointing": True}],
    ids=str,
)
def test_what_saves_memory_changes_no_training(settings: dict[str, Any], tmp_path: Path) -> None:
    """A step of several micro-batches is one of them all, however many positions each has; activations made anew are the same."""
    expected, expected_log = _train(tmp_path / "whole", SETTINGS.model_copy(update={"batch": 4}))
    model, log = _train(tmp_path / "parts", SETTINGS.model_copy(update=settings))

    for (name, own), ours in zip(expected.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, ours, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert [one["loss"] for one in expected_log if "loss" in one] == pytest.approx(
        [one["loss"] for one in log if "loss" in one], rel=1e-4
    )


@pytest.mark.parametrize("apart", [True, False])
def test_rows_are_shared_only_where_documents_stay_apart(
    apart: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model is asked, and what it says decides."""
    from pipeline.distillation import trainer

    together = []

    class Watched(trainer.PackedCompletions):
        def __init__(self, *arguments: Any) -> None:
            together.append(arguments[1])
            super().__init__(*arguments)

    monkeypatch.setattr(trainer, "supports_document_masking", lambda model, vocabulary: apart)
    monkeypatch.setattr(trainer, "PackedCompletions", Watched)
    _train(tmp_path, SETTINGS.model_copy(update={"max_steps": 1}))

    assert [apart] == together


def test_adapters_without_their_library_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and how it is installed."""
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match=r"distill\.lora needs peft: pip install 'understudy\[lora\]'"):
        _adapted(tiny_llama(51, layers=1))


@pytest.mark.parametrize(
    ("asked", "hardware", "expected"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_bf16_is_used_where_the_hardware_multiplies_in_it(
    asked: bool | None, hardware: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the config says otherwise. Attention is then in fp32, and afterwards the model's own again."""
    from pipeline.distillation import trainer

    monkeypatch.setattr(trainer, "supports_bf16", lambda device: hardware)
    found: list[str] = []

    def examine(model: Any) -> AcceptanceSummary:
        found.append(model.config._attn_implementation)
        return AcceptanceSummary(0.5, 1.0)

    model, _ = _train(tmp_path, DistillConfig(bf16=asked, max_steps=1, batch=2, save_every=1), examine)

    assert {"sdpa_fp32" if expected else "sdpa"} == set(found)
    assert "sdpa" == model.config._attn_implementation


def test_nothing_of_autocast_stays_on_the_model(tmp_path: Path) -> None:
    """What comes after, another phase or an examination, sees the plain model in fp32, as after a training that is only read."""
    settings = DistillConfig(bf16=True, max_steps=2, batch=2, save_every=2)
    trained, _ = _train(tmp_path, settings)
    read, _ = _train(tmp_path, settings)
    ids = torch.arange(6)[None]

    assert "_original_forward" not in vars(trained)
    assert linear_head(trained) is trained.lm_head
    torch.testing.assert_close(read.eval()(ids).logits, trained.eval()(ids).logits, rtol=0, atol=0)


def _labelled_rows() -> list[StoredCompletion]:
    """The first half of every completion is thinking."""
    return [
        replace(
            item,
            segments=(np.arange(len(item.tokens)) < item.length // 2).astype(np.uint8),
            segment_names=("answer", "thinking"),
        )
        for item in _rows()
    ]


def test_the_log_has_figures_by_segment(unbroken: tuple[Any, Log], tmp_path: Path) -> None:
    """The loss of each step and the dev figure, which change no weight; a killed run ends with the same log."""
    rows = _labelled_rows()

    def examine() -> Callable[[Any], AcceptanceSummary]:
        asked = _later_is_better()
        return lambda model: AcceptanceSummary(*asked(model)[:2], {"answer": 0.25, "thinking": 0.75})

    model, log = _train(tmp_path / "whole", rows=rows, examine=examine())
    by_segment = [entry["loss_by_segment"] for entry in log if "loss" in entry]
    plain = [{name: value for name, value in entry.items() if "segment" not in name} for entry in log]

    assert (_weights(unbroken[0]), unbroken[1]) == (_weights(model), plain)
    assert [{"answer", "thinking"}] * 6 == [set(losses) for losses in by_segment]
    assert [{"answer": 0.25, "thinking": 0.75}] * 3 == [
        entry["dev_acceptance_rate_by_segment"] for entry in log if "dev_acceptance_rate" in entry
    ]
    thinking = sum(item.length // 2 for item in rows) / sum(item.length for item in rows)
    whole, once = DistillConfig(bf16=False, max_steps=1, batch=10, save_every=1), tmp_path / "once"
    entry = next(entry for entry in _train(once, whole, rows=rows)[1] if "loss" in entry)
    losses = entry["loss_by_segment"]
    assert entry["loss"] == pytest.approx(thinking * losses["thinking"] + (1 - thinking) * losses["answer"], rel=1e-5)

    given = examine()

    def killed(model: Any) -> AcceptanceSummary:
        found = given(model)
        if found.omega == 2:
            raise _Killed
        return found

    with pytest.raises(_Killed):
        _train(tmp_path / "killed", rows=rows, examine=killed)
    again = _train(tmp_path / "killed", rows=rows, examine=lambda model: examine()(model))[1]
    assert log == [
        entry | {name: was[name] for name in entry if name.endswith("call")}
        for entry, was in zip(again, log, strict=True)
    ]


def _scored(rows: list[StoredCompletion], weight: float, seed: int = 0) -> ScoredPrompts:
    """All positions of the prompts but the first."""
    return ScoredPrompts(
        [
            stored_completion(row.prompt[:1], row.prompt[1:], name=row.id, seed=seed + 100 + number)
            for number, row in enumerate(rows)
        ],
        weight,
    )


@pytest.mark.parametrize("rows", [_rows(), _labelled_rows()], ids=["without labels", "with segments"])
def test_prompts_enter_the_loss_with_their_weight(rows: list[StoredCompletion], tmp_path: Path) -> None:
    """The loss of a step is the mean over positions, where one of a prompt counts as a half, over two micro-batches too. The log
    has the prompts' loss beside those of the segments."""
    once = DistillConfig(bf16=False, max_steps=1, batch=10, save_every=1)
    halves = once.model_copy(update={"batch": 5, "accumulation": 2})

    def loss(place: str, prompts: ScoredPrompts | None, settings: DistillConfig = once) -> dict[str, Any]:
        _, log = _train(tmp_path / place, settings, rows=rows, prompts=prompts)
        return next(entry for entry in log if "loss" in entry)

    completions, scored = sum(item.length for item in rows), sum(len(item.prompt) - 1 for item in rows)
    alone, whole = loss("alone", None)["loss"], loss("whole", _scored(rows, 1.0))
    of_prompts = (whole["loss"] * (completions + scored) - alone * completions) / scored
    half = loss("half", _scored(rows, 0.5))
    assert half["loss"] == pytest.approx(
        (alone * completions + 0.5 * of_prompts * scored) / (completions + 0.5 * scored), rel=1e-5
    )
    assert loss("halves", _scored(rows, 0.5), halves)["loss"] == pytest.approx(half["loss"], rel=1e-5)
    assert abs(of_prompts - alone) > 0.01
    if rows[0].segments is not None:
        assert {"answer", "thinking", "prompt"} == set(half["loss_by_segment"])
        assert half["loss_by_segment"]["prompt"] == pytest.approx(of_prompts, rel=1e-5)


def test_prompts_are_learnt(unbroken: tuple[Any, Log], tmp_path: Path) -> None:
    """Their distributions change the draft; at weight 0 they do not."""
    rows, plain = _rows(), _weights(unbroken[0])
    one, other, none = (
        _weights(_train(tmp_path / f"{weight}-{seed}", prompts=_scored(rows, weight, seed))[0])
        for weight, seed in ((0.5, 0), (0.5, 1000), (0.0, 0))
    )
    assert all(none[name] == pytest.approx(plain[name], abs=1e-5) for name in plain)
    assert any(one[name] != pytest.approx(other[name], abs=1e-3) for name in plain)


def test_the_last_token_of_a_long_completion_is_trained_on(tmp_path: Path) -> None:
    """Whatever the default lengths of the trainer's libraries are (1,024 tokens): a segment of one token, behind 2,000 others,
    has a loss."""
    tokens = np.arange(2001) % 32
    item = stored_completion([1], tokens)
    rows = [replace(item, segments=(np.arange(2001) == 2000).astype(np.uint8), segment_names=("answer", "last"))]
    _, log = _train(tmp_path, DistillConfig(bf16=False, max_steps=1, batch=1, save_every=1), rows=rows)

    assert {"answer", "last"} == set(next(entry["loss_by_segment"] for entry in log if "loss" in entry))


@pytest.mark.parametrize(("family", "experts"), [("Granite 4", 0), ("Mixtral", 4)])
def test_no_loss_of_a_router_is_added(family: str, experts: int, tmp_path: Path) -> None:
    """The trainer's library adds it to each forward and states it in config.json; without experts the forward fails."""
    from pipeline.distillation.trainer import _trainer
    from pipeline.distillation.weighted_completions import WeightedCompletions

    model = tiny_model(family, num_local_experts=experts)
    before = model.config.to_dict()
    _trainer(model, tiny_tokenizer(), WeightedCompletions(_rows(), 32), SETTINGS, 0, tmp_path)
    assert before["output_router_logits"] == model.config.output_router_logits
    assert before["router_aux_loss_coef"] == model.config.router_aux_loss_coef
    model(input_ids=torch.arange(4)[None], use_cache=False)


def test_segment_shares_weigh_the_loss(tmp_path: Path, unbroken: tuple[Any, Log]) -> None:
    """Shares as the tokens have them change nothing; others do; and a segment without a share teaches nothing."""
    rows = _labelled_rows()
    thinking = sum(item.length // 2 for item in rows) / sum(item.length for item in rows)

    def trained(share: float, rows: list[StoredCompletion], place: str) -> dict[str, list[float]]:
        shares = {"answer": 1 - share, "thinking": share}
        settings = SETTINGS.model_copy(update={"segment_shares": shares})
        return _weights(_train(tmp_path / place, settings, rows=rows)[0])

    same, plain = trained(thinking, rows, "same"), _weights(unbroken[0])
    assert all(same[name] == pytest.approx(plain[name], abs=1e-5) for name in plain)
    without = trained(0.0, rows, "without")
    assert any(without[name] != pytest.approx(plain[name], abs=1e-4) for name in plain)
    # Other distributions in the segment that has no share.
    others = [replace(item, rest_log_p=np.where(item.segments == 1, -3, item.rest_log_p)) for item in rows]
    changed = [replace(item, rest_log_p=item.rest_log_p.astype(np.float16)) for item in others]
    assert trained(0.0, changed, "changed") == without


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            8,
            r"distill\.batch = 8: out of memory; 2 fits: set distill\.batch to 2 and distill\.accumulation to 12, which trains",
        ),
        (
            6,
            r"distill\.batch = 6: out of memory; 3 fits: set distill\.batch to 3 and distill\.accumulation to 6, which trains",
        ),
        (5, r"distill\.batch = 5: out of memory; 2 fits: set distill\.batch to 2 and run again"),
    ],
)
def test_out_of_memory_names_a_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, said: str
) -> None:
    """With the micro-batches that make the same step of it, where it divides. A step on the longest rows was made with it."""
    from pipeline.distillation import trainer

    whole, most = trainer.mean_loss, 3 if batch == 6 else 2
    seen = list[int]()

    def mean_loss(hidden_NH: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(hidden_NH))
        if len(hidden_NH) > 7 * most:  # the longest completions have 6 tokens
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(hidden_NH, *rest)

    monkeypatch.setattr(trainer, "mean_loss", mean_loss)
    monkeypatch.setattr(trainer, "supports_document_masking", lambda *_: False)  # a completion a row
    settings = SETTINGS.model_copy(update={"batch": batch, "accumulation": 3})
    with pytest.raises(UnderstudyError, match=said):
        _train(tmp_path, settings)
    assert 6 * most == seen[-1]


def test_a_draft_on_the_second_gpu_is_trained_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers and accelerate each take the first one by themselves. There is none here: what they ask for one is faked."""
    from accelerate import PartialState

    from pipeline.distillation import trainer

    chosen, second = list[torch.device](), torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    try:
        arguments = trainer._arguments(SETTINGS, 0, tmp_path, second, bf16=False)
        assert (second, second, 1) == (arguments.device, PartialState().device, arguments.n_gpu)
        assert second == chosen[-1]
        assert "ACCELERATE_TORCH_DEVICE" not in os.environ
    finally:
        PartialState._reset_state()
