"""Sharper examinations for the same tokens: more completions a prompt, shorter ones, and control variates. Measured, not used.

Each row is an estimate of the gain of one draft over another on the benchmarks' examination prompts. Its cost is the number of
target tokens for the same standard error, relative to one whole completion a prompt. Every prompt has four completions here;
figures of one completion are means over the four.

Control variates are known from the target alone: sums over a completion's tokens of the entropy H_t and of log p(x_t). Their
means over all prompts are taken as known, which costs completions that no draft reads. log p(x_t) + H_t needs no such mean: its
expectation is 0. The estimate subtracts their regression; prompts are drawn with replacement to find its variance and bias.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.intervals import ratio_gain
from tests.benchmarks.figures import write
from tests.benchmarks.refpair import ReferencePair, find_pair
from tests.benchmarks.retrained import load_drafts

if TYPE_CHECKING:
    from pipeline.generation.completion_store import StoredCompletion

_PAIRS = (("seed 0", "seed 1"), ("one half", "other half"), ("seed 0", "base draft"))
_COMPLETIONS, _DRAWS = 4, 4000
_LENGTHS = (64, 32, 16)
_STORED = 16  # tokens of each stored distribution, as `generate` stores them by default
_OVERLAPS = {
    "overlap": "sum of min(p, q) in place of a_t",
    "stored": f"the same, from {_STORED} stored tokens of p",
}
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
    cost = _cost(whole)
    rows = []
    for count in (2, _COMPLETIONS):
        together = _Sums(
            np.sum([each.differences_N for each in whole[:count]], 0),
            np.sum([each.tokens_N for each in whole[:count]], 0),
            whole[0].domains_N,
        )
        rows.append({"examination": f"{count} completions a prompt", "cost": _cost([together]) / cost})
    for length in _LENGTHS:
        short = [_sums(each, f"a {one}", f"a {other}", length) for each in sets]
        rows.append({"examination": f"first {length} tokens", "cost": _cost(short) / cost, **_apart(short, whole)})
    for kind, name in _OVERLAPS.items():
        found = [_sums(each, f"{kind} {one}", f"{kind} {other}") for each in sets]
        rows.append({"examination": name, "cost": _cost(found) / cost, **_apart(found, whole)})
    for name, variates in _VARIATES.items():
        rows.append({"examination": name, **_regressed(sets, whole, variates, rng)})
    stored = [_sums(each, f"stored {one}", f"stored {other}") for each in sets]
    both = _regressed(sets, stored, ("entropy", "log_p"), rng)
    rows.append(
        {"examination": "stored tokens, entropy and mean log p", **both, "cost": both["cost"] * _cost(stored) / cost}
    )
    independent = float(np.mean([_token_variance(each, one, other) for each in sets]))
    gain = float(np.mean([each.gain for each in whole]))
    return {"design_effect": cost / independent, "gain": gain, "rows": rows}


class _Sums(NamedTuple):
    """By prompt: sum of the differences at every token, number of tokens, domain."""

    differences_N: Floats
    tokens_N: Floats
    domains_N: NDArray[np.int64]

    @property
    def gain(self) -> float:
        return float(self.differences_N.sum() / self.tokens_N.sum())

    def error_from(self, other: "_Sums | None" = None) -> float:
        """Standard error of the gain, or of its difference from another estimate."""
        base_N, base_tokens_N = (0 * self.tokens_N, self.tokens_N) if other is None else other[:2]
        return ratio_gain(self.differences_N, self.tokens_N, base_N, base_tokens_N, self.domains_N.tolist(), 0.95).error


def _cost(estimates: Sequence[_Sums]) -> float:
    """Variance of the gain, times target tokens."""
    return float(np.mean([each.error_from() ** 2 * each.tokens_N.sum() for each in estimates]))


def _apart(estimates: Sequence[_Sums], whole: Sequence[_Sums]) -> dict[str, float]:
    """Mean difference of the gain from that of the default, and its standard error."""
    pairs = list(zip(estimates, whole, strict=True))
    return {
        "bias": float(np.mean([one.gain - other.gain for one, other in pairs])),
        "bias_error": float(np.mean([one.error_from(other) for one, other in pairs])) / len(pairs) ** 0.5,
    }


def _sums(prompts: _Prompts, ours: str, theirs: str, length: int | None = None) -> _Sums:
    """Over the first `length` tokens."""
    columns = zip(prompts.scores[ours], prompts.scores[theirs], strict=True)
    differences = [(mine - yours)[:length] for mine, yours in columns]
    return _Sums(
        np.array([each.sum() for each in differences]),
        np.array([float(len(each)) for each in differences]),
        prompts.domains_N,
    )


def _token_variance(prompts: _Prompts, one: str, other: str) -> float:
    """Of the difference at one token, as if tokens were independent."""
    joined = [np.concatenate(prompts.scores[f"a {name}"]) for name in (one, other)]
    return float((joined[0] - joined[1]).var())


def _regressed(
    sets: Sequence[_Prompts], whole: Sequence[_Sums], variates: Sequence[str], rng: np.random.Generator
) -> dict[str, float]:
    """Cost and bias of the estimate that subtracts the regression on `variates`, over draws of prompts."""
    ratios, biases, errors = [], [], []
    for prompts, sums in zip(sets, whole, strict=True):
        controls_KN = np.array([[each.sum() for each in prompts.scores[name]] for name in variates])
        drawn = np.array([_draw(sums, controls_KN, rng) for _ in range(_DRAWS)])
        ratios.append(drawn[:, 1].var() / drawn[:, 0].var())
        biases.append(drawn[:, 1].mean() - sums.gain)
        errors.append(drawn[:, 1].std() / _DRAWS**0.5)
    return {
        "cost": float(np.mean(ratios)),
        "bias": float(np.mean(biases)),
        "bias_error": float(np.mean(errors)) / len(sets) ** 0.5,
    }


def _draw(sums: _Sums, controls_KN: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """The gain over prompts drawn within domains, plain and with the regression subtracted. The mean of the control variates
    over all prompts is known."""
    parts = [np.flatnonzero(sums.domains_N == domain) for domain in np.unique(sums.domains_N)]
    rows = np.concatenate([rng.choice(part, len(part)) for part in parts])
    tokens_N, total = sums.tokens_N[rows], sums.tokens_N[rows].sum()
    gain = float(sums.differences_N[rows].sum() / total)
    means_K = controls_KN[:, rows].sum(1) / total
    domains = [1.0 * (sums.domains_N[rows] == domain) for domain in np.unique(sums.domains_N)]
    design_NC = np.stack([*(controls_KN[:, rows] - means_K[:, None] * tokens_N), *domains], 1)
    slopes_C = np.linalg.lstsq(design_NC, sums.differences_N[rows] - gain * tokens_N, rcond=None)[0]
    known_K = controls_KN.sum(1) / sums.tokens_N.sum()
    return gain, gain - float(slopes_C[: len(means_K)] @ (means_K - known_K))


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
        scores |= {f"{kind} {name}": [] for kind in ("a", *_OVERLAPS) for name in names}
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
                found[f"stored {name}"] = _stored_overlap(item, q_TV)
            for name, values_T in found.items():
                scores[name].append(values_T.double().numpy())
        sets.append(_Prompts(np.array([domains.index(item.domain) for item in completions]), scores))
    return sets


def _stored_overlap(item: "StoredCompletion", q_TV: Any) -> Any:
    """Unbiased estimate of sum of min(p, q) from the stored tokens: a sampled one stands for its share of the rest's mass."""
    import torch

    from pipeline.generation.distributions import unpack

    count = item.length
    ids_TK, log_p_TK = unpack(item.entries[:count], item.certain[:count], item.rest_log_p[:count], item.vocabulary)
    kept = ids_TK.shape[1]
    draws_T1 = np.maximum(kept - item.certain[:count].astype(np.float32), 1)[:, None]
    share_T1 = np.exp(item.rest_log_p[:count].astype(np.float32))[:, None] / draws_T1
    weights_TK = np.where(np.arange(kept) < item.certain[:count, None], np.exp(log_p_TK), share_T1)
    log_ratio_TK = q_TV.gather(1, torch.from_numpy(ids_TK)) - torch.from_numpy(log_p_TK)
    return (torch.from_numpy(weights_TK) * log_ratio_TK.exp().clamp(max=1)).sum(1)


