"""Requests as clients of a reasoning model with tools send them: with tools and without, streamed and not, cut off, constrained,
with thinking switched off; and chats that go on after a tool call."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conformance.reasoning_pair import TOOLS, dialogue, served_form
from tests.conformance.servers import post


def request(number: int) -> dict[str, Any]:
    """The body of one request to the chat completions API, at temperature 1."""
    messages, _ = dialogue(number)
    body: dict[str, Any] = {"model": "target", "messages": served_form(messages), "temperature": 1.0, "max_tokens": 96}
    if number % 3:  # those that call the tool, and those that have its result
        body["tools"] = TOOLS
    if number % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if number % 10 == 7:
        body["max_tokens"] = 12
    if number % 10 == 8:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if number % 30 == 9:
        body["stop"] = ["visit"]
    return body


def send(url: str, bodies: Sequence[dict[str, Any]], at_once: int = 8) -> list[bytes]:
    """The answers, in the order of the bodies. Requests of a number are a session of their own."""

    def one(numbered: tuple[int, dict[str, Any]]) -> bytes:
        number, body = numbered
        return post(f"{url}/v1/chat/completions", body, x_session_id=f"session-{number}")

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, enumerate(bodies)))
