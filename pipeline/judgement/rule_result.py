"""The results of promotion rules, as `decision.json` has them. Imports nothing heavy."""

from typing import Literal

from pipeline.acceptance.schema import Figure
from pipeline.store.parsing import Count, Number, Text, stored

RuleVerdict = Literal["pass", "fail", "inconclusive"]
PASS: RuleVerdict = "pass"
FAIL: RuleVerdict = "fail"
INCONCLUSIVE: RuleVerdict = "inconclusive"
# Over a champion of another kind of draft, what takes the place of rules about the gain in acceptance rate: of the gain in speed,
# whose figures are shares and are shown in per cent.
OF_SPEED = {"min_gain": "min_speed_gain", "domain_margin": "domain_speed_margin"}


@stored
class Power:
    """The power of one rule. Gains are true gains, in the unit of the figure; keys are levels as text, such as "0.8"."""

    prompts: Count
    conversations: Count | None = None  # the number of independent units, if it is smaller than that of the prompts
    passes: dict[Text, Number]  # the smallest true gain that passes with this probability
    refused: dict[Text, Number]  # the largest true gain (a loss, if negative) that is refused with this probability
    # the probability that a draft with equal acceptance passes; None for a threshold that is not < 0
    equal_passes: Number | None
    # for an equal draft to pass, in independent units; empty for a threshold that is not < 0
    prompts_needed: dict[Text, Count | None]


@stored
class RuleResult:
    """The result of one rule."""

    name: Text
    verdict: RuleVerdict
    text: Text  # one line for people, with the figures
    figure: Figure | None = (
        None  # a figure that is not an estimate over prompts, such as a size, has no bounds and 0 prompts
    )
    threshold: Number | None = None
    power: Power | None = None  # of a rule about a gain, where it has an interval
