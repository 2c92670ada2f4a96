"""URLs are checked as texts, wherever a config or the environment gives one."""

import pytest

from pipeline.config.promote import NoticeConfig, TrackingConfig
from pipeline.config.server import EndpointConfig
from pipeline.config.urls import wrong_with

_WRONG = {
    "http://": "names no host",
    "http:///path": "names no host",
    "http://:80/": "names no host",
    "http://hooks..internal/x": "no name of a machine",
    "http://.internal": "no name of a machine",
    f"http://{'a' * 64}.internal": "no name of a machine",
    f"http://{'a.' * 130}internal": "no name of a machine",
    "http://h:0": "port",
    "http://h:65536": "port",
    "http://h:8o": "port",
    "http://h:-1": "port",
    "http://[::1": "cannot be parsed",
    "http://h /x": "a space",
    "http://h\n": "not printable",
    "http//h": "does not begin",
}


@pytest.mark.parametrize("url", _WRONG)
def test_a_url_that_nothing_can_be_sent_to_is_refused_when_it_is_read(url: str) -> None:
    """`http://hooks..internal` was a traceback after the champion had changed."""
    assert _WRONG[url] in str(wrong_with(url))
    for read in (lambda: EndpointConfig(url=url), lambda: NoticeConfig(url=url), lambda: TrackingConfig(uri=url)):
        if url.startswith(("http:", "https:")):
            with pytest.raises(ValueError, match=_WRONG[url]):
                read()


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "https://a-b.c_d.internal.:8443/x/y",
        "http://127.0.0.1:1",
        "http://[::1]:80/x",
        "http://b\u00fccher.internal",
    ],
)
def test_urls_that_can_be_called(url: str) -> None:
    assert wrong_with(url) is None
