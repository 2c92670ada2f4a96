"""What a verification found and did, as its file in the store has it. Imports nothing heavy."""

from dataclasses import asdict
from pathlib import Path

from pipeline.canary.decision import Action
from pipeline.canary.production import Production
from pipeline.canary.schema import CanaryResult
from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.parsing import Flag, Text, format_of, stored


@stored(
    name="result of a verification",
    schema=1,
    remedy="delete it and run `understudy champion verify CONFIG` again",
)
class Verification:
    """`action`: the last one. `fits`: the version whose counts the engines show, where that is not the champion's."""

    time: Text
    name: Text  # in the registry
    version: Text
    action: Action
    why: Text
    reloaded: Flag
    fits: Text
    canary: CanaryResult
    production: Production


VERIFICATION = format_of(Verification)


def verification_file(store: Store, name: str) -> Path:
    """Where the last one for the registered `name` lies."""
    return store.root / "verified" / f"{name}.json"


def find_verification(store: Store, name: str) -> Verification | None:
    """The last one; None before the first. UnderstudyError for a damaged file."""
    return VERIFICATION.find(verification_file(store, name))


def write_verification(store: Store, found: Verification) -> None:
    """Replace the file atomically."""
    write_json(verification_file(store, found.name), asdict(found))
