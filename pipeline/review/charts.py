"""The charts of the review page as inline SVG, drawn by matplotlib. Colours are CSS variables of the page, so that they follow
its light and dark theme. No text is drawn as paths: it stays searchable and small."""

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.acceptance.schema import Figure, Figures, PositionBin
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP, PLAIN, Benefit, LoadFigures, Side, TrainingStep

# matplotlib needs colours; each stands for a variable of the page's style sheet.
_VARIABLES = {
    "#010101": "var(--ink)",
    "#020202": "var(--grid)",
    "#030303": "var(--candidate)",
    "#040404": "var(--baseline)",
    "#050505": "var(--lookup)",
    "#060606": "var(--plain)",
}
_INK, _GRID = "#010101", "#020202"
_COLOURS = {CANDIDATE: "#030303", BASELINE: "#040404", LOOKUP: "#050505", PLAIN: "#060606"}
_SHAPES = {CANDIDATE: "o", BASELINE: "s", LOOKUP: "^", PLAIN: "D"}  # distinguished without colour
_DASHES = ((4, 2), (1, 1.5), (6, 2, 1, 2), (8, 3), (3, 1, 1, 1, 1, 1))  # of segments
_SIZE = (6.2, 3.2)


class Charts:
    """Draws charts. `names`: what each side is called."""

    def __init__(self, names: Mapping[Side, str]) -> None:
        import matplotlib as mpl
        import matplotlib.figure

        self._mpl, self._names, self._count = mpl, names, 0

    def by_draft_length(self, drafts: Mapping[Side, Figures], gamma: int) -> str:
        """Tokens per target call by draft length, with intervals; the engine's draft length is marked."""
        figure, axes = self._axes("draft tokens per round (γ)", "tokens per target call")
        for side, draft in drafts.items():
            omega = draft.tokens_per_target_call
            lengths = sorted(omega)
            self._points(axes, side, lengths, [omega[length] for length in lengths])
        axes.axvline(gamma, color=_INK, linestyle=":", linewidth=1)
        axes.annotate(f"γ = {gamma}", (gamma, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), **_POINTS)
        return self._svg(figure, axes)

    def by_position_in_draft(self, drafts: Mapping[Side, Figures]) -> str:
        """The share of draft tokens accepted at each position, given that all before it were accepted."""
        figure, axes = self._axes("position in the draft", "accepted, if reached")
        for side, draft in drafts.items():
            values = draft.conditional_acceptance
            self._line(axes, side, list(range(1, len(values) + 1)), values)
        return self._svg(figure, axes)

    def by_bin(self, drafts: Mapping[Side, Sequence[PositionBin] | None], label: str) -> str:
        """Acceptance rate by output position or context length, with intervals."""
        figure, axes = self._axes(label, "acceptance rate")
        ticks: dict[int, str] = {}
        for side, by_bin in drafts.items():
            bins = by_bin or []
            self._points(axes, side, [entry.start for entry in bins], [entry.acceptance_rate for entry in bins])
            ticks |= {entry.start: f"{entry.start}+" for entry in bins}
        axes.set_xscale("symlog", base=2, linthresh=16)
        axes.set_xticks(sorted(ticks), [ticks[at] for at in sorted(ticks)])
        axes.minorticks_off()
        return self._svg(figure, axes)

    def training(self, log: Sequence[TrainingStep]) -> str:
        """Acceptance rate on dev prompts by training step; thin lines: of each segment."""
        figure, axes = self._axes("training step", "acceptance rate on dev prompts")
        points = [(row.step, row.dev_acceptance_rate) for row in log if row.dev_acceptance_rate is not None]
        self._line(axes, CANDIDATE, [step for step, _ in points], [rate for _, rate in points])
        segments = sorted({name for row in log for name in row.dev_acceptance_rate_by_segment})
        for name, dashes in zip(segments, itertools.cycle(_DASHES)):
            parts = [(row.step, row.dev_acceptance_rate_by_segment.get(name)) for row in log]
            known = [(step, rate) for step, rate in parts if rate is not None]
            axes.plot(*zip(*known, strict=True), color=_INK, linestyle=(0, dashes), label=name, linewidth=1)
        return self._svg(figure, axes, legend=bool(segments))

    def latency_by_load(self, points: Sequence[LoadFigures], stated: float) -> str:
        """Mean request latency by offered load."""
        figure, axes = self._axes("offered load (requests/s)", "mean request latency (s)")
        for side, by_rate in (
            (PLAIN, [(point.requests_per_second, point.plain) for point in points]),
            (CANDIDATE, [(point.requests_per_second, point.candidate) for point in points]),
        ):
            stable = [(rate, latency.mean_seconds) for rate, latency in by_rate if latency is not None]
            self._line(axes, side, [rate for rate, _ in stable], [seconds for _, seconds in stable])
        axes.axvline(stated, color=_INK, linestyle=":", linewidth=1)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        return self._svg(figure, axes)

    def speedup_by_load(self, points: Sequence[LoadFigures], stated: float) -> str:
        """Mean latency of plain decoding / with speculation, by offered load."""
        figure, axes = self._axes("offered load (requests/s)", "speedup")
        known = [(point.requests_per_second, point.speedup) for point in points if point.speedup is not None]
        self._line(axes, CANDIDATE, [rate for rate, _ in known], [speedup for _, speedup in known])
        axes.axhline(1, color=_INK, linewidth=1)
        axes.axvline(stated, color=_INK, linestyle=":", linewidth=1)
        return self._svg(figure, axes, legend=False)

    def tokens_by_draft_length(self, benefit: Benefit, output_tokens: float, limits: Mapping[str, float]) -> str:
        """Tokens per second of the replica against those of one user, by draft length; the engine's has markers. `limits`: of the
        latency in seconds, by name; each a point at the stated load, for a request of mean length."""
        figure, axes = self._axes("tokens/s of one user", "tokens/s of the replica")
        dashes = itertools.cycle(_DASHES)
        for length, rates in sorted(benefit.by_draft_length.items()):
            each, of_all = [rate.each for rate in rates], [rate.all for rate in rates]
            line = self._line(axes, CANDIDATE if length else PLAIN, each, of_all)
            if length:
                line.set_label(f"γ = {length}")
            if length not in (0, benefit.gamma):
                line.set(marker="", linewidth=1, dashes=next(dashes))
        stated = benefit.requests_per_second * output_tokens
        axes.axhline(stated, color=_INK, linestyle=":", linewidth=1)
        for (name, seconds), fill in zip(limits.items(), itertools.cycle(("full", "none", "left"))):
            axes.plot(output_tokens / seconds, stated, "*", color=_INK, fillstyle=fill, markersize=11, label=name)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        return self._svg(figure, axes)

    def _axes(self, x: str, y: str) -> tuple[Any, Any]:
        # Figure, not pyplot: pyplot keeps every figure in a global list.
        figure = self._mpl.figure.Figure(figsize=_SIZE)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.set_xlabel(x, color=_INK)
        axes.set_ylabel(y, color=_INK)
        axes.tick_params(which="both", color=_INK, labelcolor=_INK)
        axes.grid(color=_GRID, linewidth=0.6)
        for name, spine in axes.spines.items():
            spine.set_color(_INK)
            spine.set_visible(name in ("left", "bottom"))
        return figure, axes

    def _points(self, axes: Any, side: Side, x: list[int], figures: list[Figure]) -> None:
        """Values joined by a line, with the intervals that are known."""
        self._line(axes, side, x, [figure.value for figure in figures])
        known = [(at, figure) for at, figure in zip(x, figures, strict=True) if figure.low is not None]
        axes.vlines(
            [at for at, _ in known],
            [figure.low for _, figure in known],
            [figure.high for _, figure in known],
            color=_COLOURS[side],
            linewidth=1.2,
        )

    def _line(self, axes: Any, side: Side, x: Sequence[float], y: Sequence[float]) -> Any:
        (line,) = axes.plot(
            x, y, _SHAPES[side] + "-", color=_COLOURS[side], label=self._names[side], markersize=4, linewidth=1.4
        )
        return line

    def _svg(self, figure: Any, axes: Any, legend: bool = True) -> str:
        rows = 0
        if legend:
            shown = axes.legend(frameon=False, labelcolor=_INK, fontsize="small", **_ABOVE)
            rows = -(-len(shown.legend_handles) // _ABOVE["ncols"])
        _place(figure, axes, rows)
        self._count += 1
        out = io.StringIO()
        with self._mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart {self._count}"}):
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return _inline(out.getvalue(), f"c{self._count}-")


def _place(figure: Any, axes: Any, rows: int) -> None:
    """Room for the longest label of the vertical axis and `rows` of the legend. A layout engine draws each chart twice."""
    axis, (width, height) = axes.yaxis, _SIZE
    labels = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    labels += axis.get_minor_formatter().format_ticks(axis.get_minorticklocs())
    left = _BESIDE + _CHARACTER * max(map(len, labels), default=0)
    figure.subplots_adjust(left / width, _BELOW / height, 1 - _RIGHT / width, 1 - (_TOP + _ROW * rows) / height)


# In inches: axis labels with ticks, half a label at the right, a character of a label, above the axes, a row of the legend.
_BESIDE, _BELOW, _RIGHT, _CHARACTER, _TOP, _ROW = 0.38, 0.5, 0.2, 0.09, 0.12, 0.2

# The legend, where it hides no figure.
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3}
_POINTS: dict[str, Any] = {"textcoords": "offset points", "color": _INK, "fontsize": "small"}


def _inline(svg: str, prefix: str) -> str:
    """An SVG document as an element of a page: ids that are unique there, colours as variables, no fixed size."""
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text).replace("*{stroke", "svg *{stroke", 1)
    return re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
