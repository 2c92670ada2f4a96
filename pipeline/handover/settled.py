"""What this store has announced of the champion: the file `handover/<name>.json`. Nothing else has which notices were accepted,
and of which change a person has seen the end."""

from pipeline.store.parsing import Count, Text, format_of, stored
from pipeline.store.state_files import StateFile


@stored(name="record of notices", kw_only=False)
class Settled:
    """`change`: the last change whose end was printed; `noticed`: by receiver, the last change whose notice was accepted."""

    change: Count
    noticed: dict[Text, Count]

    def told(self, receiver: str) -> int:
        """The last change that a receiver has accepted; 0 for none."""
        return max((self.noticed[name] for name in self._names(receiver)), default=0)

    def with_told(self, receiver: str, change: int) -> dict[str, int]:
        """`noticed` once a receiver has accepted a change."""
        former = self._names(receiver)
        return {name: number for name, number in self.noticed.items() if name not in former} | {receiver: change}

    def _names(self, receiver: str) -> list[str]:
        """Earlier versions named a program with the host that had called it."""
        return [name for name in self.noticed if name == receiver or name.startswith(f"{receiver} on ")]


SETTLED = StateFile(format_of(Settled), "handover/{}")
