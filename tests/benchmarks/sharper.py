"""Sharper examinations for the same tokens: more completions a prompt, shorter ones, and control variates. Measured, not used.

Each row is an estimate of the gain of one draft over another on the benchmarks' examination prompts. Its cost is the number of
target tokens for the same standard error, relative to one whole completion a prompt. Every prompt has four completions here; figures
of one completion are means over the four.

Control variates are known from the target alone: sums over a completion's tokens of the entropy H_t and of log p(x_t). Their
means over all prompts are taken as known, which costs completions that no draft reads. log p(x_t) + H_t needs no such mean: its
expectation is 0. The estimate subtracts their regression; prompts are drawn with replacement to find its variance and bias.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.figures import write
from tests.benchmarks.refpair import ReferencePair, find_pair
from tests.benchmarks.retrained import load_drafts

_PAIRS = (("seed 0", "seed 1"), ("one half", "other half"), ("seed 0", "base draft"))
_COMPLETIONS, _DRAWS = 4, 4000
_LENGTHS = (64, 32, 16)
_VARIATES = {
    "entropy": ("entropy",),
    "mean log p": ("log_p",),
    "entropy and mean log p": ("entropy", "log_p"),
    "log p + entropy (mean 0)": ("surprise",),
}

Floats = NDArray[np.float64]
Scores = dict[str, list[Floats]]  # by quantity, of one completion for each prompt: its value at every token


class _Prompts(NamedTuple):
    """The same N prompts with one completion each: domains by number, and scores."""

    domains_N: NDArray[np.int64]
    scores: Scores


def main() -> None:
    """Generate, score, draw and write."""
    pair = find_pair()
    sets = _scored(pair)
    figure = {
        "completions": _COMPLETIONS,
        "draws": _DRAWS,
        "prompts": len(sets[0].domains_N),
        "pairs": [{"drafts": f"{one} and {other}", **_measure(sets, one, other)} for one, other in _PAIRS],
    }
    write("sharper", "python -m tests.benchmarks sharper", figure)


def _measure(sets: Sequence[_Prompts], one: str, other: str) -> dict[str, Any]:
    rng = np.random.default_rng(20261123)
    whole = [_sums(each, f"a {one}", f"a {other}") for each in sets]
    cost = float(np.mean([_error(*each) ** 2 * each[1].sum() for each in whole]))
    rows = []
    for count in (2, _COMPLETIONS):
        together = (sum(each[0] for each in whole[:count]), sum(each[1] for each in whole[:count]), whole[0][2])
        rows.append(_row(f"{count} completions a prompt", _error(*together) ** 2 * together[1].sum() / cost))
    for length in _LENGTHS:
        short = [_sums(each, f"a {one}", f"a {other}", length) for each in sets]
        found = float(np.mean([_error(*each) ** 2 * each[1].sum() for each in short]))
        bias = float(np.mean([_gain(*each) for each in short]) - np.mean([_gain(*each) for each in whole]))
        rows.append(_row(f"first {length} tokens", found / cost, bias))
    overlaps = [_sums(each, f"overlap {one}", f"overlap {other}") for each in sets]
    found = float(np.mean([_error(*each) ** 2 * each[1].sum() for each in overlaps]))
    bias = float(np.mean([_gain(*each) for each in overlaps]) - np.mean([_gain(*each) for each in whole]))
    rows.append(_row("sum of min(p, q) in place of a_t", found / cost, bias))
    for name, variates in _VARIATES.items():
        drawn = [_regressed(each, sums, variates, rng) for each, sums in zip(sets, whole, strict=True)]
        rows.append(
            _row(name, float(np.mean([each[0] for each in drawn])), float(np.mean([each[1] for each in drawn])))
        )
    independent = float(np.mean([_token_variance(each, one, other) for each in sets]))
    return {"design_effect": cost / independent, "gain": float(np.mean([_gain(*each) for each in whole])), "rows": rows}


def _row(name: str, cost: float, bias: float = 0.0) -> dict[str, Any]:
    return {"examination": name, "cost": float(cost), "bias": float(bias)}


def _sums(
    prompts: _Prompts, ours: str, theirs: str, length: int | None = None
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """By prompt: sum of the difference over the first `length` tokens, their number, and the domain."""
    columns = zip(prompts.scores[ours], prompts.scores[theirs], strict=True)
    differences = [(mine - yours)[:length] for mine, yours in columns]
    return (
        np.array([each.sum() for each in differences]),
        np.array([float(len(each)) for each in differences]),
        prompts.domains_N,
    )


def _gain(differences_N: Floats, tokens_N: Floats, _: NDArray[np.int64]) -> float:
    return float(differences_N.sum() / tokens_N.sum())


def _error(differences_N: Floats, tokens_N: Floats, domains_N: NDArray[np.int64]) -> float:
    """Standard error of the gain."""
    from pipeline.acceptance.intervals import ratio_gain

    return ratio_gain(differences_N, tokens_N, 0 * tokens_N, tokens_N, domains_N.tolist(), 0.95).error


def _token_variance(prompts: _Prompts, one: str, other: str) -> float:
    """Of the difference at one token, as if tokens were independent."""
    joined = [np.concatenate(prompts.scores[f"a {name}"]) for name in (one, other)]
    return float((joined[0] - joined[1]).var())


def _regressed(
    prompts: _Prompts,
    sums: tuple[Floats, Floats, NDArray[np.int64]],
    variates: Sequence[str],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Variance relative to the plain estimate, and bias, of the estimate that subtracts the regression on `variates`."""
    differences_N, tokens_N, domains_N = sums
    controls_KN = np.array([[each.sum() for each in prompts.scores[name]] for name in variates])
    known_K = controls_KN.sum(1) / tokens_N.sum()  # the mean of all prompts that are drawn from
    truth = _gain(*sums)
    parts = [np.flatnonzero(domains_N == domain) for domain in np.unique(domains_N)]
    plain, controlled = [], []
    for _ in range(_DRAWS):
        rows = np.concatenate([rng.choice(part, len(part)) for part in parts])
        tokens, total = tokens_N[rows], tokens_N[rows].sum()
        gain = differences_N[rows].sum() / total
        means_K = controls_KN[:, rows].sum(1) / total
        centred_KN = controls_KN[:, rows] - means_K[:, None] * tokens
        design = np.stack([*centred_KN, *(1.0 * (domains_N[rows] == domain) for domain in np.unique(domains_N))], 1)
        slopes = np.linalg.lstsq(design, differences_N[rows] - gain * tokens, rcond=None)[0][: len(variates)]
        plain.append(gain)
        controlled.append(gain - slopes @ (means_K - known_K))
    return float(np.var(controlled) / np.var(plain)), float(np.mean(controlled) - truth)


