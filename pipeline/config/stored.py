"""The config of a run, from its record."""

from pipeline.config.loading import parse_config
from pipeline.config.root import Config
from pipeline.store.runs import RunRecord


def run_config(record: RunRecord) -> Config:
    """The config with what the pair has decided, once the run has come so far; before that, as it was given.

    UsageError for a record of another version.
    """
    return given_config(record) if record.resolved is None else parse_config(record.resolved, f"run {record.id}")


def given_config(record: RunRecord) -> Config:
    """The config as it was given, for those who find out what the pair decides. Raises as `run_config`."""
    return parse_config(record.config, f"run {record.id}")
