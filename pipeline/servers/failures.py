"""How a request over HTTP can fail, for everybody who sends one: engines, metrics pages, notices. Torch-free."""

import os
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

# ValueError: headers that cannot be decoded, a host that cannot be encoded, a URL that aiohttp does not take.
FAILURES = (aiohttp.ClientError, OSError, ValueError)
_CARET = " ^\n"  # at the end of aiohttp's messages: it points to a place in the line above


def is_certificate(error: BaseException) -> bool:
    """Whether the certificate of the server is not valid here."""
    return isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError)


def reason(error: BaseException) -> str:
    """What went wrong, in a few words. It may hold a part of the URL, and of the answer."""
    if is_certificate(error):
        return f"its certificate is not valid here ({error})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {_of_the_system(error.os_error)}"
    if isinstance(error, aiohttp.ClientResponseError):
        # aiohttp writes of a malformed answer as of a status 400, which no server has sent.
        return f"not an HTTP answer: {error.message.rstrip(_CARET)}"
    if isinstance(error.__cause__, HttpProcessingError):
        return f"the answer broke off: {error.__cause__.message.rstrip(_CARET)}"
    return str(error) or type(error).__name__


def _of_the_system(error: OSError) -> str:
    """The error in the words of the operating system."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__
