"""The memory that stages of a planned run need: by the run's own check, on the cards that there are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.commands.tables.dry_run import print_memory
from pipeline.config.loading import load_config
from pipeline.drafts.head_tensors import measure_draft
from pipeline.errors import UsageError
from pipeline.models import memory_plan
from pipeline.models.memory import training_bytes
from pipeline.models.memory_plan import DecodedBatch, needed_memory, require_memory, require_training_memory
from pipeline.planning.earlier_runs import Lengths, Measurements
from pipeline.planning.forecast import forecast
from pipeline.planning.memory import MemoryForecast, StageMemory, memory_of
from tests.fakes import tiny_llama
from tests.heads import medusa_draft, write_medusa

CONFIG = Path(__file__).parents[3] / "configs" / "qwen3-8b.yaml"
GIB, CARD = 1 << 30, torch.device("cuda", 0)
BATCH = DecodedBatch(key="generate.batch", rows=64, tokens=2048 + 512)  # of the config


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 3.2 million parameters, and a draft of a fifth."""
    place = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 4), ("draft", 1)):
        model = tiny_llama(3, vocabulary=512, hidden=256, layers=layers, dtype=torch.float32)
        model.save_pretrained(place / name)
    return place


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Free bytes of each card of this machine; to be filled."""
    free = list[int]()

    def found(check_available: bool = False) -> torch.device | None:
        return torch.device("cuda") if free else None

    def free_on(place: str) -> int:
        return free[int(place.partition(":")[2] or 0)] if place.startswith("cuda") else 100 * GIB

    monkeypatch.setattr(torch.accelerator, "current_accelerator", found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(memory_plan, "_free_on", free_on)
    return free


def planned(models: Path, *settings: str, lengths: Lengths | None = None) -> MemoryForecast:
    roles = ", ".join(f"{role}: {{source: {models / role}, dtype: bfloat16}}" for role in ("target", "draft"))
    config = load_config(CONFIG, ["plan.rows=1000", f"pair={{{roles}}}", *settings])
    return memory_of(config, forecast(config), Measurements(lengths=lengths))


def stage(found: MemoryForecast, name: str) -> StageMemory:
    return next(one for one in found.stages if one.stage == name)


def refusals(found: MemoryForecast) -> dict[str, str]:
    return {one.stage: one.refused for one in found.stages if one.refused}


def of_run(check: Any, *given: Any) -> str:
    """What the run says where it refuses."""
    with pytest.raises(UsageError) as refused:
        check(*given)
    return str(refused.value)


def lines(found: MemoryForecast, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_memory(found)
    return capsys.readouterr().out.splitlines()


def test_stages_that_fit_one_card(models: Path, cards: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    """Figures are those of the run's check, and nothing is refused."""
    cards += [80 * GIB]
    found = planned(models)
    target = needed_memory(models / "target", "bfloat16", False, BATCH)
    draft = needed_memory(models / "draft", "bfloat16", False)

    assert ["generate", "distill", "evaluate"] == [one.stage for one in found.stages]
    assert {} == refusals(found)
    assert (target.bytes, 8 * draft.weights) == (stage(found, "generate").bytes, stage(found, "distill").bytes)
    assert draft.weights + target.weights == stage(found, "evaluate").bytes
    assert ({"cuda:0": 80 * GIB}, "") == (found.free, found.note)
    said = lines(found, capsys)
    assert f"  generate: {memory_plan.gib(target.bytes)}: {target.text}" in said
    assert "memory that is free here: 80.0 GiB on cuda:0" == said[-1]


