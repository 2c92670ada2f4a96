"""Which variant of the candidate is chosen."""

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.config.quantize import Variant
from pipeline.judgement.choice import CHOSEN, NOT_COMPARED, NOT_MADE, REFUSED, SLOWER, Contender, choose, not_made
from pipeline.judgement.schema import VariantFigures
from pipeline.running.pair_checks import left_out_variants


def _contender(variant: Variant, acceptance: float | None, timed: bool, seconds: float | None = None) -> Contender:
    figures = None if acceptance is None else _figures(acceptance)
    return Contender(name=variant, figures=figures, timed=timed, seconds=seconds)


def _figures(acceptance: float) -> VariantFigures:
    rate, omega = (Figure(value, None, None, 50) for value in (acceptance, 2.0))
    return VariantFigures(bytes=1000, acceptance_rate=rate, tokens_per_target_call=omega)


def _verdicts(*contenders: Contender) -> dict[str, str]:
    return {one.name: one.verdict for one in choose(contenders)}


def test_the_fastest_on_dev_is_chosen() -> None:
    """By predicted seconds, whatever the acceptance, and others are slower."""
    found = choose(
        [
            _contender("unquantized", 0.8, True, 2.0),
            _contender("int8", 0.8, True, 3.0),
            _contender("int4", 0.7, True, 1.0),
        ]
    )

    assert [SLOWER, SLOWER, CHOSEN] == [one.verdict for one in found]
    assert "int4: predicted mean request latency 1 s on dev prompts" == found[2].text


def test_the_unquantized_draft_is_chosen_where_nothing_is_timed() -> None:
    """A variant is not chosen without step times."""
    found = _verdicts(_contender("unquantized", 0.8, False), _contender("int4", 0.9, False))

    assert {"unquantized": CHOSEN, "int4": NOT_COMPARED} == found


def test_only_forms_with_step_times_compete() -> None:
    """With step times of the int4 draft alone, the int4 draft is chosen."""
    found = _verdicts(
        _contender("unquantized", 0.8, False), _contender("int8", 0.8, False), _contender("int4", 0.7, True, 1.0)
    )

    assert {"unquantized": NOT_COMPARED, "int8": NOT_COMPARED, "int4": CHOSEN} == found


def test_a_single_timed_form_has_no_prediction() -> None:
    """It is chosen without an examination on dev, and the text says so."""
    (found,) = choose([_contender("unquantized", 0.8, True)])

    assert (CHOSEN, True) == (found.verdict, "the only variant" in found.text)


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.39, REFUSED), (0.4, CHOSEN), (None, REFUSED)])
def test_a_variant_whose_acceptance_collapsed_is_refused(acceptance: float | None, verdict: str) -> None:
    """Below half of the acceptance rate before quantization, or without a figure, however fast it is."""
    contenders = [_contender("unquantized", 0.8, True, 2.0), _contender("int4", acceptance, True, 0.1)]
    int4 = choose(contenders)[1]

    assert verdict == int4.verdict
    assert (verdict == REFUSED) == ("is broken" in int4.text)
    if verdict == REFUSED:
        assert "0.800" in int4.text
        assert CHOSEN == choose(contenders)[0].verdict


def test_a_form_that_cannot_serve_the_load_is_the_slowest() -> None:
    """A variant that can serve it is chosen; where none can, the unquantized draft is, and its rules refuse it."""
    overloaded = _contender("unquantized", 0.8, True, None)

    assert CHOSEN == _verdicts(overloaded, _contender("int4", 0.7, True, 9.0))["int4"]
    assert CHOSEN == _verdicts(overloaded, _contender("int4", 0.7, True, None))["unquantized"]


def test_a_broken_candidate_refuses_no_variant() -> None:
    """Without a figure of the unquantized draft there is nothing to compare with; its rules refuse it."""
    assert {"unquantized": CHOSEN, "int4": SLOWER} == _verdicts(
        _contender("unquantized", None, True, 1.0), _contender("int4", 0.3, True, 2.0)
    )


def test_a_standing_has_its_figures() -> None:
    """Acceptance rate and seconds as given, and the reason why it was not chosen."""
    found = choose([_contender("unquantized", 0.8, True, 2.0), _contender("int4", 0.7, True, None)])

    assert [(_figures(0.8), 2.0), (_figures(0.7), None)] == [(one.figures, one.seconds) for one in found]
    assert "int4: the load exceeds its capacity" == found[1].text


def test_default_variants_that_the_draft_cannot_have_are_named() -> None:
    """With the reason; a variant that is not made by default is not named."""
    facts = {"impossible_variants": {"int4": "q_proj has 172 inputs", "fp8": "x"}}
    (found,) = (not_made(variant, reason) for variant, reason in left_out_variants(facts).items())

    assert ("int4", NOT_MADE, "int4: q_proj has 172 inputs") == (found.name, found.verdict, found.text)
