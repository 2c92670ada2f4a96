"""`understudy latency explain`: how the speedup of one request is computed, with numbers."""

from typing import Annotated

import typer


def explain(
    plain_ms: Annotated[float, typer.Option(help="Target forward pass over 1 token, in ms.")] = 50.0,
    verify_ms: Annotated[float, typer.Option(help="Target forward pass over gamma + 1 tokens, in ms.")] = 60.0,
    draft_ms: Annotated[float, typer.Option(help="Draft forward pass over 1 token, in ms.")] = 5.0,
    gamma: Annotated[int, typer.Option(min=1, max=64, help="Draft length.")] = 5,
    acceptance_rate: Annotated[float, typer.Option(min=0, max=1, help="Acceptance rate of each draft token.")] = 0.8,
) -> None:
    """Compute the speedup of one request, step by step.

    Compares the rule of thumb with the exact formula and shows where the rule of thumb is wrong.
    """
    from pipeline.commands.tables.latency_explain import WorkedExample, print_explanation
    from pipeline.errors import UsageError

    for option, value in (("--plain-ms", plain_ms), ("--verify-ms", verify_ms), ("--draft-ms", draft_ms)):
        if not 0 < value < float("inf"):
            raise UsageError(f"{option} {value:g}: give a time above 0 ms")
    if verify_ms < plain_ms:
        raise UsageError(
            f"--verify-ms {verify_ms:g}: must be at least --plain-ms ({plain_ms:g}); a pass over more tokens takes no less time"
        )
    print_explanation(WorkedExample(plain_ms, verify_ms, draft_ms, gamma, acceptance_rate))
