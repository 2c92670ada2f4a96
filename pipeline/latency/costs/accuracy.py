"""How far the times of a step may be off, for every figure that is computed from them. Pure."""

import math
from dataclasses import dataclass, replace
from typing import Any

_SHOWN = 0.005  # error of the tokens per step from which it is said


@dataclass(frozen=True)
class EdgeError:
    """Mean absolute relative error of step times at the lightest and at the heaviest load, by the others, as a share."""

    lighter: float
    heavier: float


@dataclass(frozen=True)
class StepAccuracy:
    """The accuracy of predicted steps. `left_out`: mean absolute relative error of fitted step times on left-out measurements, as
    a share; None if unknown. `fitted`: False for measured forward times, which have no such error. `tokens`: the same error of
    the tokens per step, where these come from the measurements too; 0 if they do not. `edge`: whether it is of a figure at or
    beyond the lightest or heaviest load, and `left_out` that of a left-out load there."""

    left_out: float | None = None
    fitted: bool = True
    tokens: float = 0.0
    edge: bool = False

    def with_tokens(self, error: float) -> "StepAccuracy":
        """The accuracy of figures that are computed from measured tokens per step too."""
        return replace(self, tokens=error)

    def or_worse(self, other: "StepAccuracy") -> "StepAccuracy":
        """The accuracy of a figure that is computed from steps of both."""
        return max(self, other, key=lambda accuracy: accuracy.certain_speedup)

    @property
    def certain_speedup(self) -> float:
        """The least speedup that is above 1 if one step time is this much too high, the other this much too low, and the tokens
        per step too many. Infinite if there is none, or if the error is unknown."""
        if not self.fitted:
            return 1.0
        if self.left_out is None or self.left_out >= 1:
            return math.inf
        return (1 + self.left_out) * (1 + self.tokens) / (1 - self.left_out)

    @property
    def short(self) -> str:
        """The text of a cell of a table."""
        if not self.fitted:
            return "measured"
        steps = "unknown" if self.left_out is None else f"{self.left_out:.1%}"
        steps += " (edge)" if self.edge else ""
        return steps + (f", tokens {self.tokens:.0%}" if self.tokens >= _SHOWN else "")

    @property
    def said(self) -> str:
        """The text beside a figure."""
        if not self.fitted:
            return "step times measured"
        tokens = f", tokens per step {self.tokens:.1%} off" if self.tokens >= _SHOWN else ""
        if self.left_out is None:
            why = (
                "at the edge unknown: too few loads, or costs of an older version"
                if self.edge
                else "unknown: too few points"
            )
            return f"error of the step times {why}{tokens}"
        where = "at the edge, by the left-out outermost load" if self.edge else "on left-out points"
        return f"step times {self.left_out:.1%} off {where}{tokens}"

    def json(self) -> dict[str, Any]:
        return {
            "step_times": "fitted" if self.fitted else "measured",
            "left_out_error": self.left_out,
            "edge": self.edge,
            "tokens_per_step_error": self.tokens,
        }


MEASURED = StepAccuracy(fitted=False)
