"""The protocol of a draft: what decoder and examination ask of every kind. Does not depend on any kind; `drafts/` has a file for
each.

A draft proposes tokens in two situations. While decoding, a `Drafter` follows one batch: it proposes a block, learns how many
tokens of it were accepted, and proposes the next. In an examination the completion is known: `examine` gives for every round
that could start at token s, and every place j of its block, what probability the draft gives to token s + j of the completion.
Both must describe the same draft: tests decode with it and count what the examination predicted.

A draft may read the domain of each prompt (`Request.domain`, `TokenizedCompletion.domain`). It proposes a chain of tokens, never
a tree. Shapes: B rows, G drafted tokens, N tokens of a completion with its lookahead, S starts of rounds (one for each of the N
tokens), P places of a block, V shared tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from pipeline.drafts.kinds import Kind
from pipeline.speculation.batch import Batch
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import Rules
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch

# After a token was drawn from the logits (B, V): which rows draft another one; None: all rows (`draft_length.py`).
GoOn = Callable[[torch.Tensor], torch.Tensor | None]


class Proposal(NamedTuple):
    """The blocks of one round."""

    tokens_BG: torch.Tensor
    q_G: Sequence[
        Any
    ]  # by place, the distribution that `Rules.draw` gave; None for tokens that were not drawn: q is 1 at them
    drafted: list[int]  # number of proposed tokens in each row; the rest is padding
    sums: torch.Tensor  # of `Rules.draw`, for `sampling.check_weight_sums`


class Drafter(Protocol):
    """A draft that follows one running batch, whose tokens and requests it reads from `batch`."""

    def start(self, features: Features | None) -> None:
        """Process the prompts. `features`: of all their tokens but the last of each; None where the draft reads none, or no
        prompt has more than one token."""

    def propose(self, count: int, uniform_BN: torch.Tensor, go_on: GoOn) -> Proposal:
        """Up to `count` tokens for each row, at most `batch.room()` of it. Place j is drawn by column j of `uniform_BN`. A draft
        that draws from logits asks `go_on` after each token but the last."""

    def commit(self, accepted: Sequence[int], made: int, features: Features | None) -> None:
        """Take over the round, once the batch has its tokens: how many were accepted of each row's block of `made`. `features`:
        of the target's pass over the round."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""


@dataclass(frozen=True)
class DraftScores:
    """The probabilities that a draft gives to the tokens of each completion of a batch.

    `values`: log q of the completion's tokens under the sampling settings, or with `hits` 1 where the draft would propose exactly
    this token, else 0. An entry is (N,) where q does not depend on the start of the round (`Kind.by_token`), else (S, P): entry
    [s, j] is about token s + j, and what lies past the last token is ignored. `drafted`: how many tokens a round drafts that
    starts at each token, (S,); None: always as many as it is asked for. NaN values mean that the draft cannot be computed.
    """

    values: Sequence[NDArray[Any]]
    hits: bool
    drafted: Sequence[NDArray[Any]] | None = None


class LoadedDraft(Protocol):
    """A loaded draft. It is shared by decodes; each has a `Drafter` of its own."""

    @property
    def kind(self) -> Kind: ...

    @property
    def layers(self) -> Sequence[int]:
        """The layers of the target whose `Features` it reads; empty for a draft that reads tokens alone."""

    @property
    def states(self) -> TargetStates | None:
        """The hidden states of the target that it is loaded for; None for a draft that reads tokens alone."""

    @property
    def longest(self) -> int | None:
        """The most tokens that it can draft in a round; None: no limit."""

    @property
    def models(self) -> Sequence[Any]:
        """The models that it computes, which decide in what the rules can be computed; empty for a draft without one."""

    def begin(self, batch: Batch, rules: Rules, prefill: int) -> Drafter:
        """Follow a batch. `prefill`: the most tokens of a row in one pass over the prompts."""

    def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None) -> DraftScores:
        """The completions of a batch, teacher-forced, as the engine samples the draft; blocks have at most `gamma` places.
        Raises BrokenDraft, with what is wrong with the draft, if it cannot be examined."""
