"""Which prompts are shown as examples, and what is stored of them."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.acceptance.rounds import CONVENTIONS, Acceptance
from pipeline.examination.examples import choose_examples, make_examples
from pipeline.examination.token_acceptance import FILE, TokenAcceptanceFile
from tests.fakes import counted, stored_completion


class NumberTokenizer:
    """Each token is its number; 1 is a special token."""

    all_special_ids: ClassVar = [1]
    added_tokens_decoder: ClassVar = {}

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join(f" {token}" for token in tokens)


def test_worst_come_first_then_all_domains() -> None:
    """The lowest gains, then the domains in turn; always the same choice."""
    baseline = [counted(f"p{number:02}", 50.0, domain="ab"[number % 2]) for number in range(40)]
    candidate = [counted(item.id, 60.0 - number, domain=item.domain) for number, item in enumerate(baseline)]
    chosen = choose_examples(candidate, baseline, 20)
    domains = {item.id: item.domain for item in baseline}
    assert [f"p{number:02}" for number in range(39, 29, -1)] == chosen[:10]
    assert {"a": 5, "b": 5} == {name: [domains[item] for item in chosen[10:]].count(name) for name in "ab"}
    assert chosen == choose_examples(candidate, baseline, 20)
    assert 20 == len(set(chosen))
    assert [] == choose_examples(candidate, baseline, 0)


def test_sides_share_their_random_numbers(tmp_path: Path) -> None:
    """A draft with higher acceptance at every token accepts whatever the other accepts in its first round."""
    completion = stored_completion([1, 2], [3, 4, 5, 6])
    for side, a in (("candidate", 0.9), ("baseline", 0.9)):
        (tmp_path / side).mkdir()
        with TokenAcceptanceFile(tmp_path / side / FILE) as file:
            file.add([completion], [Acceptance([np.full(9, a)])])
    sides = {side: tmp_path / side for side in ("candidate", "baseline")}
    made = make_examples(["p0", "gone"], [completion], sides, NumberTokenizer(), 2, CONVENTIONS["user"])
    (example,) = made["examples"]
    assert example["candidate"] == example["baseline"]
    assert ("2", [[" 1", True], [" 2", False]]) == (example["title"], example["prompt"])
    assert (4, 4, 0.9) == (
        len(example["tokens"]),
        len(example["candidate"]["outcomes"]),
        round(example["candidate"]["acceptance_rate"], 3),
    )
