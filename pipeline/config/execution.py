"""Where the parts of a stage are made: in the command's process, or in several. Torch-free."""

from pydantic import Field

from pipeline.config.base import Section


class ExecutionConfig(Section):
    """Where completions are generated, shard by shard (docs/scale.md). In no key: their bytes do not depend on it."""

    local: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Processes on this machine; with several GPUs each gets the next one. 1: in the command's own process.",
    )
