"""What `launch.sh` of an export starts where there is no vLLM: a stand-in that decodes with the pair of the export, greedily, and
counts as vLLM does. It takes vLLM's command line."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from pipeline.models.loading import load_tokenizer
from tests.standin_pair import law_of
from tests.standin_server import Computed, Speculation, StandIn, running


class ChatStandIn(StandIn):
    """A stand-in that renders chats."""

    tokenizer: Any

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_post("/v1/chat/completions", self.complete)
        router.add_get("/health", self.say_version)

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        if "messages" not in body:
            return body
        rendered = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        return body | {"prompt": self.tokenizer(rendered, add_special_tokens=False)["input_ids"], "chat": True}

    def answer(self, body: dict[str, Any], found: Computed) -> dict[str, Any]:
        answer = super().answer(body, found)
        if "chat" not in body:
            return answer
        said = {"role": "assistant", "content": self.tokenizer.decode(found.tokens, skip_special_tokens=True)}
        choice = {"index": 0, "message": said, "finish_reason": found.reason, "token_ids": found.tokens}
        ids = {"prompt_token_ids": body["prompt"], "usage": {"completion_tokens": len(found.tokens)}}
        return answer | ids | {"object": "chat.completion", "choices": [choice]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    for name in ("--model", "--port", "--speculative-config"):
        parser.add_argument(name, required=True)
    given, _ = parser.parse_known_args(arguments)
    speculative, place = json.loads(given.speculative_config), Path(given.model)
    tokenizer = load_tokenizer(place)
    laws = [law_of(path, len(tokenizer)) for path in (place, Path(speculative["model"]))]
    speculation = Speculation(laws[1], speculative["num_speculative_tokens"])
    server = ChatStandIn(
        law=laws[0], speculation=speculation, model=given.model, context=256, eos=tokenizer.eos_token_id
    )
    server.tokenizer = tokenizer
    with running(server, int(given.port)):
        time.sleep(3600)


if __name__ == "__main__":
    main()
