"""The work of each job, computed by hand."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.config.tasks import GenerateTask, TargetRole
from pipeline.corpus.prompt_store import Prompt
from pipeline.generation.completion_plan import plan_completions
from pipeline.planning.work import (
    Amounts,
    bytes_per_token,
    completions_of,
    dev_examinations,
    generated_by_split,
    is_scored_again,
    recorded_by_split,
    trained_tokens,
    training_flops,
    training_steps,
    work_of,
)
from pipeline.speculation.settings import Sampling
from tests.fakes import stored_completion

CONFIGS = Path(__file__).parents[3] / "configs"
AMOUNTS = Amounts(
    rows=1_000,
    prompts={"train": 600.0, "dev": 100.0, "examination": 300.0},
    prompt_tokens=400.0,
    completion_tokens=350.0,
    longest_prompt=2_000.0,
)


def served(*settings: str) -> Config:
    """Two endpoints of weight 1; examined at the deployment's sampling and at temperature 0; 16 tokens past the end."""
    return load_config(CONFIGS / "llama3.1-70b.yaml", ["generate.server.endpoints=['http://a', 'http://b']", *settings])


def test_tokens_of_a_generation_by_servers() -> None:
    """700 completions of train and dev prompts, 600 of examination prompts. Each is prefilled as a prompt, scored as a whole, and
    each examination completion is prefilled once more for the tokens past its end."""
    work = work_of(served(), AMOUNTS)["generate"]

    assert (700 + 600) * 350 + 600 * 16 == work.tokens_out == work.amount == work.size
    assert 1_300 * 400 + 1_300 * 750 + 600 * 750 == work.tokens_in
    assert work.tokens_in + work.tokens_out + 1_300 * (512 - 350) == work.asked
    assert ("generate", 2.0) == (work.rate, work.workers)
    assert {"train": 600 * 350, "dev": 100 * 350, "examination": 600 * 366} == generated_by_split(served(), AMOUNTS)


@pytest.mark.parametrize(
    ("settings", "scored"),
    [
        ((), True),
        (("sampling={temperature: 1}",), False),
        (("sampling={temperature: 0}",), False),
        (("sampling={temperature: 0.6, top_k: 20}",), False),
        (("sampling={temperature: 0.6, top_k: 129}",), True),
        (("sampling={temperature: 0.6, top_k: 20}", "generate.server.api=sglang", "generate.server.model=null"), True),
    ],
)
def test_completions_that_are_scored_again(settings: tuple[str, ...], scored: bool) -> None:
    """As docs/servers.md says, with processed log-probabilities."""
    assert scored == is_scored_again(served(*settings))


def test_here_nothing_is_prefilled_twice() -> None:
    work = work_of(load_config(CONFIGS / "qwen3-8b.yaml"), AMOUNTS)["generate"]
    assert (1_300 * 400, 0.0, 1.0) == (work.tokens_in, work.asked, work.workers)


def test_recorded_answers_are_prefilled_and_not_generated() -> None:
    """Half of the prompts have one: 350 of train and dev prompts and 150 of examination prompts, where tokens past the end
    are still generated, after one more prefill here. None is one of the train completions at other temperatures."""
    half, local = replace(AMOUNTS, recorded=0.5), load_config(CONFIGS / "qwen3-8b.yaml")
    whole, work = work_of(local, AMOUNTS)["generate"], work_of(local, half)["generate"]
    assert (500 * 350, 500 * 350 + 150 * 750) == (whole.tokens_out - work.tokens_out, work.tokens_in - whole.tokens_in)
    assert (whole.amount, whole.size) == (work.amount, work.size)
    by_servers = [work_of(served(), amounts)["generate"] for amounts in (AMOUNTS, half)]
    assert [500 * 350, 500 * 400, 500 * (350 + 400 + 512 - 350)] == [
        getattr(by_servers[0], name) - getattr(by_servers[1], name) for name in ("tokens_out", "tokens_in", "asked")
    ]
    other = load_config(CONFIGS / "qwen3-8b.yaml", ["generate.train_temperatures=[0.3]"])
    assert 200 * 350 == work_of(other, AMOUNTS)["generate"].tokens_out - work_of(other, half)["generate"].tokens_out


