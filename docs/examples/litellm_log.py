"""Logs the requests of a LiteLLM proxy: one JSON line for each request, in the directory REQUEST_LOG.

config.yaml, with this file and request_log.py beside it:

    model_list:
      - model_name: target
        litellm_params:
          model: hosted_vllm/target
          api_base: http://127.0.0.1:8000/v1
          extra_body: {return_token_ids: true}
    litellm_settings: {callbacks: litellm_log.logger}

LiteLLM drops chunks without text, and with them token ids: the rows of streams have none. Log those at vLLM (request_log.py).
"""

import json
import os
from datetime import datetime
from typing import Any

from litellm.integrations.custom_logger import CustomLogger
from request_log import SESSION, RequestLog


class Logger(CustomLogger):  # type: ignore[misc]
    """Writes a row after each request that succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self._log = RequestLog(os.environ["REQUEST_LOG"])

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        """`kwargs`: what LiteLLM knows of the request."""
        with self._log.raising_nothing():
            asked = dict(kwargs["additional_args"]["complete_input_dict"])  # as it was sent to the server
            if "messages" not in asked and "prompt" not in asked:
                return
            first = kwargs["completion_start_time"].timestamp() if asked.get("stream") else None
            sent = (kwargs.get("litellm_params") or {}).get("proxy_server_request") or {}
            group = (sent.get("headers") or {}).get(SESSION)
            answer = _answer(kwargs, response_obj)
            self._log.write(asked, answer, start_time.timestamp(), first, end_time.timestamp(), group)


def _answer(kwargs: dict[str, Any], response: Any) -> dict[str, Any]:
    """As the server gave it; of a stream, as LiteLLM joined it."""
    try:
        answer = json.loads(kwargs["original_response"])
    except (TypeError, ValueError):
        answer = None
    return answer if isinstance(answer, dict) and "choices" in answer else dict(response.model_dump())


logger = Logger()
