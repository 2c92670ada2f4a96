"""What acceptance rates of a table are of, for people: drafts of several kinds stand in one."""

from collections.abc import Collection


def rates_are_of(by_token: Collection[bool], gamma: int) -> str:
    """`by_token`: of each draft, whether its rate is over all tokens; `gamma`: draft tokens of the rounds of the others."""
    examined = (
        f"over the tokens that rounds of {gamma} draft tokens examine (those accepted, and the first that is not)"
    )
    if all(by_token):
        return "Acceptance rates are over all tokens."
    if not any(by_token):
        return f"Acceptance rates are {examined}."
    return (
        f"Acceptance rates are over different tokens: of a plain draft over all, of heads and lookups {examined}; compare tokens "
        "/ target call."
    )