def test_a_target_before_its_change_has_no_recorded_answers() -> None:
    """A log is of the target that is deployed."""
    half, config = replace(AMOUNTS, recorded=0.5), load_config(CONFIGS / "qwen3-8b.yaml")
    roles: tuple[TargetRole, ...] = ("target", "target_before")
    found = [recorded_by_split(config, half, GenerateTask(target=role, splits=("examination",))) for role in roles]

    assert [True, False] == [bool(sum(one.values())) for one in found]


def test_endpoints_count_by_their_weight() -> None:
    weighted = served("generate.server.endpoints=[{url: 'http://a', weight: 2}, 'http://b']")
    assert 3.0 == work_of(weighted, AMOUNTS)["generate"].workers


def test_tokens_of_a_training() -> None:
    """3,000 steps of 32 rows, each as long as the longest prompt with a whole completion. 1 + 12 examinations on 100 dev prompts,
    of which a token counts 2 of the 8 FLOPs that a trained one takes with gradient checkpointing."""
    config, trained = served("distill.learning_rate=2.0e-5"), 3_000 * 32 * (2_000 + 512)
    work = work_of(config, AMOUNTS)["distill"]

    assert (trained, 13, 8) == (trained_tokens(config, AMOUNTS), dev_examinations(config), training_flops(config))
    assert trained + 13 * 100 * 750 == work.tokens_in
    assert trained + 13 * 100 * 750 / 4 == work.amount
    assert 6 == training_flops(served("distill.gradient_checkpointing=false"))


def test_tokens_of_the_trials_of_a_learning_rate() -> None:
    """At most four of 75 steps, each with an examination at its end, and one before the first."""
    auto, stated = served(), served("distill.learning_rate=2.0e-5")
    assert 300 == training_steps(auto) - training_steps(stated)
    assert 5 == dev_examinations(auto) - dev_examinations(stated)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("distill.max_steps=100", "distill.evaluate_every=30"), 1 + 4),  # 30, 60, 90, 100
        (("distill.max_steps=100", "distill.evaluate_every=30", "distill.learning_curve=[0.5]"), 10),
        (
            ("distill.max_steps=100", "distill.evaluate_every=30", "distill.on_policy={rounds: 2, max_steps: 20}"),
            5 + 2 * 2,
        ),
    ],
)
def test_dev_examinations_of_every_phase(settings: tuple[str, ...], expected: int) -> None:
    assert expected == dev_examinations(load_config(CONFIGS / "qwen3-8b.yaml", settings))


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (("distill.learning_curve=[0.25, 0.5]",), 3 * 100),
        (("distill.on_policy={rounds: 2, max_steps: 20}",), 100 + 2 * 20),
        (("distill.on_policy={rounds: 2, max_steps: 20}", "distill.learning_curve=[0.5]"), 2 * (100 + 2 * 20)),
    ],
)
def test_steps_of_every_training_and_phase(settings: tuple[str, ...], steps: int) -> None:
    """A point of the learning curve is a training of its own, with all its rounds."""
    config = load_config(CONFIGS / "qwen3-8b.yaml", ["distill.max_steps=100", "distill.evaluate_every=30", *settings])
    rows = config.distill.batch * config.distill.accumulation * (2_000 + config.generate.max_new_tokens)

    assert steps == training_steps(config)
    assert steps * rows == trained_tokens(config, AMOUNTS)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("sampling={temperature: 0.6, top_k: 20}",), {"train": 600, "dev": 100, "examination": 2 * 300}),
        (
            ("sampling={temperature: 0, top_k: 20}", "generate.examination_samplings=[{temperature: 0, top_p: 0.5}]"),
            {"train": 600, "dev": 100, "examination": 300},
        ),
        (
            ("sampling={temperature: 0.6}", "generate.examination_samplings=[{temperature: 1}, {temperature: 0.6}]"),
            {"train": 600, "dev": 100, "examination": 3 * 300},
        ),
        (("generate.train_temperatures=[0.6, 1.0, 1.0]",), {"train": 3 * 600, "dev": 100, "examination": 2 * 300}),
    ],
    ids=["deployed and greedy", "greedy once", "further ones", "several temperatures"],
)
def test_completions_of_each_split(settings: tuple[str, ...], expected: dict[str, float]) -> None:
    """As they are generated (`generation/completion_plan.py`): at temperature 0 the filters have no effect."""
    config = load_config(CONFIGS / "qwen3-8b.yaml", settings)
    deployed = Sampling.from_config(config.sampling)
    prompts = [
        Prompt(f"{number:016x}", split, "code", 0, (1,), text_id=f"{number}", conversation=f"{number}")
        for number, split in enumerate(split for split, count in AMOUNTS.prompts.items() for _ in range(int(count)))
    ]
    plan = plan_completions(
        prompts,
        deployed,
        [Sampling.from_config(one) for one in config.generate.examination_samplings],
        [replace(deployed, temperature=one) for one in config.generate.train_temperatures],
    )

    assert expected == completions_of(config, AMOUNTS.prompts, AMOUNTS.prompts)
    assert expected == Counter(request.prompt.split for request in plan)


