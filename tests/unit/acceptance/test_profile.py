"""From counts to figures, to JSON and back."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.gains import acceptance_gain, omega_gain
from pipeline.acceptance.moments import round_moments
from pipeline.acceptance.profile import Completions, PromptCounts, count_completions, counts_from_json, counts_json
from pipeline.acceptance.profile_file import parse_examination, read_examination, write_profile
from pipeline.acceptance.rounds import CONVENTIONS, Acceptance, expected_rounds, iid_tokens_per_call
from pipeline.acceptance.schema import FILE, SCHEMA, DomainFigures, ExaminedDraft, Figures, parse_profile, read_profile
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import Examiner
from pipeline.speculation.settings import Sampling
from pipeline.store.row_files import RowFile
from tests.fakes import counted, stored_completion, table_model
from tests.profiles import make_profile, profile_json

AS_USER = EvaluateConfig(convention="user")
LENGTHS, EXTRA, GAMMAS = [9, 4, 12, 7], 3, 4


def _counts(convention: str = "user", extra: int = EXTRA) -> list[PromptCounts]:
    generator = np.random.default_rng(3)
    a = [generator.random(length + extra) for length in LENGTHS]
    return count_completions(_completions(), [Acceptance([a_T]) for a_T in a], GAMMAS, CONVENTIONS[convention])


def _completions() -> Completions:
    loops = [np.arange(length) < 2 for length in LENGTHS]
    domains = ["chat", "code", "chat", "code"]
    return Completions(list("abcd"), list("abcd"), domains, np.array([14, 1, 40, 9]), np.array(LENGTHS), loops)


def figures(counts: Sequence[PromptCounts], confidence: float) -> Figures:
    return _tally(counts).figures(confidence)


def by_domain(counts: Sequence[PromptCounts], gamma: int, confidence: float) -> dict[str, DomainFigures]:
    return _tally(counts).domains(gamma, confidence)


def _tally(counts: Sequence[PromptCounts]) -> AcceptanceTally:
    tally = AcceptanceTally(len(counts[0].rounds), ())
    tally.add(counts)
    return tally


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_counts_are_those_of_each_completion_alone(convention: str) -> None:
    """Sums of a_t leave the lookahead out; rounds, calls and accepted tokens are one completion's own."""
    generator = np.random.default_rng(3)
    for item, length in zip(_counts(convention), LENGTHS, strict=True):
        a_T = generator.random(length + EXTRA)
        assert (length, pytest.approx(a_T[:length].sum()), length) == (item.tokens, item.accepted, item.examined)
        assert (2, pytest.approx(a_T[:2].sum())) == (item.loop_tokens, item.loop_accepted)
        for gamma in range(1, GAMMAS + 1):
            alone = expected_rounds(a_T[None], np.array([length]), gamma, CONVENTIONS[convention])
            assert alone.rounds_B[0] == pytest.approx(item.rounds[gamma - 1])
            assert alone.calls_B[0] == pytest.approx(item.calls[gamma - 1])
            assert alone.accepted_BG.sum() == pytest.approx(item.accepted_drafts[gamma - 1])
            moments = round_moments(a_T[None], np.array([length]), gamma, CONVENTIONS[convention])
            assert moments.rounds.variance[0] == pytest.approx(item.rounds_variance[gamma - 1])
        assert alone.accepted_BG[0].tolist() == pytest.approx(item.per_position)


