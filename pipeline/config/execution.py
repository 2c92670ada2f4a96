"""Where the parts of a stage are made: in this process, in several, on a Ray cluster. Torch-free."""

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.config.base import Section


class RayConfig(Section):
    """Workers on a Ray cluster. Every node must have this version of Understudy, and see the store and the models at the same
    paths."""

    address: str | None = Field(
        default=None,
        description="`auto`, `host:port` or `ray://host:port` of a running cluster; null: a cluster of this machine alone, which "
        "ends with the command.",
    )
    workers: int = Field(default=1, ge=1, le=10_000, description="Actors; each holds one copy of the model.")
    cpus: float = Field(
        default=1, gt=0, le=10_000, description="Logical CPUs of a worker, and its computing threads on a CPU."
    )
    gpus: float = Field(default=0, ge=0, le=64, description="GPUs of a worker.")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={}, description="Further resources of a worker, as the nodes of the cluster name them."
    )


class ExecutionConfig(Section):
    """Where completions are generated and examined, shard by shard (docs/scale.md). In no key: bytes do not depend on it."""

    local: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Processes on this machine; with several GPUs each gets the next one. 1: in the command's own process.",
    )
    ray: RayConfig | None = Field(default=None, description="With this section: workers on Ray (`understudy[ray]`).")

    @model_validator(mode="after")
    def _one_place(self) -> "ExecutionConfig":
        if self.ray is not None and self.local > 1:
            raise ValueError(f"`local: {self.local}` and `ray` exclude each other; leave one of them out")
        return self