def _log_probabilities(model: Any, ids: Any, prompt: int, vocabulary: int) -> Any:
    """At the positions that predict the completion, (T, V)."""
    import torch

    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1, :vocabulary].log_softmax(-1)


def _completions(pair: ReferencePair, target: Any) -> list[list[Any]]:
    """Four sets of completions of the examination prompts at temperature 1, in one order; generated once."""
    from pipeline.corpus.prompt_store import Prompt
    from pipeline.generation.completion_plan import CompletionRequest
    from pipeline.generation.completion_store import read_completions
    from pipeline.generation.generate import GenerationSettings, generate
    from pipeline.progress import Progress
    from pipeline.speculation.settings import Sampling

    stored = list(read_completions(pair.completions, {"examination"}, Sampling()))
    sets = []
    for number in range(_COMPLETIONS):
        requests = [
            CompletionRequest(
                Prompt(
                    item.id,
                    item.split,
                    item.domain,
                    0,
                    tuple(item.prompt.tolist()),
                    text_id=item.text_id,
                    conversation=item.conversation,
                ),
                Sampling(),
                number,
            )
            for item in stored
        ]
        settings = GenerationSettings(
            sampling=Sampling(),
            max_new_tokens=max(item.length for item in stored),
            lookahead=0,
            distribution_tokens=_STORED,
            distribution_selection="sampled",
            batch=len(requests),
            shard=len(requests),
            seed=1,
        )
        out = Path(pair.root) / "sharper" / str(number)
        out.mkdir(parents=True, exist_ok=True)
        generate(target, requests, settings, pair.vocabulary, pair.stop_tokens, out, Progress())
        sets.append(list(read_completions(out, {"examination"}, Sampling())))
    return sets


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    pairs = figure["pairs"]
    yield "## Sharper examinations for the same tokens\n"
    yield (
        f"Target tokens for the same standard error of the gain, relative to one whole completion a prompt ({figure['prompts']} "
        f"prompts, {figure['completions']} completions each), and the bias in points with its standard error: "
        "the difference from the gain that the "
        f"default estimates, or for control variates the mean error over {figure['draws']:,} draws of prompts. "
        "A cost below 1 is sharper.\n"
    )
    yield "| examination |" + "".join(f" {pair['drafts']} | bias |" for pair in pairs)
    yield "|---|" + "---|---|" * len(pairs)
    yield "| design effect of tokens |" + "".join(f" {pair['design_effect']:.2f} | |" for pair in pairs)
    for rows in zip(*(pair["rows"] for pair in pairs), strict=True):
        yield f"| {rows[0]['examination']} |" + "".join(f" {row['cost']:.2f} | {_bias(row)} |" for row in rows)


def _bias(row: dict[str, Any]) -> str:
    return f"{100 * row['bias']:+.2f} ± {100 * row['bias_error']:.2f}" if "bias" in row else ""