def test_figures_are_ratios_of_sums() -> None:
    """Every figure, from the counts by hand."""
    counts = _counts()
    found = figures(counts, 0.95)
    tokens, alpha = sum(LENGTHS), sum(item.accepted for item in counts) / sum(LENGTHS)
    rounds = sum(item.rounds[3] for item in counts)
    places = [sum(item.per_position[i] for item in counts) / rounds for i in range(GAMMAS)]
    omega = tokens / sum(item.calls[3] for item in counts)

    assert (4, tokens) == (found.prompts, found.tokens)
    assert alpha == pytest.approx(found.acceptance_rate.value)
    assert omega == pytest.approx(found.tokens_per_target_call[4].value)
    assert 1 + sum(item.accepted_drafts[3] for item in counts) / rounds == pytest.approx(
        found.mean_acceptance_length[4]
    )
    assert iid_tokens_per_call(alpha, 4) - omega == pytest.approx(found.iid_error[4])
    assert places == pytest.approx(found.per_position_acceptance)
    assert [places[0], *(b / a for a, b in pairwise(places))] == pytest.approx(found.conditional_acceptance)
    assert rounds == pytest.approx(found.rounds[4].expected)
    assert sum(item.rounds_variance[3] for item in counts) ** 0.5 == pytest.approx(found.rounds[4].standard_deviation)
    assert 8 / tokens == pytest.approx(found.loop_share)
    assert (alpha * tokens - sum(item.loop_accepted for item in counts)) / (tokens - 8) == pytest.approx(
        found.acceptance_rate_without_loops
    )


def test_figures_do_not_depend_on_how_prompts_come_in() -> None:
    """One by one, or all at once: the same figures, but for rounding."""
    counts = _counts()
    tally = AcceptanceTally(GAMMAS, ())
    for item in counts:
        tally.add([item])
    tally.add([])

    assert _flat(asdict(figures(counts, 0.95))) == pytest.approx(_flat(asdict(tally.figures(0.95))), rel=1e-9)
    at_once, one_by_one = by_domain(counts, 2, 0.9), tally.domains(2, 0.9)
    assert list(at_once) == list(one_by_one)
    for domain, found in at_once.items():
        assert _flat(asdict(found)) == pytest.approx(_flat(asdict(one_by_one[domain])), rel=1e-9)


def _flat(value: Any, path: str = "") -> dict[str, float]:
    """Every number of nested JSON by its path; null becomes infinity."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: number for key, part in items for name, number in _flat(part, f"{path}/{key}").items()}
    return {path: float("inf") if value is None else float(value)}


def test_domains_have_their_own_figures() -> None:
    """A domain's rate and Omega are those of its prompts."""
    counts = _counts()
    found = by_domain(counts, 2, 0.9)
    code = [counts[1], counts[3]]

    assert ["chat", "code"] == list(found)
    assert sum(item.accepted for item in code) / 11 == pytest.approx(found["code"].acceptance_rate.value)
    assert 11 / sum(item.calls[1] for item in code) == pytest.approx(found["code"].tokens_per_target_call[2].value)


def test_counts_survive_json() -> None:
    """A profile read back gives the same counts, number by number, and its figures are strict JSON."""
    counts = _counts()

    assert counts == list(counts_from_json(json.loads(json.dumps(counts_json(counts), allow_nan=False))))
    json.dumps(asdict(figures(counts[:1], 0.95)), allow_nan=False)
    assert figures(counts[:1], 0.95).acceptance_rate.low is None


def test_a_gain_is_over_the_same_prompts_or_an_error() -> None:
    """Other prompts, a missing one, another order, or a completion of another length cannot be paired."""
    counts = _counts()
    for other in (
        counts[::-1],
        counts[:-1],
        [*counts[:-1], replace(counts[-1], id="e")],
        [*counts[:-1], replace(counts[-1], tokens=3)],
    ):
        with pytest.raises(UnderstudyError, match="same completions"):
            acceptance_gain(counts, other, 0.95)
        with pytest.raises(UnderstudyError, match="same completions"):
            omega_gain(counts, other, 2, 0.95)


def test_gains_are_differences_of_figures() -> None:
    """In acceptance and, at each gamma, in tokens per call."""
    draft, base = _counts(), [replace(i, accepted=i.accepted / 2, calls=[2 * c for c in i.calls]) for i in _counts()]
    better, worse = figures(draft, 0.95), figures(base, 0.95)

    assert better.acceptance_rate.value / 2 == pytest.approx(acceptance_gain(draft, base, 0.95).value)
    for gamma in (1, 4):
        one, other = (f.tokens_per_target_call[gamma].value for f in (better, worse))
        assert one - other == pytest.approx(omega_gain(draft, base, gamma, 0.95).value)


