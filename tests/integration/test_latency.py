"""`understudy latency`: fit, plan, predict, schedule and explain, through the real command."""

import csv
import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ended, Smoke


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A CSV table of a server where each draft token costs more at a larger batch size."""
    path = tmp_path / "sweep.csv"
    with path.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["users", "k", "mean_acceptance_length", "tpot_p50_ms", "ttft_p50_ms"])
        for users in (1, 4, 16, 32):
            for gamma, length in ((0, 1.0), (2, 2.2), (4, 2.8)):
                step = 20 + 2 * gamma + users * (0.5 + 0.6 * gamma)
                rows.writerow([users, gamma, length, step / length, 30])
    return path


def _latency(smoke: Smoke, *arguments: object, **environment: str) -> Ended:
    return smoke.place.understudy("latency", *arguments, store=False, **environment)


def _fitted(smoke: Smoke, sweep: Path) -> Path:
    out = sweep.with_name("costs.json")
    assert 0 == _latency(smoke, "fit", sweep, "--column", "concurrency=users", "--out", out).code
    return out


def test_a_table_is_fitted(smoke: Smoke, sweep: Path) -> None:
    """Prints costs with intervals, what was read, and where prefills are; does not import torch."""
    ended, code, imported = smoke.place.spied("latency", "fit", sweep, "--column", "concurrency=users", store=False)

    assert (0, []) == (code, imported)
    for expected in (
        "verify",
        "draft_each",
        "12 measurements; linear fit: MAPE 0.0%",
        "TTFT of one request is 30 ms; prefills are part of the step times",
        "measured: 1 to 32 requests, draft lengths 0, 2, 4; predictions outside are extrapolated",
        "read users as concurrency, k as gamma, mean_acceptance_length as acceptance_length (tokens per step)",
    ):
        assert expected in ended.out


def test_loads_are_predicted_from_an_examination(smoke: Smoke, sweep: Path, tmp_path: Path) -> None:
    """With speculation and without, with a simulation and a plot; an offered load above capacity has no latency."""
    costs = _fitted(smoke, sweep)
    examined = smoke.place.artifact("evaluate/candidate")
    asked = ("--costs", costs, "--acceptance", examined, "--max-num-seqs", 16)
    ended = _latency(smoke, "predict", *asked, "--simulate", 300, "--plot", tmp_path / "load.png")
    below, above = (_latency(smoke, "predict", *asked, "--request-rate", rates) for rates in ("0.5", "0.5,100000"))
    quantiles = ("--quantile", 0.99, "--quantile", 0.5)
    few = ("--request-rate", "0.5,1")
    both = _latency(smoke, "predict", *asked, *few, *quantiles, "--simulate", 300, "--plot", tmp_path / "both.png")
    figures = json.loads(_latency(smoke, "predict", *asked, *quantiles, "--request-rate", "0.5,100000", "--json").out)
    wrong = _latency(smoke, "predict", *asked, "--quantile", 99)

    assert 0 == ended.code
    assert "capacity: " in ended.out
    assert "unstable" not in below.out
    assert "unstable: the offered load exceeds the capacity" in above.out
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    low, high = figures["points"]
    assert low["plain"]["p50"] < low["plain"]["p99"] > low["plain"]["mean"]
    assert {"mean", "p50", "p99"} == {*low["plain"]} - {"queue", "admission", "prefill", "service", "batch", "busy"}
    assert "p95" in below.out
    assert "p95" not in both.out
    assert "p50" in both.out
    assert "p99" in both.out
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert (2, "--quantile 99: give a number from 0.5 to 0.99, such as 0.99") == (wrong.code, wrong.complaint)
    assert (None, None) == (high["plain"], high["speculative"])
    assert 16 == len(figures["draft_lengths"])


def test_a_schedule_is_written_for_engines(smoke: Smoke, sweep: Path, tmp_path: Path) -> None:
    """Draft length falls with the batch size, to 0; --engine prints only the engine's keys."""
    costs = _fitted(smoke, sweep)
    asked = ("--costs", costs, "--acceptance-rate", 0.45, "--output-tokens", 100)
    ended = _latency(smoke, "schedule", *asked, "--plot", tmp_path / "lengths.png")
    printed = _latency(smoke, "schedule", *asked, "--engine", "vllm")
    vllm = json.loads(printed.out)
    stretches = vllm["num_speculative_tokens_per_batch_size"]

    assert 0 == ended.code
    assert "speculation is faster at batch size 1" in ended.out
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert (1, 32, 0) == (stretches[0][0], stretches[-1][1], stretches[-1][2])
    assert vllm["num_speculative_tokens"] == stretches[0][2] > 0
    for issue in (49548, 51510, 47014):  # where the schedule is printed
        assert f"vLLM issue {issue}: " in ended.out
        assert f"vLLM issue {issue}: " in printed.err


