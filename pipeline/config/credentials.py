"""Recognises credentials in a URI. URIs are stored, logged and printed, so credentials come from the environment instead."""

import re

LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
_FILES = ("sqlite", "file")
_DATABASES = ("postgresql", "postgres", "mysql", "mssql")
_IN_QUERY = re.compile(r"\?.*(password|passwd|pwd|token|secret|api_?key)(=|%3d)", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"(://)\S*@")


def credentials_in(uri: str, remedy: str = f"set {LOGIN} in the environment") -> str | None:
    """What is wrong with a URI that holds credentials, and what to do, without the credentials; None where it holds none.
    `remedy`: where credentials belong instead.

    A user alone is allowed for a database. An `@` in the path of a server's URI has to be written as %40, because a password may
    contain a `/`.
    """
    match = _SCHEME.match(uri)
    scheme, rest = (match[1].lower().partition("+")[0], match[2]) if match else ("file", uri)
    if scheme in _DATABASES:
        if ":" in rest.rpartition("@")[0].removeprefix("//") or _IN_QUERY.search(rest):
            return (
                "it holds a password; leave it out and use the password file of the database client (such as ~/.pgpass)"
            )
        return None
    if _IN_QUERY.search(rest) or (scheme not in _FILES and "@" in rest):
        return f"it holds credentials; leave them out and {remedy}"
    return None


def masked(text: str) -> str:
    """`text` with the part of each URI that can hold a user and a password replaced by ***."""
    return _USER.sub(r"\1***@", text)
