"""URLs that people write: checked where they are read, so that no request fails on what could be seen in the text."""

from collections.abc import Sequence
from urllib.parse import urlsplit

HTTP = ("http", "https")
_UNIX = "unix"
_LABEL = 63  # bytes of a part of a host's name, and
_NAME = 253  # of the whole (RFC 1035, section 2.3.4)


def wrong_with(url: str, schemes: Sequence[str] = HTTP) -> str | None:
    """Why no request can be sent to `url`, without quoting it, for it may be a secret; None where nothing is wrong. Of
    `unix://`, the path of a socket follows."""
    if not url.isprintable() or " " in url:
        return "it has a space, or a character that is not printable"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"it cannot be parsed ({error})"
    if parts.scheme not in schemes:
        return f"it does not begin with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    if parts.scheme == _UNIX:
        return None if url.startswith("unix:///") and len(parts.path) > 1 else "it has no absolute path of a socket"
    try:
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        return "its port is not a number from 1 to 65535"
    if port == 0:
        return "its port is not a number from 1 to 65535"
    return _wrong_with_host(host)


def _wrong_with_host(host: str) -> str | None:
    if not host:
        return "it names no host"
    if ":" in host:  # an IPv6 address, whose form `urlsplit` has checked
        return None
    try:
        name = host.encode("idna").removesuffix(b".")
    except UnicodeError as error:
        return f"its host is no name of a machine ({error.__cause__ or error})"
    if len(name) > _NAME or any(not 0 < len(label) <= _LABEL for label in name.split(b".")):
        return f"its host is no name of a machine (1 to {_LABEL} bytes between the dots)"
    return None