def test_what_a_run_refuses_is_refused_before_it_in_the_same_words(
    models: Path, cards: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage by the first card on which it does not fit."""
    target = needed_memory(models / "target", "bfloat16", False, BATCH)
    cards += [target.bytes - 1]
    tight = planned(models)
    expected = of_run(require_memory, models / "target", "bfloat16", CARD, None, False, BATCH)
    assert {"generate": expected} == refusals(tight)
    assert "; set generate.batch to 63 or fewer" in expected
    assert (
        f"a run here is refused at generate if the longest prompt has 2,048 tokens: {expected}"
        == lines(tight, capsys)[-1]
    )

    cards[0] = target.weights - 1
    full = planned(models)
    weights = of_run(require_memory, models / "target", "bfloat16", CARD, None, False)
    assert weights == refusals(full)["generate"]
    assert f"a run here is refused at generate: {weights}" in lines(full, capsys)
    assert "on cuda:0 beside the draft; place a target on several GPUs" in refusals(full)["evaluate"]

    cards[0] = 1000
    training = of_run(require_training_memory, models / "draft", CARD, "adamw", 1, False)
    assert training == refusals(planned(models))["distill"]


def test_four_cards(models: Path, cards: list[int]) -> None:
    """Each process has one; the training takes all that divide its batch, and says what dividing the draft saves."""
    draft, target = (needed_memory(models / role, "bfloat16", False) for role in ("draft", "target"))
    cards += [2 * GIB] * 4
    found = planned(models, "execution.local=4")
    assert {} == refusals(found)
    assert [f"cuda:{number}" for number in range(4)] == list(found.free)
    assert stage(found, "generate").what.endswith(", in each of 4 processes")
    divided = planned(models, "distill.shard=true")
    assert stage(found, "distill").what.endswith(f"; with distill.shard {memory_plan.gib(draft.weights * 7 / 2)}")
    assert (8 * draft.weights, draft.weights * 7 / 2) == tuple(stage(one, "distill").bytes for one in (found, divided))

    cards[3] = target.weights - 1
    assert "free on cuda:3; place" in refusals(planned(models, "execution.local=4"))["generate"]
    assert {} == refusals(planned(models, "distill.processes=2"))
    whole = planned(
        models, "pair.target.device_map=auto", "distill.processes=1"
    )  # what is too large goes to the host and the disk
    assert {} == refusals(whole)


def test_processes_share_a_card(models: Path, cards: list[int]) -> None:
    """And a training that asks for more cards than there are is refused as in the run."""
    target = needed_memory(models / "target", "bfloat16", False, BATCH)
    cards += [3 * target.bytes]
    assert {} == refusals(planned(models, "execution.local=3"))
    found = refusals(planned(models, "execution.local=4", "distill.processes=2"))
    assert "on cuda:0 for each of 4 processes (execution.local); set generate.batch to 4" in found["generate"]
    assert "distill.processes is 2, and the training may use 1 GPU, one for each process" in found["distill"]


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        (["distill.lora={rank: 8}"], {"distill": 2}),
        (["distill.lora={rank: 8}", "distill.shard=true"], {"distill": 2}),
        (["distill.optimizer=muon"], {"distill": 6}),
        (["evaluate.crosscheck_prompts=0"], {"evaluate": 1}),
    ],
)
def test_what_a_stage_loads(models: Path, cards: list[int], settings: list[str], stages: dict[str, int]) -> None:
    """As multiples of the draft's weights in bfloat16."""
    cards += [GIB] * 2
    draft, found = needed_memory(models / "draft", "bfloat16", False), planned(models, *settings)
    assert {name: count * draft.weights for name, count in stages.items()} == {
        name: stage(found, name).bytes for name in stages
    }
    assert {} == refusals(found)


def test_on_policy_rounds_load_the_target_beside_the_draft(models: Path, cards: list[int]) -> None:
    draft, target = (needed_memory(models / role, "bfloat16", False) for role in ("draft", "target"))
    cards += [2 * draft.weights + target.weights - 1]
    found = planned(models, "distill.on_policy={rounds: 1}", "distill.lora={rank: 8}", "generate.batch=1")
    assert 2 * draft.weights + target.weights == stage(found, "distill, on-policy rounds").bytes
    assert "on cuda:0 beside the draft; " in refusals(found)["distill, on-policy rounds"]
    assert ["distill", "distill, on-policy rounds"] == [one.stage for one in found.of({"distill"}).stages]


def test_a_head_has_its_target_beside_it(models: Path, cards: list[int], tmp_path: Path) -> None:
    """In its training and its examination; of one that is still to be made the size alone is not known."""
    target = AutoModelForCausalLM.from_pretrained(models / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target))
    weights, parameters = needed_memory(models / "target", "bfloat16", False), measure_draft(head).parameters
    cards += [80 * GIB]
    sources = (f"{{source: {head}}}", "{source: target, head: {kind: medusa}}")
    for source in sources:
        settings = (f"pair.draft={source}", "pair.target.dtype=bfloat16", "distill.gradient_checkpointing=false")
        found = planned(models, *settings)
        assert weights.weights == stage(found, "distill, its target").bytes == stage(found, "evaluate").bytes
        known = training_bytes(parameters, "adamw", 1) if source == sources[0] else None
        assert known == stage(found, "distill").bytes
    assert "has made the head" in stage(found, "distill").what


