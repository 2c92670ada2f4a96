"""`distill.prompt_weight`: the target scores the train prompts once, and trainings learn from that."""

import json

from tests.integration.conftest import NOBODY, SMOKE, Place

STEPS = ("--set", "distill.max_steps=4", "--until", "distill")


def test_prompts_are_scored_once_and_trained_on(loop: Place) -> None:
    """Another weight trains again and scores nothing; without a weight nothing is scored."""

    def run(weight: float, name: str) -> list[float]:
        ended = loop.understudy(
            *("run", SMOKE, "--set", f"distill.prompt_weight={weight}", *STEPS, "--run", name),
            MLFLOW_TRACKING_URI=NOBODY,
        )
        assert 0 == ended.code, ended.err
        assert (name == "half") == ("generate/prompts: done" in ended.err)
        assert (weight > 0) == ("generate/prompts" in ended.err)
        assert "distill: done" in ended.err
        log = json.loads((loop.artifact("distill", name) / "training.json").read_text())
        return [entry["loss_by_segment"].get("prompt", 0.0) for entry in log if "loss_by_segment" in entry]

    of_half, of_tenth, of_none = run(0.5, "half"), run(0.1, "tenth"), run(0.0, "none")
    shown = loop.understudy("show", "half")
    assert f"--completions {loop.artifact('generate', 'half')} " in shown.out
    manifest = json.loads((loop.artifact("generate/prompts", "half") / "manifest.json").read_text())
    trained = json.loads((loop.artifact("distill", "half") / "manifest.json").read_text())["figures"]
    prompts = trained["train_completions"]
    assert prompts == manifest["figures"]["prompts"]
    # The reference pair's prompts are 16 tokens at most, and nothing predicts the first.
    assert 8 * prompts < manifest["figures"]["prompt_positions"] <= 15 * prompts
    assert all(loss > 0 for loss in of_half + of_tenth)
    assert of_half != of_tenth
    assert not any(of_none)


def test_the_plan_counts_them(place: Place) -> None:
    """195 train prompts of at most 24 positions, as a completion's tokens are stored."""
    ended = place.understudy("plan", SMOKE, "--set", "distill.prompt_weight=0.5")
    planned = json.loads(place.understudy("plan", SMOKE, "--set", "distill.prompt_weight=0.5", "--json").out)
    assert 0 == ended.code, ended.err
    assert (
        "generate/prompts: the target scores the train prompts too, in a prefill of each, up to 4,680 positions"
        in ended.out
    )
    assert 195 * 24 == planned["prompt_positions"]
    (job,) = (job for job in planned["estimate"]["jobs"] if job["job"] == "generate/prompts")
    assert 0 < job["stored_bytes"] <= 4680 * (planned["bytes_per_token"] + 1) + 195 * 270
    assert 0 == job["tokens_out"]


def test_words_of_prompts_are_no_answers(place: Place) -> None:
    """Plain SFT would train on what users wrote."""
    ended = place.understudy("run", SMOKE, "--set", "distill={prompt_weight: 0.5, loss: cross_entropy}")
    assert 2 == ended.code
    assert "loss cross_entropy would train the draft on the words of the prompts" in ended.complaint
