"""Which form of a candidate is judged."""

import pytest

from pipeline.judgement.choice import CHOSEN, NOT_COMPARED, REFUSED, SLOWER, Contender, choose


def _verdicts(*contenders: Contender) -> dict[str, str]:
    return {one.name: one.verdict for one in choose(contenders)}


def test_the_fastest_on_dev_is_chosen() -> None:
    """By predicted seconds, whatever the acceptance, and others are slower."""
    found = choose(
        [
            Contender("candidate", 0.8, True, 2.0),
            Contender("int8", 0.8, True, 3.0),
            Contender("int4", 0.7, True, 1.0),
        ]
    )

    assert [SLOWER, SLOWER, CHOSEN] == [one.verdict for one in found]
    assert "int4: 1 s a request predicted on dev prompts" == found[2].text


def test_what_was_trained_is_chosen_where_nothing_is_timed() -> None:
    """A variant that might be faster is not taken on trust."""
    found = _verdicts(Contender("candidate", 0.8, False), Contender("int4", 0.9, False))

    assert {"candidate": CHOSEN, "int4": NOT_COMPARED} == found


def test_only_what_is_timed_competes() -> None:
    """With a profile of the int4 draft alone, it is the int4 draft that is meant to serve."""
    found = _verdicts(
        Contender("candidate", 0.8, False), Contender("int8", 0.8, False), Contender("int4", 0.7, True, 1.0)
    )

    assert {"candidate": NOT_COMPARED, "int8": NOT_COMPARED, "int4": CHOSEN} == found


def test_the_only_one_is_not_called_unstable() -> None:
    """Nothing was examined on dev for it, because there is nothing to choose."""
    (found,) = choose([Contender("candidate", 0.8, True)])

    assert (CHOSEN, True) == (found.verdict, "the only form" in found.text)


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.39, REFUSED), (0.4, CHOSEN), (None, REFUSED)])
def test_a_variant_that_no_longer_agrees_is_refused(acceptance: float | None, verdict: str) -> None:
    """Below half of the acceptance before quantising, or without one, with its figures; however fast it is."""
    contenders = [Contender("candidate", 0.8, True, 2.0), Contender("int4", acceptance, True, 0.1)]
    int4 = choose(contenders)[1]

    assert verdict == int4.verdict
    assert (verdict == REFUSED) == ("no longer agrees" in int4.text)
    if verdict == REFUSED:
        assert "0.800" in int4.text
        assert CHOSEN == choose(contenders)[0].verdict


def test_a_load_that_is_too_much_is_the_slowest() -> None:
    """A form that carries it wins; where none does, what was trained is judged, and refused by its rules."""
    stuck = Contender("candidate", 0.8, True, None)

    assert CHOSEN == _verdicts(stuck, Contender("int4", 0.7, True, 9.0))["int4"]
    assert CHOSEN == _verdicts(stuck, Contender("int4", 0.7, True, None))["candidate"]


def test_a_broken_candidate_refuses_nobody() -> None:
    """Nothing can be said of agreement where the candidate itself has no figure; the rules refuse it."""
    assert {"candidate": CHOSEN, "int4": SLOWER} == _verdicts(
        Contender("candidate", None, True, 1.0), Contender("int4", 0.3, True, 2.0)
    )


def test_a_standing_has_its_figures() -> None:
    """Acceptance and seconds as they were given, and why it lost."""
    found = choose([Contender("candidate", 0.8, True, 2.0), Contender("int4", 0.7, True, None)])

    assert [(0.8, 2.0), (0.7, None)] == [(one.acceptance, one.seconds) for one in found]
    assert "int4: not stable at the load" == found[1].text
