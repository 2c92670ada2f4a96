"""Answers on BENCHMARKS.md to: is it right, and does it gain acceptance."""

from typing import Any

from tests.benchmarks.answers import Answer, interval, missed
from tests.benchmarks.distillation.defaults import AIMS, SHIPPED
from tests.benchmarks.distillation.labels import FINE_TUNED, REGIME_LABELS, label
from tests.benchmarks.stored import Results


def agreement(results: Results) -> Answer:
    rows = results.figure("conformance")["rows"]
    good = [row for row in rows if row["build"] != "shipped" or row["temperature"] == 0]
    exact, sampled = ([row for row in good if ("identical" in row) is wanted] for wanted in (True, False))
    same = sum(row["identical"] for row in exact)
    largest = max(row["largest_difference"] for row in sampled)
    broken = max(row["largest_difference"] for row in rows if row not in good and "largest_difference" in row)
    engines = ", ".join(sorted({f"{row['engine']} {row['version'].split('-')[0]}" for row in rows}))
    found = (
        "Yes. At temperature 0, and with a greedy draft at temperature 1, the predicted counts of drafts and accepted "
        f"tokens (of target calls for OpenVINO) are **identical in {same} of {len(exact)}** comparisons. With a sampled "
        f"draft at temperature 1 they differ by at most **{largest:.1f} standard errors** (limit 3). vLLM's CPU build as "
        f"released differs by {broken:.0f} at temperature 1: it does not sample from the target while it speculates (vLLM "
        "issue 55005); the figures are for the repaired build."
    )
    return found, f"the counters of {engines}; the reference pair, fp32, gamma 1 to 5, 32 or 64 prompts a comparison."


def alarms(results: Results) -> Answer:
    figure = results.figure("watch_alarms")
    rows, years = figure["rows"], figure["years"]
    low, high = sum(row["alarms"]["sequential"] for row in rows), sum(row["alarms_high"] for row in rows)
    most = max((row["alarms"]["sequential"] + row["alarms_high"]) / years for row in rows)
    spans = {}
    for fall in ("0.05", "0.1", "0.2"):
        hours = [row["delays"][fall]["sequential"]["hours"] for row in rows]
        spans[fall] = f"{min(hours):.0f} to {max(hours):.0f}"
    simple = [row["alarms"][rule] / years for row in rows for rule in ("window", "cusum", "threshold")]
    found = (
        f"In **{years * len(rows)} simulated years** with nothing wrong it raised **{low} false alarms** of a fall and {high} of "
        f"a rise (at most {most:.2g} a year in one deployment; the aim is 1). A fall of 20 points is found after {spans['0.2']} "
        f"hours, of 10 after {spans['0.1']}, of 5 after {spans['0.05']} (medians by deployment); one of 2 points is within the "
        "margin." + missed(f"More than one false alarm a year: {most:.2g}.", most > 1)
    )
    return found, (
        "a window of 200 draft tokens with threshold 0.5, a CUSUM on independent drafts and a threshold on the mean of an hour, "
        f"on the same counters: at most one alarm a year in {sum(one <= 1 for one in simple)} of {len(simple)} cases, up to "
        f"{max(simple):,.0f}. Arrivals and lengths of a production trace, acceptance by domain of an examined draft; cycles, "
        "wander and bursts are a model."
    )


def coverage(results: Results) -> Answer:
    cases = [row for row in results.figure("coverage")["cases"] if row["effective_prompts"] >= 20]
    inside, student = (sum(0.93 <= row[name] <= 0.97 for row in cases) for name in ("coverage", "student_coverage"))
    lowest = min(cases, key=lambda row: row["coverage"])
    below = sum(row["coverage"] < 0.93 for row in cases)
    found = (
        f"The 95% intervals cover the true gain in 93% to 97% of draws in **{inside} of {len(cases)}** simulated cases "
        "with at least 20 effective prompts."
        + missed(
            f"{below} cases are covered less, the lowest at {lowest['coverage']:.1%} ({lowest['prompts']} prompts, "
            f"{lowest['values']}); the other {len(cases) - inside - below} are covered more.",
            inside < len(cases),
        )
    )
    worst = min(row["student_coverage"] for row in cases)
    return found, f"Student's t interval over prompts: {student} of {len(cases)}, lowest {worst:.1%}."