def test_a_lookahead_too_short_for_vllm_names_the_key_to_raise() -> None:
    """An unclipped convention needs max_gamma - 1 tokens past the end; one less is an error with a remedy."""
    assert 4 == len(_counts("vllm", extra=3))
    with pytest.raises(UnderstudyError, match=r"prompt a: .*'vllm' needs 3 .* and 2 are stored.*generate\.lookahead"):
        _counts("vllm", extra=2)
    assert 4 == len(_counts("user", extra=0))


def test_nothing_to_examine_is_an_error() -> None:
    """No completion, no profile."""
    with pytest.raises(UnderstudyError, match="no completion"):
        count_completions(Completions([], [], [], np.zeros(0), np.zeros(0), []), [], 2, CONVENTIONS["user"])
    with pytest.raises(UnderstudyError, match="no completion"):
        AcceptanceTally(2, ()).figures(0.95)


def test_one_token_completions_have_no_round_under_vllm() -> None:
    """Where the prefill emits all there is, nothing is drafted, and the mean acceptance length is 1."""
    counts = [
        replace(item, rounds=[0.0], rounds_variance=[0.0], accepted_drafts=[0.0], per_position=[0.0], calls=[1.0])
        for item in _counts()
    ]
    found = figures(counts, 0.95)

    assert {1: 1.0} == found.mean_acceptance_length
    assert [0.0] == found.per_position_acceptance


@pytest.mark.parametrize("raw", [None, [], {}, {"schema": 1}, {"schema": SCHEMA + 1}, {"schema": str(SCHEMA)}])
def test_a_profile_of_another_schema_is_refused_in_one_line(raw: Any) -> None:
    """Both schemas, the file and the remedy are named; nothing is guessed."""
    with pytest.raises(
        UnderstudyError,
        match=rf"^a\.json: the acceptance profile has schema .*, .* reads schema {SCHEMA}; examine .* again",
    ):
        parse_profile(raw, "a.json")


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    """Draft lengths are text in JSON, and numbers again when read."""
    profile, counts = make_profile(_counts()), _counts()
    with RowFile(tmp_path / FILE, ["deployed"]) as rows:
        rows.add("deployed", counts_json(counts))
        write_profile(rows, profile)

    assert profile == read_profile(tmp_path)
    found = read_examination(tmp_path)
    assert (profile, counts) == (found.profile, list(found.counts))


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (
            ("headline", "acceptance_rate", "value"),
            "0.7",
            "headline.acceptance_rate.value: Input should be a valid number",
        ),
        (("headline", "acceptance_rate", "mean"), 0.7, "headline.acceptance_rate.mean: Unexpected keyword argument"),
        (("headline", "tokens_per_target_call", "two"), {}, "headline.tokens_per_target_call.two"),
        (
            ("draft", "kind"),
            "eagle",
            "draft.kind: Input should be 'plain', 'tli', 'eagle3', 'medusa', 'prompt-lookup' or 'suffix-matching'",
        ),
        (("prompts", "deployed", 0, "accepted"), -1.0, "prompt a: -1.0 accepted"),
    ],
)
def test_a_damaged_profile_names_the_first_wrong_place(place: tuple[Any, ...], value: Any, named: str) -> None:
    """In one line with the file."""
    raw = json.loads(json.dumps(profile_json(_counts())))
    parse_examination(raw, "a.json")
    part = raw
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value

    with pytest.raises(UnderstudyError, match=rf"^a\.json: not a complete acceptance profile \({re.escape(named)}"):
        parse_examination(raw, "a.json")


def test_gamma_zero_is_an_error() -> None:
    """There is no draft of no token."""
    with pytest.raises(UnderstudyError, match="max_gamma is 0"):
        count_completions(_completions(), [Acceptance([np.ones(length)]) for length in LENGTHS], 0, CONVENTIONS["user"])


