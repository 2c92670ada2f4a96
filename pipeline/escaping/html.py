"""Text of users in HTML, as the content of an element or the value of an attribute in quotes."""

from markupsafe import Markup, escape

from pipeline.escaping.terminal import printable_block


def html(text: str) -> Markup:
    """Markup as characters; what reorders or hides text is shown as an escape, so that it ends with its element."""
    return escape(printable_block(text))


def finalize(value: object) -> object:
    """For `jinja2.Environment(finalize=...)`: every value that a template shows."""
    return html(value) if isinstance(value, str) and not isinstance(value, Markup) else value