def power(results: Results) -> Answer:
    figure = results.figure("power")
    near = [row for row in figure["pairs"] if "base" not in row["drafts"]]
    refused = max(1 - row["at_needed"]["passed"] for row in figure["pairs"])
    at_margin = [cell for row in figure["pairs"] for cell in row["losses"] if cell["loss"] == figure["margin"]]
    apart = max(abs(cell["printed"] - cell["passed"]) for row in figure["pairs"] for cell in row["agreement"])
    numbers = sorted(row["needed"] for row in near)
    found = (
        f"An equal draft is refused in at most **{100 * refused:.1f} of 100** checks with the number of prompts that "
        f"`understudy check` prints for 95% power, which is {numbers[0]} to {numbers[-1]} for drafts of one pair. A draft "
        f"that is worse by exactly the margin of {100 * figure['margin']:g} point passes in at most "
        f"**{100 * max(cell['passed'] for cell in at_margin):.1f} of 100** (nominal 2.5). Printed and simulated power "
        f"differ by at most {100 * apart:.1f} points."
    )
    return found, (
        f"the truth in {figure['draws']:,} simulated draws of prompts from the traces of eight drafts on "
        f"{figure['prompts']} prompts."
    )


def training(results: Results) -> Answer:
    figure = results.figure("distillation_defaults")
    rows = {regime: figure["regimes"][regime]["equal_time"] for regime in ("moved", "near")}
    moved, near = rows["moved"], rows["near"]
    rate = {name: row["acceptance"]["value"] for name, row in moved.items()}
    found = (
        f"After {figure['seconds']:.0f} s of training with the defaults, trials of the rate included, the acceptance rate with "
        f"the {FINE_TUNED} rises from {rate['stock']:.3f} to **{rate[SHIPPED]:.3f}**; SFT reaches {rate['trl_sft']:.3f}, GKD "
        f"{rate['trl_gkd']:.3f}. Ahead of SFT by {_points(moved['trl_sft'])} points and of GKD by {_points(moved['trl_gkd'])}; "
        f"with the {REGIME_LABELS['near']} by {_points(near['trl_sft'])} and {_points(near['trl_gkd'])}."
    )
    for regime, aims in AIMS.items():
        for peer, aim in aims.items():
            ahead = _ahead(rows[regime][peer])[0]
            where = f"over {label(peer)} with the {REGIME_LABELS[regime]}"
            said = f"{aim:g} points {where} were the aim, {ahead:.1f} were reached."
            found += missed(said, ahead < aim)
    return found, (
        "TRL's SFTTrainer and GKDTrainer with AdamW, each with its best learning rate, whose search does not count; the same "
        "prompts, three completions each, 16 rows a step, bf16 autocast; ours with Muon, with which this draft was "
        "pre-trained; three seeds, an 8.7 M target and a 1.3 M draft."
    )


def _ahead(row: dict[str, Any]) -> tuple[float, float, float]:
    """Of ours over it in points: value, low, high."""
    over = row["over"]
    return -100 * over["value"], -100 * over["high"], -100 * over["low"]


def _points(row: dict[str, Any]) -> str:
    value, low, high = _ahead(row)
    return f"**{value:.1f}** [{low:.1f}, {high:.1f}]"


