"""Where a passing draft goes."""

from pydantic import Field

from pipeline.config.base import Section


class PromoteConfig(Section):
    """The registry entry of the pair's draft."""

    target_name: str | None = Field(
        default=None, description="Name of the target in the registry; null: taken from pair.target.source."
    )
    deployment: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="A deployment with its own champion, where one target has several.",
    )
    license: str | None = Field(default=None, description="Licence of the draft; null: that of the base draft.")


class TrackingConfig(Section):
    """MLflow: where runs and the registry live."""

    uri: str | None = Field(
        default=None, description="Tracking server; null: MLFLOW_TRACKING_URI, else a SQLite file inside the store."
    )
    experiment: str = Field(default="understudy", min_length=1, description="Experiment that runs are logged under.")
