"""Whether a head predicts more from its target's hidden states than from those of another text: a head of another target, or one
that was trained on the states of other layers, loads and computes like any other."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch

ROWS, TOKENS, _PROMPT = 16, 32, 4
_LEAST = 8  # texts that have tokens of the head
_CONFIDENCE = 0.99  # one-sided, over the texts


@dataclass(frozen=True)
class _Text:
    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    domain: str = ""


def note_at_chance(draft: LoadedDraft, vocabulary: int) -> str | None:
    """What is wrong with a head whose first place gives texts that its target samples no more probability than with the hidden
    states of the next text in the place of its own; None for others. The texts begin with random tokens, so nothing of the
    traffic is needed."""
    assert draft.states is not None
    batch = PaddedBatch(_texts(draft.states.target, vocabulary))
    features = draft.states.features(batch, draft.layers)
    both = [_log_q(draft, batch, states) for states in (features, _of_the_next_text(features))]
    # Without the tokens that the head does not have, and texts of nothing else.
    kept = [np.isfinite(log_p) & np.isfinite(other) for log_p, other in zip(*both, strict=True)]
    own_R, other_R = (
        np.array([log_q[inside].mean() for log_q, inside in zip(side, kept, strict=True) if inside.any()])
        for side in both
    )
    gain_R, count = own_R - other_R, len(own_R)
    if count < _LEAST or gain_R.mean() > float(stdtrit(count - 1, _CONFIDENCE) * gain_R.std(ddof=1)) / sqrt(count):
        return None
    return (
        f"the head is at chance: the mean log q of its first tokens is {own_R.mean():.2f} on texts of its target, and "
        f"{other_R.mean():.2f} with hidden states of other texts, as of a head of another target or of other layers than its "
        "config.json names (eagle_aux_hidden_state_layer_ids)"
    )


def _texts(target: torch.nn.Module, vocabulary: int) -> list[_Text]:
    source = np.random.default_rng(0)
    prompts = source.integers(vocabulary, size=(ROWS, _PROMPT))
    decoder = Decoder(target, None, sampling=Sampling(), vocabulary=vocabulary)
    completions = decoder.decode([Request(prompt.tolist(), TOKENS, seed) for seed, prompt in enumerate(prompts)])
    return [
        _Text(prompt.astype(np.int32), np.array(completion.tokens, dtype=np.int32))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def _of_the_next_text(features: Features) -> Features:
    return {layer: states_BTH.roll(1, 0) for layer, states_BTH in features.items()}


def _log_q(draft: LoadedDraft, batch: PaddedBatch, features: Features) -> list[NDArray[np.float64]]:
    """log q of the tokens of each text, at the first place of a block."""
    return [values[:, 0].astype(np.float64) for values in draft.examine(batch, Sampling(), 1, features).values]
