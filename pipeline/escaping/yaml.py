"""Values of users as YAML that can be printed and read back."""

from typing import Any

import yaml

from pipeline.escaping.terminal import printable_block


def yaml_text(value: Any) -> str:
    """A document; as ASCII where a character of another script would reorder or hide text."""
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text if printable_block(text) == text else yaml.safe_dump(value, sort_keys=False)
