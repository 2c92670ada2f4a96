"""Text of users for an XML writer, which escapes markup but not the characters that XML forbids."""

from pipeline.escaping.terminal import printable_block


def xml_text(text: str) -> str:
    """Control characters, lone surrogates and the like become escapes."""
    return printable_block(text)