def test_stored_completions_are_examined_and_looked_up() -> None:
    """The examination over the store: the rate alone is the profile's rate; prompt-lookup counts what it examined."""
    model = table_model(8, 1)
    generator = np.random.default_rng(0)
    rows = [
        stored_completion(
            generator.integers(0, 8, 4), generator.integers(0, 8, 20), name=f"p{i}", length=12, vocabulary=8, seed=i
        )
        for i in range(5)
    ]
    settings = EvaluateConfig(max_gamma=6, gamma=3, convention="vllm")
    (drafted,) = Examiner(Sampling(), settings).counts(PlainDraft(model, 8), rows)
    (looked_up,) = Examiner(Sampling(), settings).counts(PromptLookup(3), rows)

    rate = figures(drafted, 0.95).acceptance_rate
    dev = Examiner(Sampling(), settings, count_as="user").summary(PlainDraft(model, 8), rows)
    (as_user,) = Examiner(Sampling(), EvaluateConfig(max_gamma=3, gamma=3)).counts(PlainDraft(model, 8), rows)
    assert rate.value == pytest.approx(dev.acceptance)
    assert figures(as_user, 0.95).tokens_per_target_call[3].value == pytest.approx(dev.omega)
    assert [12] * 5 == [item.tokens for item in looked_up]
    assert all(0 <= item.accepted <= item.examined < item.tokens for item in looked_up)
    assert 6 == len(looked_up[0].per_position)


def test_a_draft_that_0_1_0_examined_is_a_plain_one() -> None:
    """It wrote `model` where there is now a name for each kind; what is written is the new name."""
    draft = TypeAdapter(ExaminedDraft).validate_python({"kind": "model", "bytes": 1, "parameters": 2, "digest": "d"})

    assert ExaminedDraft(kind="plain", bytes=1, parameters=2, digest="d") == draft


def test_prompt_lookup_that_finds_nothing_has_a_rate_of_zero() -> None:
    """No n-gram came twice: nothing was examined, so the rate is 0 with unknown bounds, in every domain."""
    rows = [stored_completion([1, 2], [3, 4, 5, 6], name="a"), stored_completion([1], [2, 3], name="b", domain="chat")]
    (counts,) = Examiner(Sampling(), AS_USER).counts(PromptLookup(3), rows)

    for entry in (figures(counts, 0.95), *by_domain(counts, 5, 0.95).values()):
        assert (0.0, None, None) == (entry.acceptance_rate.value, entry.acceptance_rate.low, entry.acceptance_rate.high)


def test_prompt_lookup_has_no_rate_without_loops() -> None:
    """It does not examine every token, so the share of its loops is not known; a quotient of the two would exceed 1."""
    looping, wrong = [*range(8)] * 3, [token for new in range(10, 28) for token in (9, new)]
    (counts,) = Examiner(Sampling(), AS_USER).counts(
        PromptLookup(3), [stored_completion([30], looping), stored_completion([30], wrong, name="p1")]
    )
    accepted, examined, loops = (
        sum(getattr(item, name) for item in counts) for name in ("accepted", "examined", "loop_tokens")
    )

    assert accepted > examined - loops > 0
    assert figures(counts, 0.95).acceptance_rate_without_loops is None
    assert (
        1
        == figures(
            [replace(counted("a", 90.0), loop_tokens=50, loop_accepted=40.0)] * 2, 0.95
        ).acceptance_rate_without_loops
    )


def test_conditional_acceptance_ends_where_no_token_was_accepted() -> None:
    """What happens after that nobody has seen; 0 would look like a rejection."""
    accepted = [replace(counted("p", 50.0), per_position=[25.0, 5.0, 0.0, 0.0, 0.0])]
    found = figures(accepted, 0.95)
    assert [0.5, 0.2, 0.0] == found.conditional_acceptance
    assert [0.5, 0.1, 0.0, 0.0, 0.0] == found.per_position_acceptance


def test_bounds_of_a_rate_are_rates() -> None:
    """Of few prompts that differ much, the interval of a ratio reaches below 0 or above 1."""
    rare = [counted(f"p{number}", 60.0 if number == 0 else 0.0) for number in range(6)]
    often = [counted(f"p{number}", 40.0 if number == 0 else 100.0) for number in range(6)]
    for counts in (rare, often):
        for found in (figures(counts, 0.95).acceptance_rate, by_domain(counts, 5, 0.95)["code"].acceptance_rate):
            assert found.low is not None
            assert found.high is not None
            assert 0 <= found.low < found.value < found.high <= 1
    assert figures(rare[:1], 0.95).acceptance_rate.low is None
