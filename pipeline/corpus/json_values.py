"""Values of rows that may be the JSON text of an object or a list: a column of one type holds different shapes as text."""

from typing import Any

from pipeline.store.json_text import parse_json

MOST_LEVELS = 64  # of lists and objects in each other; of a text of JSON within a row, counted anew


def decoded(value: Any) -> Any:
    """The object or list of which `value` is the JSON text; other values, and text that is not JSON, as they are."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return parse_json(value, foreign=True, levels=MOST_LEVELS)
    except ValueError:
        return value
