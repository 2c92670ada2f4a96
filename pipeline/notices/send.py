"""Sends a message to a webhook or a program: that the champion has changed, so that it can reload the servers, or a drift.

Does not depend on what a message states, and does not decide when one is due.
"""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from pipeline.config.credentials import masked
from pipeline.config.promote import NoticeConfig
from pipeline.config.urls import wrong_with
from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.terminal import printable
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files
from pipeline.store.programs import call

if TYPE_CHECKING:
    import aiohttp

_TRIES = 3
_READ, _QUOTED = 4096, 120  # bytes of an answer that are read, and characters that are quoted
_SAID_SECONDS = 2.0


class Message(Protocol):
    """What is sent. `text`: JSON. `key`: the same for a message that is sent again. `section`: of the config, that names the
    receiver. `again`: what sends it again."""

    @property
    def text(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def section(self) -> str: ...

    @property
    def again(self) -> str: ...


class _NotDelivered(UnderstudyError):
    """The receiver may answer later."""


def receiver_name(settings: NoticeConfig) -> str:
    """The place that the config names: a program or a webhook is one receiver, wherever the process runs that notifies it. Pods
    have a new host name each time."""
    return settings.program or _shown(settings)


def check_receiver(settings: NoticeConfig | None, section: str = "promote.notice") -> None:
    """UsageError where no notice could be delivered: before a promotion, not after it."""
    if settings is None:
        return
    if settings.program is not None and not os.access(settings.program, os.X_OK):
        raise UsageError(
            f"{section}.program: {settings.program}: no such program, or it is not executable; correct the path, or chmod +x"
        )
    if settings.url_variable is not None and (wrong := wrong_with(_url(settings))):
        raise UsageError(
            f"{section}.url_variable: the environment variable {settings.url_variable} holds no URL that can be called: {wrong}"
        )
    if settings.key_variable is not None:
        token = _token(settings.key_variable)
        if not token:
            raise UsageError(
                f"{section}.key_variable: the environment variable {settings.key_variable} is not set; put the token into it"
            )
        if not token.isprintable() or not token.isascii():
            raise UsageError(
                f"{section}.key_variable: {settings.key_variable} has characters that no HTTP header can have; correct it"
            )


def send(settings: NoticeConfig, message: Message) -> None:
    """Deliver a message. UnderstudyError if the receiver does not accept it."""
    check_receiver(settings, message.section)
    if settings.program is not None:
        _call(Path(settings.program), message, settings.timeout_seconds)
        return
    tries = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_exponential(multiplier=0.5, max=5),
        retry=retry_if_exception_type(_NotDelivered),
        reraise=True,
    )
    tries(lambda: asyncio.run(_post(settings, message)))


def _shown(settings: NoticeConfig) -> str:
    """The webhook in messages and records."""
    return f"${settings.url_variable}" if settings.url_variable is not None else str(settings.url)


def _url(settings: NoticeConfig) -> str:
    return str(settings.url) if settings.url_variable is None else _token(settings.url_variable)


def _token(variable: str) -> str:
    """Without the line break that a file of secrets ends with."""
    return os.environ.get(variable, "").strip()


def _call(program: Path, message: Message, seconds: float) -> None:
    """The notice is the program's standard input; exit code 0 accepts it."""
    try:
        ended = call([str(program)], given=message.text, seconds=seconds)
    except subprocess.TimeoutExpired:
        raise UnderstudyError(
            f"notice: {program} did not end within {seconds:g} s; raise {message.section}.timeout_seconds, and {message.again}"
        ) from None
    except OSError as error:
        raise UnderstudyError(f"notice: {program}: {error.strerror or error}; fix it, and {message.again}") from None
    if ended.returncode:
        said = f"{ended.stdout}{ended.stderr}".strip() or "no output"
        raise UnderstudyError(
            f"notice: {program} ended with exit code {ended.returncode}: {said.splitlines()[-1]}; "
            f"fix it, and {message.again}"
        )


async def _post(settings: NoticeConfig, message: Message) -> None:
    """Redirects are not followed: the token is for the configured URL only."""
    # Imported here because it takes a third of a second, and most commands send nothing.
    import aiohttp

    from pipeline.servers.failures import FAILURES

    headers = {"Content-Type": "application/json", "Idempotency-Key": message.key}
    if settings.key_variable is not None:
        headers["Authorization"] = f"Bearer {_token(settings.key_variable)}"
    timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(_url(settings), data=message.text, headers=headers, allow_redirects=False) as answer,
        ):
            status, said = answer.status, await _said(answer)
    except TimeoutError:
        raise _NotDelivered(
            f"notice: {_shown(settings)} did not answer within {settings.timeout_seconds:g} s"
        ) from None
    except FAILURES as error:
        raise _NotDelivered(f"notice: {_shown(settings)} does not answer ({_why(error, settings)})") from None
    if status >= 500 or status == 429:
        raise _NotDelivered(f"notice: {_shown(settings)} answered with HTTP {status}{_quoted(said, settings)}")
    if not 200 <= status < 300 or _refuses(said):
        what = f"HTTP {status}{_quoted(said, settings)}"
        raise UnderstudyError(f"notice: {_shown(settings)} answered with {what}; check {message.section}")


async def _said(answer: "aiohttp.ClientResponse") -> bytes:
    """The beginning of an answer; empty where it does not come: the status is there, and decides."""
    import aiohttp

    try:
        async with asyncio.timeout(_SAID_SECONDS):
            return await answer.content.read(_READ)
    except (TimeoutError, aiohttp.ClientError):
        return b""


@reads_own_files("an answer of a server, not a file")
def _refuses(answer_bytes: bytes) -> bool:
    """Whether the answer is JSON with `"ok": false`, as chat services send it with status 200."""
    try:
        answer = parse_json(answer_bytes, foreign=True)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("ok") is False


def _quoted(said: bytes, settings: NoticeConfig) -> str:
    """The answer of the receiver, in a few words: often nothing else states what is wrong. It may repeat a secret URL."""
    text = printable(masked(" ".join(said.decode(errors="replace").split())))
    if not text or text.startswith("<") or settings.url_variable is not None:
        return ""
    token = _token(settings.key_variable) if settings.key_variable is not None else ""
    return f" ({(text.replace(token, '[token]') if token else text)[:_QUOTED]})"


def _why(error: Exception, settings: NoticeConfig) -> str:
    """The reason of the error, without its text where that may hold the URL or its path."""
    from pipeline.servers.failures import reason

    return reason(error) if settings.url_variable is None else type(error).__name__