def test_a_schedule_needs_nothing_but_the_sweep(smoke: Smoke, sweep: Path) -> None:
    """The acceptance is the measured one, by draft length; lengths between the measured ones are marked. Latency needs output
    lengths, and costs without tokens per step an acceptance."""
    costs, bare = _fitted(smoke, sweep), sweep.with_name("bare.json")
    bare.write_text(json.dumps(json.loads(costs.read_text()) | {"tokens_per_step": {}}))
    refused, unknown = (_latency(smoke, "predict", "--costs", one) for one in (costs, bare))
    found = json.loads(_latency(smoke, "schedule", "--costs", costs, "--json").out)
    high = _latency(smoke, "schedule", "--costs", costs, "--output-tokens", 100, "--acceptance-rate", 0.85)

    assert (2, 2) == (refused.code, unknown.code)
    assert "give --output-tokens: a number, MEAN:CAP, or a file" in refused.complaint
    assert "has no number of accepted tokens; give --acceptance or --acceptance-rate" in unknown.complaint
    assert set(found["not_measured"]) <= {1, 3}
    assert set(found["draft_length"]) - {0, 2, 4} == set(found["not_measured"])
    assert ("*" in high.out) == ("not measured at all of these batch sizes" in high.out)


def test_replicas_are_planned(smoke: Smoke, sweep: Path) -> None:
    """A line for each way to serve the rate, in 80 columns, and the same in `--json`; a target that a request alone misses is
    impossible; without a rate nothing is planned."""
    asked = ("plan", "--costs", _fitted(smoke, sweep), "--output-tokens", 200)
    ended = _latency(smoke, *asked, "--request-rate", 20, "--p95", "3.5s", COLUMNS="80")
    figures = json.loads(_latency(smoke, *asked, "--request-rate", 20, "--p95", "3500ms", "--json").out)
    never = _latency(smoke, *asked, "--request-rate", 20, "--p95", "0.8s")
    none = _latency(smoke, *asked, "--p95", "8s")

    options = {one["draft_length"]: one for one in figures["options"]}
    best = figures["options"][0]
    assert (0, {"none", "2", "4", "schedule"}) == (ended.code, set(options))
    assert best["least_replicas"] <= best["replicas"] <= best["most_replicas"]
    assert best["seconds"] <= 3.5 < best["one_fewer_seconds"]
    assert ended.out.startswith(f"20 requests/s within 3.5 s (p95): {best['replicas']} replicas [")
    assert (None, True) == (options["none"]["replicas"], options["none"]["alone_seconds"] > 3.5)
    (without,) = [line for line in ended.out.splitlines() if "impossible" in line]
    assert "none" in without
    assert max(map(len, ended.out.splitlines())) <= 80
    assert (0, 1) == (
        never.code,
        never.out.count("impossible with any number of replicas; a request that is alone takes"),
    )
    assert "measure" not in never.out.partition("Last column")[2]
    assert (2, "", True) == (none.code, none.out, "Missing option '--request-rate'" in none.err)


