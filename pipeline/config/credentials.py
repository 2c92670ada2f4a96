"""Recognises credentials in a URI. URIs are stored, logged and printed, so credentials come from the environment instead."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
_IS_URI = re.compile(r"\s*[a-z][a-z0-9+.-]*://\S+\s*", re.IGNORECASE)
_FILES = ("sqlite", "file")
_DATABASES = ("postgresql", "postgres", "mysql", "mssql")
# What the query of a database may set. A list of what holds secrets would never be complete.
_OPTIONS = {
    *("timeout", "check_same_thread", "mode", "cache", "uri", "immutable", "nolock", "vfs", "isolation_level"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert"),
    *("charset", "driver", "application_name", "connect_timeout", "target_session_attrs", "host", "port", "options"),
    *("service", "encrypt", "trustservercertificate", "authentication", "trusted_connection"),
}
_WORD = re.compile(r"\S+")
_ADDRESS = re.compile(r"://[^\s'\"<>\\]*")


def credentials_in(uri: str, remedy: str = f"set {LOGIN} in the environment") -> str | None:
    """What is wrong with a URI that holds credentials, or could, and what to do, without the credentials; None where it holds
    none. `remedy`: where credentials belong instead.

    A user alone is allowed for a database. An `@` in the path of a server's URI has to be written as %40, because a password may
    contain a `/`. The URI of a server has no query and no fragment: signatures and keys have many names there.
    """
    match = _SCHEME.match(uri)
    scheme, rest = (match[1].lower().partition("+")[0], match[2]) if match else ("", uri)
    before, _, query = rest.partition("?")
    options = {unquote(part).partition("=")[0].lower() for part in re.split("[&;]", query) if scheme and part}
    if scheme in _DATABASES:
        if ":" in rest.rpartition("@")[0].removeprefix("//") or options - _OPTIONS or "#" in rest:
            return (
                "it holds a password, or what may be one; leave it out and use the password file of the database client (such as "
                "~/.pgpass)"
            )
        return None
    is_file = scheme in _FILES or not scheme
    authority = before.removeprefix("//").partition("/")[0] if before.startswith("//") else ""
    if "@" in (authority if is_file else rest):
        return f"it holds credentials; leave them out and {remedy}"
    if options - _OPTIONS if is_file else set("?#;") & set(rest):
        return f"it has a query or a fragment, which may hold credentials; leave it out and {remedy}"
    return None


def uris_with_credentials(raw: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every URI with credentials in a config, whatever its key: where it is, and what is wrong."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from uris_with_credentials(value, (*place, str(key)))
    elif isinstance(raw, list | tuple):
        for number, value in enumerate(raw):
            yield from uris_with_credentials(value, (*place, str(number)))
    elif isinstance(raw, str) and _IS_URI.fullmatch(raw):
        remedy = "put them into the environment: a config is stored, and shown to everyone who sees the run"
        if mistake := credentials_in(raw, remedy):
            yield place, mistake


def masked(text: str) -> str:
    """`text` with what may be credentials in each URI replaced by ***: user and password, query, fragment."""
    return _ADDRESS.sub(_without_query, _WORD.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    """A password may contain any of `:/@`, so what is masked ends at the last @ of the word."""
    scheme, begins, rest = match[0].partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{begins}***@{host}" if at else match[0]


def _without_query(match: re.Match[str]) -> str:
    before, cut, _ = re.split("([?#])", match[0] + "?", maxsplit=1)
    return match[0] if before == match[0] else f"{before}{cut}***"


def is_sent_in_clear(url: str) -> bool:
    """Whether a token for `url` can be read on the way: plain HTTP to another machine."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "http":
        return False
    host = (parts.hostname or "").rstrip(".")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")
