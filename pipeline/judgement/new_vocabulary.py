"""What a base draft that had another tokenizer was worth: by how its rows were made, their share of the text, and the acceptance
before and after training. Pure but for `read_new_vocabulary`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.schema import Figure, read_profile
from pipeline.drafts.token_rows import WAYS, TokenRows, read_token_rows
from pipeline.judgement.headline import interval
from pipeline.judgement.schema import CANDIDATE, LOOKUP, Decision, NewVocabulary, RowsFigures
from pipeline.models.stored_pair import Pair
from pipeline.speculation.settings import Sampling

ByPrompt = Mapping[str, NDArray[np.float16]]  # a_t of each token of a completion
_ANSWER = "answer"  # the segment of completions that have no other
_NAMES = {
    "copied": "copied (equal bytes)",
    "special": "special tokens of the draft",
    "mapped": "mapped from the target's embedding",
    "pieces": "mean of the draft's pieces",
    "mean": "mean of all rows",
}


class _Completion(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def length(self) -> int: ...

    @property
    def prompt(self) -> NDArray[np.int32]: ...

    @property
    def tokens(self) -> NDArray[np.int32]: ...

    @property
    def segments(self) -> NDArray[np.uint8] | None: ...

    @property
    def segment_names(self) -> tuple[str, ...]: ...


class _Sums:
    """The counts of one group of tokens: how many of the text, and accepted and examined ones of base draft and candidate."""

    def __init__(self) -> None:
        self.text, self.accepted, self.examined = 0, np.zeros(2), np.zeros(2, np.int64)

    def figures(self, tokens: int, text: int) -> RowsFigures:
        base, candidate = (
            float(a / n) if n else None for a, n in zip(self.accepted, self.examined.tolist(), strict=True)
        )
        return RowsFigures(
            tokens=tokens, share=self.text / text if text else 0.0, acceptance_before=base, acceptance_after=candidate
        )


def new_vocabulary(
    facts: Mapping[str, Any],
    rows: TokenRows,
    unmatched: Mapping[int, str],
    completions: Iterable[_Completion],
    before: ByPrompt,
    after: ByPrompt,
    base: Figure | None,
) -> NewVocabulary:
    """`facts`: `transplant` of `pair.json`; `rows`: of the same stage; `unmatched`: the names of special tokens without a
    counterpart, by id. `before` and `after`: of the base draft and of the candidate, by prompt; `base`: the acceptance rate of
    the base draft. The text is that of the prompts and of their completions."""
    by_way, by_role = {way: _Sums() for way in WAYS}, dict[tuple[int, str], _Sums]()
    unwritten = text = 0
    for item in completions:
        tokens_T = item.tokens[: item.length]
        whole = np.concatenate([item.prompt, tokens_T])
        text += len(whole)
        unwritten += int(rows.unwritten_V[whole].sum())
        for number, count in enumerate(np.bincount(rows.way_V[whole], minlength=len(WAYS)).tolist()):
            by_way[WAYS[number]].text += count
        sides = [before.get(item.id), after.get(item.id)]
        for number, way in enumerate(WAYS):
            _add(by_way[way], sides, rows.way_V[tokens_T] == number)
        for place in np.intersect1d(tokens_T, list(unmatched)).tolist():
            for segment, inside_T in _segments(item, len(tokens_T)):
                if (found_T := (tokens_T == place) & inside_T).any():
                    sums = by_role.setdefault((place, segment), _Sums())
                    sums.text += int(found_T.sum())
                    _add(sums, sides, found_T)
    roles: dict[str, dict[str, RowsFigures]] = {}
    for (place, segment), sums in sorted(by_role.items()):
        roles.setdefault(unmatched[place], {})[segment] = sums.figures(1, text)
    return NewVocabulary(
        rows={way: sums.figures(facts[way], text) for way, sums in by_way.items() if facts[way]},
        roles=roles,
        unwritten=unwritten / text if text else 0.0,
        lost=list(facts.get("lost", [])),
        no_map=facts.get("no_map", ""),
        map_error=facts["map_error"],
        output_map_error=facts["output_map_error"],
        base=base,
    )


def read_new_vocabulary(
    pair: Pair, base: Path, candidate: Path, completions: Path, deployed: Sampling, trust_remote_code: bool
) -> NewVocabulary | None:
    """The figures of a pair, from the examinations of base draft and candidate (their artifacts) and the completions at the
    deployment's sampling. None where the base draft has always had the target's tokenizer."""
    facts = pair.facts.get("transplant")
    if facts is None:
        return None
    from pipeline.examination.token_acceptance import read_token_acceptance
    from pipeline.generation.completion_store import canonical
    from pipeline.generation.stored_completions import StoredCompletions
    from pipeline.models.loading import load_tokenizer

    tokenizer, names = load_tokenizer(pair.tokenizer, trust_remote_code), facts.get("unmatched", [])
    examined = StoredCompletions.open(completions, {"examination"}, canonical(deployed))
    ids, sides = {item.id for item in examined}, (base, candidate)
    profiles = [read_profile(side).headline for side in sides]
    before, after = (
        {} if profile is None else read_token_acceptance(side, ids)
        for profile, side in zip(profiles, sides, strict=True)
    )
    return new_vocabulary(
        facts,
        read_token_rows(pair.directory),
        dict(zip(tokenizer.convert_tokens_to_ids(names), names, strict=True)),
        examined,
        before,
        after,
        profiles[0].acceptance_rate if profiles[0] is not None else None,
    )


def _add(sums: _Sums, sides: Sequence[NDArray[np.float16] | None], chosen_T: NDArray[np.bool_]) -> None:
    for number, a_T in enumerate(sides):
        if a_T is not None:
            sums.accepted[number] += float(a_T[chosen_T].astype(np.float64).sum())
            sums.examined[number] += int(chosen_T.sum())


def _segments(item: _Completion, length: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    if item.segments is None:
        yield _ANSWER, np.ones(length, np.bool_)
        return
    for label, name in enumerate(item.segment_names):
        yield name, item.segments[:length] == label


def lines(decision: Decision) -> list[str]:
    """Lines of plain text for people: how weak the base draft was, and how its rows were made."""
    vocabulary = decision.new_vocabulary
    if vocabulary is None:
        return []
    said = ["The base draft had another tokenizer, and was given the target's (pair.draft.vocabulary: target)"]
    if vocabulary.base is not None:
        others = [f"{decision.drafts[side].acceptance_rate.value:.3f} of {name}" for side, name in
                  ((CANDIDATE, "the candidate"), (LOOKUP, "prompt-lookup")) if side in decision.drafts]  # fmt: skip
        beside = f", beside {' and '.join(others)}" if others else ""
        said.append(f"Before training it had an acceptance rate of {interval(vocabulary.base, 3)}{beside}")
        if decision.baseline == "base" and any(rule.name == "beats_prompt_lookup" for rule in decision.rules):
            said.append(
                "Training improves such a draft easily, so it must beat prompt-lookup too (gate.beats_prompt_lookup)"
            )
    if vocabulary.map_error is not None:
        output = (
            "" if vocabulary.output_map_error is None else f", of the output layer {vocabulary.output_map_error:.0%}"
        )
        said.append(f"Leave-one-out error of the map: {vocabulary.map_error:.0%} of the rows' spread{output}")
    if vocabulary.no_map:
        said.append(f"No row is mapped from the target's embedding, because {vocabulary.no_map}")
    if vocabulary.unwritten or vocabulary.lost:
        lost = f": it loses {', '.join(vocabulary.lost)}" if vocabulary.lost else ""
        said.append(f"The draft's own tokenizer cannot write {vocabulary.unwritten:.1%} of the examined text{lost}")
    return said


HEADER = ("rows", "tokens", "of the text", "acceptance before training", "after")


def table(vocabulary: NewVocabulary) -> list[tuple[str, ...]]:
    """Rows under HEADER: by how they were made, and the special tokens without a counterpart that occur, by segment."""
    rows = [_row(_NAMES[way], row) for way, row in vocabulary.rows.items() if way in _NAMES]
    rows += [
        _row(f"{token} in {segment}: no counterpart", figures)
        for token, by_segment in vocabulary.roles.items()
        for segment, figures in by_segment.items()
    ]
    return rows


def _row(name: str, figures: RowsFigures) -> tuple[str, ...]:
    rates = (
        "none" if rate is None else f"{rate:.2f}" for rate in (figures.acceptance_before, figures.acceptance_after)
    )
    return (name, f"{figures.tokens:,}", f"{figures.share:.1%}", *rates)