def test_output_lengths_decide_p95(smoke: Smoke, sweep: Path, tmp_path: Path) -> None:
    """One length, a mean and a cap, and a file of lengths; a plan needs them."""
    costs, file = _fitted(smoke, sweep), tmp_path / "lengths.csv"
    file.write_text("output_tokens\n" + "\n".join(["50", "150"] * 5))
    p95, mean = {}, {}
    for tokens in ("100", "100:400", str(file)):
        asked = ("--costs", costs, "--output-tokens", tokens, "--request-rate", 0.5, "--json")
        (point,) = json.loads(_latency(smoke, "predict", *asked).out)["points"]
        p95[tokens], mean[tokens] = point["plain"]["p95"], point["plain"]["mean"]

    assert p95["100"] < p95[str(file)] < p95["100:400"]
    assert mean["100:400"] < 1.2 * mean["100"]
    known = json.loads(costs.read_text()) | {"output_tokens": 95.0}
    costs.write_text(json.dumps(known))
    refused = _latency(smoke, "plan", "--costs", costs, "--request-rate", 9, "--p95", "8s")
    assert (2, "") == (refused.code, refused.out)
    assert "the costs have only their mean, 95; 95 if all are alike, 95:CAP with the most tokens" in refused.complaint


def test_what_was_not_measured_is_said(smoke: Smoke, sweep: Path) -> None:
    """Below the lightest load of a sweep times are extrapolated."""
    lines = sweep.read_text().splitlines()
    sweep.write_text("\n".join(line for line in lines if not line.startswith("1,")))
    ended = _latency(smoke, "schedule", "--costs", _fitted(smoke, sweep), "--output-tokens", 100)

    assert 0 == ended.code
    assert "nothing was measured below batch size 4" in ended.out


def test_several_drafts_are_compared(smoke: Smoke, sweep: Path) -> None:
    """Of two drafts with the same costs one wins at every batch size where speculation pays."""
    costs = _fitted(smoke, sweep)
    other = costs.with_name("other.json")
    other.write_text(costs.read_text())
    examined = smoke.place.artifact("evaluate/candidate")
    base = smoke.place.artifact("evaluate/base-before")
    arguments = ("--costs", costs, "--costs", other, "--acceptance", examined, "--acceptance", base, "--json")
    found = json.loads(_latency(smoke, "schedule", *arguments).out)

    assert 32 == len(found["draft"]) == len(found["draft_length"])
    assert 1 == len(set(found["draft"]) - {None})
    assert "vllm" not in found


def test_each_draft_may_have_its_rate(smoke: Smoke, sweep: Path) -> None:
    """One rate for each draft, or one for all; --engine is refused where no draft pays."""
    costs = _fitted(smoke, sweep)
    other = costs.with_name("other.json")
    other.write_text(costs.read_text())
    both = ("schedule", "--costs", costs, "--costs", other, "--output-tokens", 100)
    ended = _latency(smoke, *both, "--acceptance-rate", 0.3, "--acceptance-rate", 0.8, "--json")
    none = _latency(
        smoke, "schedule", "--costs", costs, "--output-tokens", 100, "--acceptance-rate", 0.01, "--engine", "vllm"
    )

    assert "other" == json.loads(ended.out)["draft"][0]
    assert (3, "") == (none.code, none.out)
    assert "speculation is not faster at any batch size up to 32; turn it off" in none.complaint


def test_show_says_what_latency_is_given(smoke: Smoke) -> None:
    """`show` names the candidate's examination; the examination of prompt-lookup is refused."""
    shown = smoke.place.understudy("show").out
    lookup = smoke.place.artifact("evaluate/prompt-lookup")

    named = f"--acceptance {smoke.place.artifact('evaluate/candidate')}"
    assert f"to predict latency: understudy latency predict --costs PROFILE {named}" in shown
    ended = _latency(smoke, "predict", "--costs", lookup / "acceptance.json", "--acceptance", lookup)
    assert 2 == ended.code