def test_prompts_are_as_long_as_is_known(models: Path, cards: list[int]) -> None:
    """Of an earlier run, or stated; else the most that the config allows. Few completions fill no batch."""
    lengths = Lengths(source="run r1", kept=1.0, prompt_tokens=9.0, longest_prompt=88.0, max_new_tokens=512)
    cards += [80 * GIB]
    assert "64 x 600 tokens" in stage(planned(models, lengths=lengths), "generate").what
    assert "64 x 812 tokens" in stage(planned(models, "plan.longest_prompt_tokens=300"), "generate").what
    assert "13 x 2,560 tokens" in stage(planned(models, "plan.rows=10"), "generate").what


def test_a_model_that_is_not_here_is_not_guessed(
    models: Path, cards: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its training takes is known where its parameters are stated. No card is asked where there is nothing to compare."""
    draft = f"pair.draft={{source: {tmp_path}/none, dtype: bfloat16}}"
    cards += [80 * GIB]
    found = planned(models, draft)
    reason = f"not known: {tmp_path}/none is not on this machine yet"
    assert [reason, f"{reason}; plan.draft_parameters states its size"] == [
        stage(found, name).what for name in ("evaluate", "distill")
    ]
    assert f"  evaluate: {reason}" in lines(found, capsys)
    stated = planned(models, draft, "plan.draft_parameters=1.0e+10")
    assert 16e10 == stage(stated, "distill").bytes
    assert refusals(stated)["distill"].startswith(
        f"{tmp_path}/none: a training of its 10,000,000,000 parameters takes "
    )

    made = planned(models, "pair.draft={source: target, layers: 1, dtype: bfloat16}")
    assert "not known before the run has made the draft of the target's layers" == stage(made, "evaluate").what
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_bytes((models / "target" / "config.json").read_bytes())
    without = planned(models, f"pair.target={{source: {tmp_path}/damaged, dtype: bfloat16}}")
    assert f"not known: {tmp_path}/damaged is not on this machine yet" == stage(without, "generate").what

    reference = load_config(CONFIG.with_name("smoke.yaml"), [])
    found = memory_of(reference, forecast(reference), Measurements())
    assert ({}, "") == (found.free, found.note)
    assert (
        "  generate, generate/before, distill, evaluate: not known before the run has made the reference pair"
        in lines(found, capsys)
    )


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ([], "no GPU is seen here: for another machine, compare what is needed with the memory of its GPU"),
        (["device=cpu"], ""),
        (["device=cuda:1"], "memory is not compared with this machine: device = 'cuda:1' cannot be used here: "),
        (["execution.ray={workers: 2}"], "memory is not compared with this machine: Ray chooses the devices"),
    ],
)
def test_without_a_card_the_figures_are_told(
    models: Path, cards: list[int], settings: Sequence[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They can be compared with those of the card that the run will have; a CPU that is asked for is checked as in a run."""
    found = planned(models, *settings)
    assert found.note.startswith(note)
    assert all(one.bytes for one in found.stages)
    assert ({"cpu": 100 * GIB} if settings in ([], ["device=cpu"]) else {}) == found.free
    assert (found.note in lines(found, capsys)) == bool(note)


def test_nothing_is_said_where_nothing_is_built(
    models: Path, cards: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [] == lines(planned(models).of(["gate"]), capsys)


def test_new_rows_count(models: Path, cards: list[int], tmp_path: Path) -> None:
    """Of a draft that is given the vocabulary of a target with eight times as many columns: in the weights that are loaded, and
    in what is trained."""
    model = tiny_llama(3, vocabulary=4096, hidden=256, layers=4, dtype=torch.float32)
    model.save_pretrained(tmp_path / "target")
    (tmp_path / "draft").symlink_to(models / "draft")
    before, after = (planned(tmp_path, f"pair.draft.vocabulary={name}") for name in ("own", "target"))
    tables = 1 if model.config.tie_word_embeddings else 2
    more = (4096 - 512) * 256 * tables

    assert more * 2 == (stage(after, "evaluate").bytes or 0) - (stage(before, "evaluate").bytes or 0)
    trained = measure_draft(models / "draft").parameters
    assert training_bytes(trained + more, "adamw", 1) == stage(after, "distill").bytes
    cards.append(round(training_bytes(trained, "adamw", 1)) + (1 << 20))
    assert "distill" in refusals(planned(tmp_path, "pair.draft.vocabulary=target"))
