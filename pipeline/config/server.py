"""The servers that run the target, where it is not loaded in this process. Torch-free."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.credentials import credentials_in, masked
from pipeline.config.urls import HTTP, wrong_with

UNIX = "unix://"

_REST = re.compile("[?#;]")  # what begins a part of a URL that no server needs

Api = Literal["vllm", "sglang", "llama.cpp"]


class EndpointConfig(Section):
    """One server, or (not for watch.endpoints) a gateway in front of several equal ones."""

    url: str = Field(
        description="`http://host:port`, `https://host` or `unix:///path/of/socket`, without `/v1`. The token of a gateway comes "
        "from the environment (`key_variable`)."
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        description="Share of the requests relative to the other endpoints. Ignored in watch.endpoints.",
    )

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if set("@?#;") & set(url):
            raise ValueError(
                f"{masked(_REST.split(url)[0])} has credentials, a query or a fragment; leave them out and name the "
                "environment variable with the token in `key_variable`"
            )
        if (wrong := credentials_in(url)) is not None:
            raise ValueError(wrong)
        if wrong := wrong_with(url, (*HTTP, UNIX.removesuffix("://"))):
            raise ValueError(f"{url}: {wrong}; write http://host:port, https://host or unix:///path")
        return url.rstrip("/").removesuffix("/v1")


def _with_urls(raw: Any) -> Any:
    return (
        [{"url": endpoint} if isinstance(endpoint, str) else endpoint for endpoint in raw]
        if isinstance(raw, list | tuple)
        else raw
    )


def _once_each(endpoints: tuple[EndpointConfig, ...]) -> tuple[EndpointConfig, ...]:
    urls = [endpoint.url for endpoint in endpoints]
    if twice := [url for url in urls if urls.count(url) > 1]:
        raise ValueError(f"{twice[0]} is listed twice; list each server once")
    return endpoints


Endpoints = Annotated[tuple[EndpointConfig, ...], BeforeValidator(_with_urls), AfterValidator(_once_each)]


class ServerConfig(Section):
    """How the servers of the target are asked. Where they are, and how fast they are asked, does not change what is stored."""

    api: Api = Field(default="vllm", description="The engine that serves the target.")
    endpoints: Endpoints = Field(
        default=(),
        description="The servers. All must serve the same weights in the same engine version. An entry may be a URL.",
    )
    model: str | None = Field(
        default=None, description="Name of the served model or adapter; null: the only one that the servers list."
    )
    logprobs: int = Field(
        default=128,
        ge=1,
        le=1024,
        description="Log-probabilities requested per token. vLLM gives at most 20 unless it is started with --max-logprobs 128; "
        "SGLang and llama.cpp have no limit.",
    )
    concurrency: int = Field(default=32, ge=1, le=4096, description="Concurrent requests to an endpoint of weight 1.")
    timeout_seconds: float = Field(default=600.0, gt=0, le=86_400, description="Timeout of a request, in seconds.")
    patience_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds without any working endpoint after which the run ends. What was received is kept.",
    )
    tokens_per_second: float | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens per second requested from all endpoints together, prompts included; the rest of the "
        "throughput is left to production.",
    )
    token_budget: int | None = Field(
        default=None,
        gt=0,
        description="Maximum tokens that one execution of a job (`generate`, `generate/prompts`) may request, prompts included. "
        "When they are spent, the run ends and keeps what it has received.",
    )
    key_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the bearer token of the gateway. The token is stored nowhere.",
    )

    @model_validator(mode="after")
    def _model_can_be_named(self) -> "ServerConfig":
        if self.api == "sglang" and self.model is not None:
            raise ValueError(
                f"model is {self.model}, but SGLang's /generate takes no model name; remove it (adapters are not supported)"
            )
        return self
