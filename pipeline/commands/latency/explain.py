"""`understudy latency explain`: the arithmetic of speculation, for people new to it."""

from typing import Annotated

import typer


def explain(
    plain_ms: Annotated[float, typer.DraftOption(help="The target's pass over one token, in milliseconds.")] = 50.0,
    verify_ms: Annotated[float, typer.DraftOption(help="The target's pass over all draft tokens and one more.")] = 60.0,
    draft_ms: Annotated[float, typer.DraftOption(help="The draft's pass over one token.")] = 5.0,
    gamma: Annotated[int, typer.DraftOption(min=1, max=64, help="Draft tokens of a round.")] = 5,
    acceptance: Annotated[float, typer.DraftOption(min=0, max=1, help="Acceptance rate.")] = 0.8,
) -> None:
    """What a draft is worth to one request alone: by the rule of thumb, exactly, and where the rule misleads."""
    from pipeline.errors import UsageError
    from pipeline.report.latency_explain import Example, print_explanation

    for option, value in (("--plain-ms", plain_ms), ("--verify-ms", verify_ms), ("--draft-ms", draft_ms)):
        if not 0 < value < float("inf"):
            raise UsageError(f"{option} {value:g}: a pass takes more than 0 milliseconds")
    if verify_ms < plain_ms:
        raise UsageError(
            f"--verify-ms {verify_ms:g}: more tokens take no less time than one does (--plain-ms {plain_ms:g})"
        )
    print_explanation(Example(plain_ms, verify_ms, draft_ms, gamma, acceptance))
