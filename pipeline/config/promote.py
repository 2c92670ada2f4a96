"""The registry entry and the tracking server."""

from pydantic import Field, field_validator

from pipeline.config.base import Section
from pipeline.config.credentials import credentials_in
from pipeline.engines.facts import ExportEngine


class ExportConfig(Section):
    """Where the promoted draft is exported, in the form of which engine."""

    engine: ExportEngine = Field(description="The engine that serves the pair (docs/engines.md).")
    out: str = Field(
        min_length=1,
        description="A directory. Each version is exported to `version-N` in it, and the link `champion` points to the latest.",
    )
    tensor_parallel: int = Field(default=1, ge=1, le=1024, description="Tensor parallel size of the target.")
    converter: str | None = Field(
        default=None,
        description="With engine llama.cpp: the path of its convert_hf_to_gguf.py; null: LLAMA_CPP_CONVERTER.",
    )


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
        default=None, description="Export the champion after each promotion; see `understudy champion export`."
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
        return uri
