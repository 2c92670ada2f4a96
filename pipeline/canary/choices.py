"""What the examined draft chooses on the tokens that engines emitted. It is loaded when an answer needs it.

A draft that reads hidden states is loaded with its target, which may be large. So its choices are kept: the target is loaded
again only for an answer that no canary has seen. Torch is imported where a draft is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.explained_counts import Drafted
from pipeline.canary.arithmetic import is_exact, near_ties
from pipeline.progress import Progress
from pipeline.registry.named import Draft
from pipeline.store.artifacts import Store
from pipeline.store.files import content_key
from pipeline.store.parsing import Count, Text, format_of, stored
from pipeline.store.state_files import StateFile

_MOST_KEPT = 1000  # answers


@dataclass(frozen=True)
class Emission:
    """A prompt and what was emitted, as `teacher_forced.TokenizedCompletion`."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    domain: str

    @property
    def key(self) -> str:
        return content_key([self.prompt.tolist(), self.tokens.tolist()])


@stored
class KeptAnswer:
    """`drafted.is_argmax` and `is_tie` of N tokens and the places of the file: packed bits, in hexadecimal."""

    tokens: Count
    argmax: Text
    ties: Text


@stored(name="kept choices of a head", schema=1, remedy="delete it; the next canary loads the target again")
class KeptChoices:
    """The choices of the draft `digest`, trained by `run`, in blocks of `places`. `answers`: by the key of an `Emission`."""

    digest: Text
    run: Text
    places: Count
    answers: dict[Text, KeptAnswer]

    def drafted(self, key: str) -> Drafted:
        answer = self.answers[key]
        return Drafted(*(_unpacked(bits, answer.tokens, self.places) for bits in (answer.argmax, answer.ties)))


def _check(choices: KeptChoices) -> None:
    for key in choices.answers:
        choices.drafted(key)


KEPT = StateFile(format_of(KeptChoices, check=_check), "choices/{}")


class CanaryDraft:
    """The draft as it was examined. `store`: where a draft that reads hidden states keeps what it chose, as `name`; None:
    nowhere."""

    def __init__(self, draft: Draft, progress: Progress, store: Store | None = None, name: str = "") -> None:
        self.draft, self._progress, self._store, self._name = draft, progress, store, name

    @property
    def exact(self) -> bool:
        """Whether an engine computes it in float32. A head is computed in its target's number format."""
        pair = self.draft.config.pair
        own = pair.target.dtype if self.draft.kind.reads_states else pair.draft.dtype
        return is_exact(pair.target.dtype, own, self.draft.variant)

    def on(self, emitted: Sequence[Emission], places: int) -> list[Drafted]:
        """Its choices in rounds of at most `places` tokens. UnderstudyError where it or its target cannot be loaded."""
        if not self.draft.kind.reads_states:
            return self._computed(emitted, places)
        kept = self._kept(places)
        new = {emission.key: emission for emission in emitted if emission.key not in kept.answers}
        if new:
            self._note(len(new))
            computed = self._computed(list(new.values()), kept.places)
            answers = kept.answers | {key: _packed(drafted) for key, drafted in zip(new, computed, strict=True)}
            kept = replace(kept, answers=answers)
            if self._store is not None:
                latest = dict(list(answers.items())[-max(_MOST_KEPT, len(emitted)) :])
                KEPT.write(self._store, replace(kept, answers=latest), self._name)
        return [kept.drafted(emission.key) for emission in emitted]

    def _kept(self, places: int) -> KeptChoices:
        stored_choices = None if self._store is None else KEPT.find(self._store, self._name)
        if (
            stored_choices is not None
            and (stored_choices.digest, stored_choices.run) == (self.draft.digest, self.draft.run)
            and stored_choices.places >= places
        ):
            return stored_choices
        return KeptChoices(digest=self.draft.digest, run=self.draft.run, places=places, answers={})

    def _note(self, new: int) -> None:
        where = "" if self._store is None else f"; what it chose is kept in {KEPT.path(self._store, self._name)}"
        self._progress.line(
            f"canary: the draft is of kind {self.draft.kind.name} and reads hidden states of its target, so the target is "
            f"loaded here for {new} answer{'s' if new != 1 else ''}{where}"
        )

    def _computed(self, emitted: Sequence[Emission], places: int) -> list[Drafted]:
        from pipeline.examination.argmax import argmax_on

        choices = argmax_on(self._loaded, emitted, places, self.draft.config.evaluate.batch_tokens)
        return [
            Drafted(
                choice.is_argmax, near_ties(choice.margin, choice.largest, self.exact) & _is_about_token(choice.margin)
            )
            for choice in choices
        ]

    @cached_property
    def _loaded(self) -> Any:
        from pipeline.drafts.loading import load_draft
        from pipeline.models.devices import choose_device
        from pipeline.models.loading import load_model

        draft, config = self.draft, self.draft.config
        device, trusted = choose_device(config.device), config.pair.trust_remote_code

        def target() -> Any:
            pair = draft.pair
            return load_model(pair.path("target"), pair.dtype("target"), device, trusted, config.pair.target.device_map)

        return load_draft(draft.pair, draft.directory, config.pair.draft.dtype, device, trusted, target)


def _is_about_token(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of (N,) or (N, P) entries are about one of the N tokens."""
    if values.ndim == 1:
        return np.ones(len(values), bool)
    starts, places = values.shape
    is_about_token: NDArray[np.bool_] = np.arange(starts)[:, None] + np.arange(places) < starts
    return is_about_token


def _packed(drafted: Drafted) -> KeptAnswer:
    bits = (np.packbits(values).tobytes().hex() for values in (drafted.is_argmax, drafted.is_tie))
    return KeptAnswer(**dict(zip(("argmax", "ties"), bits, strict=True)), tokens=drafted.tokens)


def _unpacked(bits: str, tokens: int, places: int) -> NDArray[np.bool_]:
    """The bits as (N, P). ValueError for text that is no such bits."""
    raw = np.frombuffer(bytes.fromhex(bits), np.uint8)
    if len(raw) != (tokens * places + 7) // 8:
        raise ValueError("answers: another number of bits than tokens times places")
    return np.unpackbits(raw, count=tokens * places).astype(bool).reshape(tokens, places)
