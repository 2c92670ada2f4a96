"""The history of a registered model: one line for each change of its aliases. MLflow keeps none, so it is written into tags."""

import getpass
import os
import re
from dataclasses import dataclass
from functools import cache

NONE = "none"
REGISTER, APPROVE, PROMOTE, ROLLBACK, EXPIRE = "register", "approve", "promote", "rollback", "expire"
MOVE = "move"  # the alias was moved by hand, and the move was followed
INTERRUPTED = "interrupted, nothing changed"
_LINE = re.compile(
    r"(?P<time>\S+) (?P<action>\S+) (?P<old>\S+) -> (?P<new>\S+)"
    r"(?: run (?P<run>\S+))?(?: by (?P<by>\S+))?(?: because (?P<why>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change. `old` and `new` are versions of the alias that moved: the challenger in `register` and `expire`, else the
    champion. `run` is the run whose draft it is, `by` the person who made the change; both may be empty."""

    number: int
    time: str
    action: str
    old: str
    new: str
    run: str = ""
    by: str = ""
    why: str = ""

    @property
    def moves_challenger(self) -> bool:
        return self.action in (REGISTER, EXPIRE)

    @property
    def moves_champion(self) -> bool:
        return self.action in (PROMOTE, APPROVE, ROLLBACK, MOVE)

    @property
    def is_interrupted(self) -> bool:
        """Whether its process died before the alias moved."""
        return self.why == INTERRUPTED

    @property
    def line(self) -> str:
        """The text of the tag."""
        more = {"run": self.run, "by": re.sub(r"\s+", "_", self.by), "because": self.why}
        said = "".join(f" {key} {value}" for key, value in more.items() if value)
        # Words of a command line that are no text in this locale: no registry takes them as Python has them.
        said = said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return f"{self.time} {self.action} {self.old or NONE} -> {self.new or NONE}{said}"


@cache
def read_change(number: int, line: str) -> Change:
    """The change that a tag describes; one that was altered by hand is shown as it is."""
    match = _LINE.fullmatch(line)
    if match is None:
        return Change(number=number, time="", action="unknown", old=NONE, new=NONE, why=line)
    return Change(number=number, **{key: value or "" for key, value in match.groupdict().items()})


def acting_person() -> str:
    """Who runs a command: the user of MLflow, else of this machine. MLflow's list of runs has it too."""
    if name := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"user {os.getuid()}"
