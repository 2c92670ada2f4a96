"""What this store has told of the champion: the file `handover/<name>.json`. Nothing else says which notices were accepted, and
of which change a person has seen the end."""

from pipeline.store.parsing import Count, Text, format_of, stored
from pipeline.store.state_files import StateFile


@stored(name="record of notices", kw_only=False)
class Settled:
    """`change`: the last change whose end was printed; `noticed`: by receiver, the last change whose notice was accepted."""

    change: Count
    noticed: dict[Text, Count]


SETTLED = StateFile(format_of(Settled), "handover/{}")
