"""The registry entry and the tracking server."""

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.credentials import credentials_in
from pipeline.config.urls import wrong_with
from pipeline.engines.facts import ExportEngine


class ExportConfig(Section):
    """Where the promoted draft is exported, in the form of which engine."""

    engine: ExportEngine = Field(description="The engine that serves the pair (docs/engines.md).")
    out: str = Field(
        min_length=1,
        description="A directory. Each version is exported to `version-N` in it; the link `champion` points to the champion's.",
    )
    tensor_parallel: int = Field(default=1, ge=1, le=1024, description="Tensor parallel size of the target.")
    converter: str | None = Field(
        default=None,
        description="With engine llama.cpp: the path of its convert_hf_to_gguf.py; null: LLAMA_CPP_CONVERTER.",
    )


class NoticeConfig(Section):
    """Who is told that the champion has changed, or (watch.notice) of a drift: a webhook or a program (docs/champion.md). Set it
    in the config file: `--set` does not change it."""

    url: str | None = Field(
        default=None,
        description="A webhook, http:// or https://, without user, query and fragment. It receives a POST with JSON, and accepts "
        "with a status of 200 to 299.",
    )
    url_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the webhook's URL, where the URL itself is a secret. The URL is "
        "stored nowhere.",
    )
    program: str | None = Field(
        default=None,
        pattern="^/",
        description="The absolute path of a program. It receives the JSON on its standard input, and accepts with exit code 0.",
    )
    key_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the bearer token of the webhook. The token is stored nowhere.",
    )
    timeout_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="Seconds after which a receiver that has not answered is given up."
    )

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url is not None:
            if mistake := credentials_in(url, "put a token into the environment variable named by key_variable"):
                raise ValueError(mistake)
            if wrong := wrong_with(url):
                raise ValueError(
                    f"{url} is not a URL that can be called: {wrong}; write http://host:port/path or https://host/path"
                )
        return url

    @model_validator(mode="after")
    def _has_one_receiver(self) -> "NoticeConfig":
        if [self.url, self.url_variable, self.program].count(None) != 2:
            raise ValueError("give one receiver: url, url_variable or program")
        if self.program is not None and self.key_variable is not None:
            raise ValueError("key_variable is for a url; a program reads its own environment")
        return self


class PromoteConfig(Section):
    """The registry entry of the pair's draft."""

    target_name: str | None = Field(
        default=None,
        description="Name of the target in the registry; null: the last part of pair.target.source, or for source "
        "`server`, generate.server.model.",
    )
    deployment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+$",
        max_length=100,
        description="Name of a deployment with its own champion, if one target has several deployments.",
    )
    by_hand: bool = Field(
        default=False,
        description="Register a draft that passed as `challenger`; `understudy champion promote RUN` makes it champion.",
    )
    approval_days: int = Field(
        default=14,
        ge=1,
        le=3650,
        description="With by_hand: days after which a draft that nobody approved is refused and is no longer `challenger`.",
    )
    export: ExportConfig | None = Field(
        default=None,
        description="Export the champion after each change, and let a link point to it (docs/champion.md).",
    )
    notice: NoticeConfig | None = Field(
        default=None,
        description="Receiver of a notice each time the champion changes, such as a program that reloads the servers.",
    )
    license: str | None = Field(default=None, description="Licence of the draft; null: the licence of the base draft.")


class TrackingConfig(Section):
    """MLflow: tracking and model registry."""

    uri: str | None = Field(
        default=None,
        description="Tracking server; null: MLFLOW_TRACKING_URI, else a SQLite file inside the store. Credentials come from "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; a URI with credentials is refused.",
    )
    experiment: str = Field(default="understudy", min_length=1, description="MLflow experiment of the runs.")

    @field_validator("uri")
    @classmethod
    def _no_credentials(cls, uri: str | None) -> str | None:
        if uri is not None and (mistake := credentials_in(uri)):
            raise ValueError(mistake)
        if uri is not None and uri.startswith(("http:", "https:")) and (wrong := wrong_with(uri)):
            raise ValueError(f"{uri}: {wrong}; write https://host:port")
        return uri
