"""Text of users in a chart of matplotlib, which reads `$...$` as a formula."""

from pipeline.escaping.terminal import printable


def plot_text(text: str) -> str:
    """`text` in one line, as it is."""
    return printable(text).replace("$", r"\$")
