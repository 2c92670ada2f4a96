"""Whether a retraining that drift starts can learn from the drift. Reads the first rows of the sources; starts nothing."""

from pipeline.config.root import Config
from pipeline.corpus.since_change import why_no_log
from pipeline.errors import UsageError
from pipeline.planning.forecast import source_readers


def check_can_learn(config: Config) -> None:
    """UsageError where a retraining could not tell rows since the drift from older ones: no source has times. Such a retraining
    would train on the traffic from before the drift, and be judged by it.

    Also for a source that is not there or cannot be read.
    """
    if (reason := why_no_log(source_readers(config).values())) is not None:
        raise UsageError(f"corpus.sources: a retraining that drift starts cannot learn from the drift: {reason}")