def test_a_profile_is_fitted_and_predicts(smoke: Smoke, tmp_path: Path) -> None:
    """What `understudy profile` wrote goes in as it is."""
    profile = tmp_path / "profile.json"
    place = smoke.place
    pair = ("--target", place.artifact("pair"), "--draft", place.artifact("distill"))
    small = (
        "--batch-sizes",
        "1,2,4",
        "--max-gamma",
        2,
        "--context-lengths",
        8,
        "--prompt-lengths",
        "4,12",
        "--out",
        profile,
    )
    assert 0 == place.understudy("profile", *pair, *small, store=False).code

    fitted = _latency(smoke, "fit", profile).out
    assert ("9 measurements" in fitted, "Each prefill delays the batch by" in fitted) == (True, True)
    ended = _latency(
        smoke, "predict", "--costs", profile, "--acceptance-rate", 0.5, "--output-tokens", 20, "--max-num-seqs", 4
    )
    assert (0, True) == (
        ended.code,
        "note: batch size 4 with 138 tokens of context is outside the measured range" in ended.out,
    )


def test_the_textbook_example_is_explained(smoke: Smoke) -> None:
    """Rule of thumb, exact figure, and the difference."""
    ended = _latency(smoke, "explain")

    assert 0 == ended.code
    for expected in (
        "speedup 2.94",
        "speedup 2.17",
        "36% too high",
        "acceptance rate is then 0.93",
        "0.41 at draft length 5, 0.14 at the best draft length",
    ):
        assert expected in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "gone.csv"), "gone.csv: No such file or directory"),
        (("fit", "{sweep}"), "If so, give --column concurrency=users"),
        (("fit", "{sweep}", "--column", "requests"), "--column: 'requests' should be NAME=VALUE"),
        (("schedule", "--costs", "a", "--costs", "b", "--engine", "vllm"), "--engine: an engine serves one draft"),
        (("fit", "{sweep}", "--column", "concurrency=users", "--out", "/"), "--out /: give a file"),
        (("fit", "{sweep}:concurrency=many"), "values after the file must be numbers"),
        (("fit", "{sweep}", "--experts", "9/8"), "--experts 9/8: give active/total experts, such as 8/64"),
        (("predict", "--costs", "{sweep}", "--acceptance-rate", 0.5), "--acceptance-rate needs --output-tokens"),
        (
            ("schedule", "--costs", "a", "--costs", "b", "--acceptance", "c"),
            "2 --costs, 1 --acceptance, 2 --acceptance-rate",
        ),
        (
            ("predict", "--costs", "{sweep}", "--acceptance-rate", 0.5, "--output-tokens", 9),
            "; write a profile with `understudy profile`",
        ),
        (("predict", "--costs", "{sweep}", "--request-rate", "0"), "--request-rate 0: give numbers above 0"),
        (("schedule", "--costs", "{sweep}", "--plot", "x.pdf"), "--plot x.pdf: give a .png file"),
        (("plan", "--costs", "{sweep}", "--request-rate", 9), "give --p95 or --p99"),
        (("plan", "--costs", "{sweep}", "--request-rate", 9, "--p95", "soon"), "--p95 soon: give a time above 0"),
        (("plan", "--costs", "{sweep}", "--request-rate", 9, "--p95", ""), "--p95 : give a time above 0"),
        (("plan", "--costs", "{sweep}", "--request-rate", 0, "--p95", "8s"), "--request-rate 0: give a number above 0"),
        (("explain", "--verify-ms", 10), "--verify-ms 10: must be at least --plain-ms (50)"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    arguments: tuple[object, ...], message: str, smoke: Smoke, sweep: Path
) -> None:
    """No traceback, nothing on stdout."""
    ended = _latency(smoke, *(str(one).replace("{sweep}", str(sweep)) for one in arguments))

    assert ended.code in (1, 2)
    assert message in ended.complaint
    assert "" == ended.out
