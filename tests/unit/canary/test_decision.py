"""What a verification does: reload for other weights, roll back for the draft's own failure, else alarm."""

from typing import Any

import pytest

from pipeline.canary.decision import Action, Seen, decide

FINE: dict[str, Any] = {
    "target": "as_examined",
    "draft": "as_examined",
    "unasked": False,
    "production": "as_predicted",
    "can_reload": True,
    "reloaded": False,
    "waited": True,
    "late": False,
    "may_roll_back": True,
}
OTHER, OPEN = {"draft": "not_as_examined"}, {"draft": "inconclusive"}
SHORT, FEW, UNKNOWN = {"production": "short"}, {"production": "too_few"}, {"production": "not_known"}
LATE, OTHERWISE = {"late": True}, {"production": "otherwise"}


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({}, "verified"),
        (UNKNOWN, "verified"),
        (FEW, "wait"),
        (FEW | LATE, "verified"),
        # Other weights: reload once, then alarm. The draft is never banned for it, whatever production shows.
        (OTHER, "reload"),
        (OTHER | {"waited": False}, "wait"),  # replicas restart one after another
        (OTHER | SHORT, "reload"),
        (OTHER | {"target": "changed"}, "reload"),
        (OTHER | {"unasked": True}, "reload"),
        (OTHER | LATE, "reload"),
        (OTHER | {"reloaded": True}, "wait"),
        (OTHER | {"reloaded": True} | LATE, "alarm"),
        (OTHER | SHORT | {"reloaded": True} | LATE, "alarm"),
        (OTHER | {"can_reload": False}, "alarm"),
        # The same where production drafts in another way.
        (OTHERWISE, "reload"),
        (OTHERWISE | {"waited": False}, "wait"),
        (OTHERWISE | {"reloaded": True} | LATE, "alarm"),
        (OTHERWISE | {"can_reload": False}, "alarm"),
        (OTHERWISE | {"target": "changed"}, "alarm"),
        # An engine that does not answer may be starting.
        ({"unasked": True}, "wait"),
        ({"unasked": True} | SHORT, "wait"),
        ({"unasked": True} | LATE, "unverified"),
        # The draft is not to blame for another target.
        ({"target": "changed"}, "alarm"),
        ({"target": "changed"} | SHORT, "alarm"),
        # Neither is to blame for an engine whose evidence excludes itself.
        ({"target": "contradictory"}, "alarm"),
        ({"target": "contradictory"} | SHORT, "alarm"),
        ({"target": "contradictory"} | OTHER, "reload"),
        # The draft itself.
        (SHORT, "roll_back"),
        (SHORT | {"reloaded": True}, "roll_back"),
        (SHORT | {"may_roll_back": False}, "alarm"),
        # Where the canary could not judge, production's counters may do; they never roll back.
        (OPEN, "verified"),
        (OPEN | SHORT, "alarm"),
        # Until then an engine may still load the champion: the counts may be of the draft before.
        (OPEN | {"waited": False}, "wait"),
        (OPEN | SHORT | {"waited": False}, "wait"),
        ({"target": "inconclusive"} | SHORT | {"waited": False}, "alarm"),
        (OPEN | FEW, "wait"),
        (OPEN | FEW | LATE, "unverified"),
        (OPEN | UNKNOWN, "unverified"),
        ({"target": "inconclusive"} | SHORT, "alarm"),
    ],
)
def test_one_thing_is_done(changes: dict[str, Any], action: Action) -> None:
    """By what was seen."""
    assert action == decide(Seen(**(FINE | changes))).action
