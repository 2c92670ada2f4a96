"""What a verification found and did, as its file in the store has it. Imports nothing heavy."""

from pipeline.canary.decision import Action
from pipeline.canary.production import Production
from pipeline.canary.schema import CanaryResult
from pipeline.store.parsing import Flag, Text, format_of, stored
from pipeline.store.state_files import StateFile


@stored(
    name="result of a verification",
    schema=1,
    remedy="delete it and run `understudy champion verify CONFIG` again",
)
class EngineCheck:
    """The result of a verification. `action`: the last one. `fits`: the version whose counts the engines show, where that is not
    the champion's."""

    time: Text
    name: Text  # in the registry
    version: Text
    action: Action
    why: Text
    reloaded: Flag
    fits: Text
    canary: CanaryResult
    production: Production


VERIFICATION = StateFile(format_of(EngineCheck), "verified/{}")
