"""Warns where a token or password is sent over plain HTTP to another machine. Sends nothing itself."""

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from pipeline.config.credentials import is_sent_in_clear
from pipeline.config.root import Config
from pipeline.registry.mlflow_client import tracking_location
from pipeline.store.artifacts import Store

_LOGIN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")


def clear_text_warnings(config: Config, store: Store) -> list[str]:
    """A line for each secret and address; none for https, for this machine and where nothing secret is sent."""
    return [
        f"{secret} is sent to {address} over plain HTTP, where others can read it; use https://"
        for secret, address in dict.fromkeys(_sent(config, store))
        if is_sent_in_clear(address)
    ]


def _sent(config: Config, store: Store) -> Iterator[tuple[str, str]]:
    """What is sent where: variable and address."""
    server, notice = config.generate.server, config.promote.notice
    if config.generate.is_served and server.key_variable is not None:
        for endpoint in server.endpoints:
            yield server.key_variable, endpoint.url
    if notice is not None and notice.url is not None and notice.key_variable is not None:
        yield notice.key_variable, notice.url
    if notice is not None and notice.url_variable is not None:
        with contextlib.suppress(ValueError):  # of what is no URL, which `check_receiver` reports
            url = urlsplit(os.environ.get(notice.url_variable, "").strip())
            yield notice.url_variable, f"{url.scheme}://{url.netloc.rpartition('@')[2]}"  # its path is the secret
    for name in filter(os.environ.get, _LOGIN):
        yield name, tracking_location(config, store).uri
    if os.environ.get("HF_TOKEN"):
        yield "HF_TOKEN", os.environ.get("HF_ENDPOINT", "")