def _scored(pair: ReferencePair) -> list[_Prompts]:
    """Each of the four sets of completions with its scores: a_t and sum of min(p, q) of every draft, entropy and log p."""
    import torch

    drafts = load_drafts(pair)
    target, _ = pair.load("float32")
    names = sorted({name for both in _PAIRS for name in both})
    sets = []
    for completions in _completions(pair, target):
        domains = sorted({item.domain for item in completions})
        scores: Scores = {name: [] for name in ("entropy", "log_p", "surprise")}
        scores |= {f"{kind} {name}": [] for kind in ("a", "overlap") for name in names}
        for item in completions:
            ids = torch.tensor([[*item.prompt.tolist(), *item.tokens[: item.length].tolist()]])
            emitted_T1 = ids[0, len(item.prompt) :, None]
            p_TV = _log_probabilities(target, ids, len(item.prompt), pair.vocabulary)
            log_p_T = p_TV.gather(1, emitted_T1)[:, 0]
            entropy_T = -(p_TV.exp() * p_TV).sum(1)
            found = {"entropy": entropy_T, "log_p": log_p_T, "surprise": log_p_T + entropy_T}
            for name in names:
                q_TV = _log_probabilities(drafts[name], ids, len(item.prompt), pair.vocabulary)
                found[f"a {name}"] = (q_TV.gather(1, emitted_T1)[:, 0] - log_p_T).exp().clamp(max=1)
                found[f"overlap {name}"] = torch.minimum(p_TV, q_TV).exp().sum(1)
            for name, values_T in found.items():
                scores[name].append(values_T.double().numpy())
        sets.append(_Prompts(np.array([domains.index(item.domain) for item in completions]), scores))
    return sets


def _log_probabilities(model: Any, ids: Any, prompt: int, vocabulary: int) -> Any:
    """At the positions that predict the completion, (T, V)."""
    import torch

    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1, :vocabulary].log_softmax(-1)


def _completions(pair: ReferencePair, target: Any) -> list[list[Any]]:
    """Four sets of completions of the examination prompts at temperature 1, in one order; generated once."""
    from pipeline.corpus.prompt_store import Prompt
    from pipeline.generation.completion_store import read_completions
    from pipeline.generation.generate import CompletionRequest, GenerationSettings, generate
    from pipeline.progress import Progress
    from pipeline.speculation.sampling import Sampling

    stored = list(read_completions(pair.completions, {"examination"}, Sampling()))
    sets = []
    for number in range(_COMPLETIONS):
        requests = [
            CompletionRequest(
                Prompt(item.id, item.split, item.domain, 0, tuple(item.prompt.tolist())), Sampling(), number
            )
            for item in stored
        ]
        settings = GenerationSettings(
            sampling=Sampling(),
            max_new_tokens=max(item.length for item in stored),
            lookahead=0,
            distribution_tokens=1,
            distribution_selection="top_k",
            batch=len(requests),
            shard=len(requests),
            seed=1,
        )
        out = Path(pair.root) / "sharper" / f"completions-{number}"
        out.mkdir(parents=True, exist_ok=True)
        generate(target, requests, settings, pair.vocabulary, pair.stop_tokens, out, Progress())
        sets.append(list(read_completions(out, {"examination"}, Sampling())))
    return sets


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of BENCHMARKS.md."""
    pairs = figure["pairs"]
    yield "## Sharper examinations for the same tokens\n"
    yield (
        f"Target tokens for the same standard error of the gain, relative to one whole completion a prompt ({figure['prompts']} "
        f"prompts, {figure['completions']} completions each), and the bias in points: the difference from the gain that the "
        f"default estimates, or for control variates the mean error over {figure['draws']:,} draws of prompts. "
        "A cost below 1 is sharper.\n"
    )
    yield "| examination |" + "".join(f" {pair['drafts']} | bias |" for pair in pairs)
    yield "|---|" + "---|---|" * len(pairs)
    yield "| design effect of tokens |" + "".join(f" {pair['design_effect']:.2f} | |" for pair in pairs)
    for rows in zip(*(pair["rows"] for pair in pairs), strict=True):
        yield f"| {rows[0]['examination']} |" + "".join(
            f" {row['cost']:.2f} | {100 * row['bias']:+.2f} |" for row in rows
        )
