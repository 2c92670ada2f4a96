"""Requests as input of the queueing model: rounds at each draft length, from an examination or from one acceptance rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.baseline import read_baseline
from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.moments import rounds_variance
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.profile_file import examined, parse_examination
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.acceptance.schema import FILE
from pipeline.drafts.kinds import KINDS
from pipeline.errors import BrokenDraft, UnderstudyError, UsageError
from pipeline.latency.costs.output_rounds import acceptance_rate
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.capacity import RequestSizes, ServerCapacity
from pipeline.latency.load.simulation import Traces
from pipeline.store.files import read_user_json

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_USER = CONVENTIONS["user"]
_GIVE = f"give an evaluate artifact, its {FILE} or a baseline of `understudy check`"


@dataclass(frozen=True)
class Workload:
    """W equally likely requests. Row g of a (G + 1, W) array is draft length g; row 0 is plain decoding."""

    prompt_tokens_W: Ints
    tokens_W: Ints
    rounds_GW: Floats  # expected decoding steps after prefill
    variance_GW: Floats  # variance of the steps from random acceptance
    draft_digest: str | None = None  # of the examined draft
    of_measurements: bool = False  # whether the tokens per step are those with which the costs were measured
    tokens_error: float = 0.0  # of these
    unit_W: Ints | None = None  # number of the independent unit, the conversation, of each request; None: each is one

    @property
    def max_gamma(self) -> int:
        return len(self.rounds_GW) - 1

    @property
    def rounds_G(self) -> Floats:
        """Rounds of the mean request by draft length."""
        mean_G: Floats = self.rounds_GW.mean(1)
        return mean_G

    @property
    def context(self) -> float:
        """Mean context length during decoding, in tokens."""
        return float((self.prompt_tokens_W + self.tokens_W / 2).mean())

    def sizes(self, gamma: int, first_steps: int = 0) -> RequestSizes:
        """Distribution of request sizes at a draft length, with the steps of the first token."""
        mean = self.rounds_G[gamma] + first_steps
        return RequestSizes((self.rounds_GW[gamma] + first_steps) / mean, self.variance_GW[gamma] / mean**2)

    def up_to(self, gamma: int) -> "Workload":
        """The workload without draft lengths above `gamma`."""
        return replace(self, rounds_GW=self.rounds_GW[: gamma + 1], variance_GW=self.variance_GW[: gamma + 1])


def examined_workload(counts: Sequence[PromptCounts], convention: Convention, gammas: int) -> Workload:
    """The requests of an examination, with their lengths and acceptance."""
    table = CountTable.of(counts)
    tokens_W = table.columns["tokens"]
    plain_W = np.maximum(tokens_W - convention.start, 0).astype(np.float64)
    rounds_GW, variance_GW = (table.columns[name].T[:gammas] for name in ("rounds", "rounds_variance"))
    numbers: dict[str, int] = {}
    units = [numbers.setdefault(name, len(numbers)) for name in table.conversations]
    return Workload(
        table.columns["prompt_tokens"],
        tokens_W,
        np.vstack([plain_W, rounds_GW]),
        np.vstack([np.zeros_like(plain_W), variance_GW]),
        unit_W=np.array(units),
    )


def read_workload(path: Path) -> Workload:
    """Read an `evaluate` artifact, its `acceptance.json`, or a baseline of `understudy check`. UsageError for anything else."""
    file = path / FILE if path.is_dir() else path
    raw = read_user_json(file, _GIVE)
    if not isinstance(raw, dict) or not {"schema", "conditions", "prompts"} <= raw.keys():
        raise UsageError(f"{file}: not an examination; {_GIVE}")
    if isinstance(raw["prompts"], dict):
        counts, convention, digest = _of_profile(raw, file)
    else:
        examined = read_baseline(raw, str(file))
        counts, convention, digest = examined.counts, examined.conditions.settings.convention, examined.digest
    if not counts:
        raise UsageError(f"{file}: an examination without prompts; examine the draft again")
    try:
        workload = examined_workload(counts, CONVENTIONS[convention], len(counts[0].rounds))
        sound = np.isfinite(workload.rounds_GW).all() and (workload.rounds_G > 0).all()
    except (IndexError, TypeError, ValueError) as error:
        raise UsageError(f"{file}: incomplete examination ({error}); examine the draft again") from None
    if not sound:
        raise UsageError(
            f"{file}: outputs have at most one token, or rounds are not finite; examine the draft again with longer outputs"
        )
    return replace(workload, draft_digest=digest)


def _of_profile(raw: Any, file: Path) -> tuple[Sequence[PromptCounts], str, str | None]:
    """Counts, convention and the draft's digest from an `acceptance.json`."""
    try:
        examination = examined(parse_examination(raw, str(file)))
    except BrokenDraft as error:
        raise UsageError(f"{file}: {error}; {_GIVE}") from None
    except UnderstudyError as error:
        raise UsageError(str(error)) from None
    kind = KINDS[examination.profile.draft.kind]
    if not kind.has_weights:
        raise UsageError(
            f"{file}: an examination of {kind.name}, which has no draft model; give the examination of a draft"
        )
    return examination.counts, examination.profile.conditions.convention, examination.profile.draft.digest


