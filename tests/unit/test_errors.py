"""Errors that quote the content of a damaged file."""

from pipeline.errors import UnderstudyError


def test_control_characters_are_escaped_and_long_lines_cut() -> None:
    """A terminal is not changed by a file's content; the file's name and the remedy stay."""
    assert "f: \\x1b[31m\\ud800\\ng: é" == str(UnderstudyError("f: \x1b[31m\ud800\ng: é"))

    long = str(UnderstudyError(f"f: {'x' * 5_000}; write it again"))
    assert (True, True, True) == (long.startswith("f: x"), long.endswith("x; write it again"), len(long) < 1_000)


def test_only_arguments_are_lines() -> None:
    """A line break in a name adds no line, such as one that says that all is well; several mistakes are several arguments."""
    assert "domain 'a\\nok': bad\nsecond" == str(UnderstudyError("domain 'a\nok': bad", "second"))
