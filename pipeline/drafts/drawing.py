"""Drawing a block token by token, as every draft with logits does it. Shapes as in `speculation/drafter.py`."""

from collections.abc import Callable

import torch

from pipeline.speculation.drafter import GoOn, Proposal
from pipeline.speculation.rules import Drawn, Rules


def draw_block(
    rules: Rules,
    room: list[int],
    count: int,
    uniform_BN: torch.Tensor,
    go_on: GoOn,
    logits_at: Callable[[int, torch.Tensor | None], torch.Tensor],
) -> Proposal:
    """Up to `count` tokens for each row, at most `room` of it. `logits_at(place, token_B)`: (B, V) after the block's last token,
    which is None at place 0."""
    drawn_G: list[Drawn] = []
    for place in range(count):
        logits_BV = logits_at(place, drawn_G[-1].token_B if drawn_G else None)
        drawn_G.append(rules.draw(logits_BV, uniform_BN[:, place]))
        going_B = go_on(logits_BV) if place + 1 < count else None
        if going_B is not None:  # a row's block ends with the first token after which its rule stopped drafting
            rows = zip(room, going_B.tolist(), strict=True)
            room = [own if goes else min(own, place + 1) for own, goes in rows]
            if max(room) <= place + 1:
                break
    made = len(drawn_G)
    tokens_G, q_G, sums_G = zip(*drawn_G, strict=True)
    return Proposal(torch.stack(tokens_G, dim=1), list(q_G), [min(made, own) for own in room], torch.stack(sums_G))