def constant_acceptance_workload(
    alpha: float | Sequence[float], prompt_tokens: int, tokens: int | Ints, gammas: int
) -> Workload:
    """Requests with output lengths `tokens`, (W,) or one, and one acceptance rate for every token, or one for each draft length
    from 1. ValueError for an output length of 0."""
    tokens_W = np.atleast_1d(tokens)
    alpha_G = [alpha] * gammas if isinstance(alpha, float | int) else alpha
    plain_W = np.maximum(tokens_W - _USER.start, 0.0)
    rounds_GW, variance_GW = [plain_W], [np.zeros(len(tokens_W))]
    for gamma, rate in enumerate(alpha_G[:gammas], 1):
        a_WT = np.full((len(tokens_W), int(tokens_W.max())), rate)
        rounds_GW.append(expected_rounds(a_WT, tokens_W, gamma, _USER).rounds_B)
        variance_GW.append(rounds_variance(a_WT, tokens_W, gamma, _USER))
    return Workload(np.full(len(tokens_W), prompt_tokens), tokens_W, np.array(rounds_GW), np.array(variance_GW))


def measured_acceptance_workload(
    tokens_by_gamma: Mapping[int, float], prompt_tokens: int, tokens: int | Ints, gammas: int
) -> Workload:
    """As `constant_acceptance_workload`, with the acceptance rates that give the tokens per step that were measured at each draft
    length; interpolated between them, and below the shortest its own. One acceptance rate for all lengths would overrate the long
    drafts: later draft tokens are accepted less often."""
    known = {
        gamma: acceptance_rate(length, gamma) for gamma, length in sorted(tokens_by_gamma.items()) if gamma > 0
    } or {1: 0.0}
    alpha_G = np.interp(np.arange(1.0, gammas + 1), list(known), list(known.values()))
    return constant_acceptance_workload(alpha_G.tolist(), prompt_tokens, tokens, gammas)


def make_traces(workload: Workload, gamma: int) -> Traces:
    """Input of the simulation: each request gets the constant acceptance rate that reproduces its expected rounds at draft
    length `gamma` (from 1). A workload of plain decoding only has none."""
    tokens_W, width = workload.tokens_W, int(workload.tokens_W.max())
    if not workload.max_gamma:
        return Traces(workload.prompt_tokens_W, tokens_W, np.zeros((len(tokens_W), width)))
    wanted_W = workload.rounds_GW[gamma]
    low_W, high_W = np.zeros(len(tokens_W)), np.ones(len(tokens_W))
    for _ in range(30):
        middle_W = (low_W + high_W) / 2
        rounds_W = expected_rounds(np.repeat(middle_W[:, None], width, axis=1), tokens_W, gamma, _USER).rounds_B
        low_W = np.where(rounds_W > wanted_W, middle_W, low_W)  # too many rounds: raise the acceptance rate
        high_W = np.where(rounds_W > wanted_W, high_W, middle_W)
    acceptance_WT = np.zeros((len(tokens_W), width + workload.max_gamma))
    acceptance_WT[:, :width] = np.where(np.arange(width) < tokens_W[:, None], high_W[:, None], 0.0)
    return Traces(workload.prompt_tokens_W, tokens_W, acceptance_WT)


def measured_lengths(workload: Workload, step_costs: StepCosts) -> list[int]:
    """The draft lengths that were measured, 0 among them if plain decoding was."""
    first = 0 if step_costs.plain else 1
    return [gamma for gamma in range(first, workload.max_gamma + 1) if step_costs.measured(gamma)]


def server_capacity(workload: Workload, step_costs: StepCosts, lengths_N: Ints) -> ServerCapacity:
    """Service times of the workload at each batch size n, at draft length lengths_N[n - 1]; the batch cap is
    `len(lengths_N)`. They contain the step of the first token, where it takes one."""
    step_GN = step_costs.steps(len(lengths_N), round(workload.context), workload.max_gamma)
    chosen = (lengths_N, np.arange(len(lengths_N)))
    prefill = float(step_costs.prefills(workload.prompt_tokens_W).mean())
    step_N = step_GN[chosen]
    return ServerCapacity(
        ((workload.rounds_G[:, None] + step_costs.first_steps) * step_GN)[chosen],
        step_N,
        prefill,
        max(0.0, step_costs.first_token - prefill - step_costs.first_steps * float(step_N[0])),
    )
