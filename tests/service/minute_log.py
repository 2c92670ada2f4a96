"""The middleware of docs/examples with a file a minute, for vLLM's Python: a retraining here starts minutes after the change."""

import request_log
from request_log import LoggedRequests

__all__ = ["LoggedRequests"]

request_log.PERIOD = "%Y-%m-%dT%H%M"