def test_tokens_of_examinations() -> None:
    """Both kinds of completions of 300 examination prompts, with what lies past their ends; a variant is examined on dev prompts
    twice, before and after."""
    works = work_of(served(), AMOUNTS)

    assert 600 * (400 + 350 + 16) == works["evaluate/base"].amount == works["evaluate/prompt-lookup"].amount
    assert ("examine", "other") == (works["evaluate/base"].rate, works["evaluate/prompt-lookup"].rate)
    assert 600 == works["evaluate/base"].size
    assert 2 * 100 * 750 == works["quantize/int8"].amount
    assert (1_000, 1_000) == (works["corpus"].amount, works["corpus"].size)
    assert 300 == works["gate"].amount


def test_later_turns_of_chats_are_work_too() -> None:
    twice = work_of(served(), replace(AMOUNTS, turns=2.0))
    once = work_of(served(), AMOUNTS)

    assert 2 * once["generate"].tokens_out == twice["generate"].tokens_out
    assert 2 * once["evaluate/base"].amount == twice["evaluate/base"].amount
    assert 2 * once["quantize/int8"].amount == twice["quantize/int8"].amount
    assert dev_examinations(served()) * 100 * 750 == twice["distill"].tokens_in - once["distill"].tokens_in


def test_a_target_that_is_loaded_here_beside_served_ones_has_no_stated_throughput() -> None:
    """`plan.generate_tokens_per_second` is then that of an endpoint."""
    settings = ("pair.target_before={source: ./before}",)
    works = work_of(served(*settings), AMOUNTS)

    assert ("generate", "other") == (works["generate"].rate, works["generate/before"].rate)
    assert 600 * 366 == works["generate/before"].tokens_out


@pytest.mark.parametrize("kept", [1, 64])
def test_bytes_of_a_stored_token(kept: int) -> None:
    """As they are stored: id, log p, the kept tokens of its distribution, and what is left of it."""
    config = load_config(CONFIGS / "qwen3-8b.yaml", [f"generate.distribution_tokens={kept}"])
    stored = stored_completion([1], list(range(10)), kept=kept, vocabulary=128)
    arrays = (stored.tokens, stored.log_p, stored.entries, stored.certain, stored.rest_log_p)

    assert 10 * bytes_per_token(config) == sum(array.nbytes for array in arrays)
