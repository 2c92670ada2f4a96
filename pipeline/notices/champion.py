"""The notice of a champion: which version it is, and which change made it so.

It is sent at least once: a receiver drops what it has seen, by name, change and digest.
"""

import json
from dataclasses import asdict, dataclass

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The draft to serve. `export`: where `promote.export` has put it, in the form of the engine."""

    version: str
    digest: str
    run: str
    export: str | None


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The body of a notice, as JSON. `change` numbers the changes of one `name`; `replaced` is the version before. `repeated`:
    when it was sent once more, because an engine does not serve the champion; empty for the first time."""

    schema: int = SCHEMA
    name: str
    change: int
    time: str
    action: str
    champion: Champion | None
    replaced: str | None
    by: str
    why: str
    repeated: str = ""

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def key(self) -> str:
        return f"{self.name}/{self.change}" + (f"/{self.repeated}" if self.repeated else "")

    @property
    def section(self) -> str:
        return "promote.notice"

    @property
    def again(self) -> str:
        return f"call `champion {'verify' if self.repeated else 'settle'}`"  # settle sends none that was accepted