def quantized(results: Results) -> Answer:
    drafts = {draft["name"]: draft for draft in results.figure("quickstart")["drafts"]}
    cost = results.figure("decoder_quantized")
    rate = {name: interval(drafts[name]["acceptance_rate"]) for name in ("candidate", "int8", "int4")}
    sizes = {
        name: cost["sizes"][name]["file_bytes"] / cost["sizes"][name]["file_bytes_source"] for name in ("int8", "int4")
    }
    speed = {name: row["speedup"] for name, row in cost["drafts"].items()}
    found = (
        f"Little acceptance: {rate['candidate']} without quantization, INT8 {rate['int8']}, INT4 {rate['int4']} on the "
        "quickstart's pair. Speed on a CPU differs: at real sizes, gamma 5 and an imposed acceptance of "
        f"{cost['acceptance']}, decoding is **{speed['int4']:.2f}** times as fast as without a draft with INT4, "
        f"{speed['bf16']:.2f} with bf16 and {speed['int8']:.2f} with INT8. Files are {sizes['int4']:.2f} (INT4) and "
        f"{sizes['int8']:.2f} (INT8) of the bf16 size."
        + missed("an INT8 draft is slower than a bf16 draft on this CPU.", speed["int8"] < speed["bf16"])
        + missed("INT4 was to reach 3.0 if possible (aim 2.5).", speed["int4"] < 3)
    )
    return found, (
        "the same draft in bf16. Real sizes: a target of 853 M and a draft of 99 M parameters with random weights, batch "
        f"1, median of {cost['repeats']} turns."
    )


def served(results: Results) -> Answer:
    figure = results.figure("served_distillation")
    lost = {name: figure["listed"][name]["all"]["value"] for name in ("128", "20")}
    whole = figure["served"]["all"]
    found = (
        f"A draft from vLLM's 128 likeliest tokens has **{100 * whole['value']:+.1f} points** [{100 * whole['low']:+.1f}, "
        f"{100 * whole['high']:+.1f}] of acceptance. Cutting the distributions of the same completions to the 128 "
        f"likeliest tokens costs {-100 * lost['128']:.1f} points, to 20, vLLM's default limit, {-100 * lost['20']:.1f} "
        "points. The vocabulary has 1,024 tokens."
    )
    return found, (
        "a draft distilled from the same target loaded in the process, with sampled distributions; three seeds, "
        f"{figure['examination_prompts']} prompts, paired."
    )


def kinds(results: Results) -> Answer:
    figure = results.figure("heads")
    rows, card = figure["drafts"], figure["card"]
    best = {
        name: max(
            (row for row in rows if row["draft"] == name), key=lambda row: row["tokens_per_target_call"]["1"]["value"]
        )
        for name in dict.fromkeys(row["draft"] for row in rows)
    }
    calls = {
        name: {one: found["value"] for one, found in row["tokens_per_target_call"].items()}
        for name, row in best.items()
    }
    speedups = {
        name: [
            found["1"] * plain / (verify + drafted)
            for plain, verify, drafted in zip(card["plain_ms"], card["verify_ms"], card["draft_ms"][name], strict=True)
        ]
        for name, found in calls.items()
    }
    slowest = {name: one["ratio"] for name, one in figure["examination"].items() if name != "plain, pre-trained"}
    found = (
        "Tokens per target call at temperature 1 (and 0): "
        + "; ".join(f"{name} **{one['1']:.2f}** ({one['0']:.2f})" for name, one in calls.items())
        + f". With the times of passes at the shapes of Llama-3.1-8B on one {card['card']}, they would decode "
        + "; ".join(
            f"{one[0]:.2f}, {one[1]:.2f} and {one[2]:.2f} times as fast ({name})" for name, one in speedups.items()
        )
        + f" as plain decoding at batch {', '.join(map(str, card['batches']))}; a head's pass is taken to last as long as its "
        f"weights take to read. Examining a head at every draft length is {min(slowest.values()):.0f} times and more as fast as "
        "decoding one."
    )
    found += missed("20 times was the aim.", min(slowest.values()) < 20)
    return found, (
        "each other: the quickstart's target, equal completions and steps, the better of Muon and AdamW for each, rates by "
        f"trials, gamma 5, {rows[0]['prompts']} examination prompts, one seed."
    )
