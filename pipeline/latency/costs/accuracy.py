"""How far the times of a step may be off, for every figure that is computed from them. Pure."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepAccuracy:
    """`left_out`: mean absolute relative error of fitted step times on left-out measurements, as a share; None if unknown.
    `fitted`: False for measured forward times, which have no such error."""

    left_out: float | None = None
    fitted: bool = True

    @property
    def short(self) -> str:
        """In a cell of a table."""
        if not self.fitted:
            return "measured"
        return "unknown" if self.left_out is None else f"{self.left_out:.1%}"

    @property
    def said(self) -> str:
        """Beside a figure."""
        if not self.fitted:
            return "step times measured"
        if self.left_out is None:
            return "error of the step times unknown: too few points"
        return f"step times {self.left_out:.1%} off on left-out points"

    def json(self) -> dict[str, Any]:
        return {"step_times": "fitted" if self.fitted else "measured", "left_out_error": self.left_out}


MEASURED = StepAccuracy(fitted=False)
