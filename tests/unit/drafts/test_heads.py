"""Heads on hidden states: what is decoded is what the examination predicts, and what a plain loop without caches computes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.examine import examine
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.medusa import MedusaDraft
from pipeline.errors import BrokenDraft, UsageError
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import LengthSchedule
from pipeline.speculation.hidden_states import NORMED, StateRecorder
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.heads import LAYERS, eagle3_draft, medusa_draft

VOCABULARY, NEW, GAMMA = 24, 20, 4
Head = Eagle3Draft | MedusaDraft

HEADS: dict[str, Callable[[Any], Head]] = {
    "llama": eagle3_draft,
    "qwen3, output norm fed back": lambda target: eagle3_draft(target, "qwen3", 2, norm_output=True),
    "part of the vocabulary, norms before": lambda target: eagle3_draft(
        target, layers=2, kept=15, norm_before_fc=True, norm_before_residual=True
    ),
    "sliding window": lambda target: eagle3_draft(target, layers=2, window=2, fc_norm=True),
    "medusa": medusa_draft,
}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4)


@pytest.fixture(params=HEADS, scope="module")
def head(request: pytest.FixtureRequest, target: Any) -> Head:
    return HEADS[request.param](target)


def _prompts() -> list[list[int]]:
    """Of 1 and 2 tokens too: before the second token of a text the target has no state, so that nothing is drafted."""
    generator = np.random.default_rng(0)
    return [generator.integers(0, VOCABULARY, size).tolist() for size in (1, 2, 7, 30, 12, 1, 40)]


def _decoder(target: Any, head: Head | None, gamma: Any, sampling: Sampling = GREEDY) -> Decoder:
    decoder = Decoder(target, head, sampling=sampling, vocabulary=VOCABULARY, gamma=gamma)
    decoder.prefill = 16
    return decoder


def test_decoded_rounds_are_those_of_the_examination(target: Any, head: Head) -> None:
    """A ragged batch at temperature 0: rounds, drafted and accepted tokens of each prompt, and the target's own text."""
    prompts, gamma = _prompts(), 3
    texts = _decoder(target, None, 0).decode([Request(prompt, NEW, 0, lookahead=GAMMA) for prompt in prompts])
    decoded = _decoder(target, head, gamma).decode([Request(prompt, NEW, 0) for prompt in prompts])

    items = [stored_completion(prompt, one.tokens) for prompt, one in zip(prompts, texts, strict=True)]
    predicted = examine({"head": head}, items, GREEDY, GREEDY, 200, GAMMA)["head"]
    assert not isinstance(predicted, BrokenDraft)
    convention, accepted = CONVENTIONS["transformers"], 0
    for found, text, one in zip(predicted, texts, decoded, strict=True):
        drafted_T = found.drafted_at(gamma)
        rounds = expected_rounds(
            found.at(gamma)[None].astype(float),
            np.array([NEW]),
            gamma,
            convention,
            None if drafted_T is None else drafted_T[None],
        )
        assert one.tokens == text.tokens[:NEW]
        expected = (rounds.rounds_B[0], rounds.proposed_B[0], rounds.accepted_BG.sum())
        assert expected == (one.rounds, sum(one.drafted), sum(one.accepted))
        accepted += sum(one.accepted)
    assert accepted > 0  # or nothing was compared


def test_log_q_is_that_of_rounds_without_caches(target: Any, head: Head) -> None:
    """Each start of a round computed alone, over its whole text, against the examination of all starts at once."""
    generator = np.random.default_rng(1)
    prompts, sampling = [[3], [5, 7, 1, 2], [9, 8]], Sampling(temperature=0.7)
    items = [stored_completion(prompt, generator.integers(0, VOCABULARY, 9).tolist()) for prompt in prompts]
    batch = PaddedBatch(items)
    features = head.states.features(batch, head.layers)
    found = head.examine(batch, sampling, GAMMA, features)
    for number, item in enumerate(items):
        text = [*item.prompt.tolist(), *item.tokens.tolist()]
        for start in range(len(item.tokens)):
            known = len(item.prompt) + start
            if known < 2:
                assert found.drafted is not None
                assert found.drafted[number][start] == 0
                continue
            places = min(GAMMA, head.longest or GAMMA, len(item.tokens) - start)
            alone = _round(head, text, known, places)
            for place in range(places):
                log_q_V = (alone[place] / sampling.temperature).log_softmax(-1)
                expected = float(log_q_V[text[known + place]])
                assert found.values[number][start, place] == pytest.approx(
                    expected, abs=1e-5
                )  # norms and attention are computed in fp32


@torch.inference_mode()
def _round(head: Head, text: Sequence[int], known: int, places: int) -> list[torch.Tensor]:
    """The logits of each place of a round that starts when `known` tokens of a text are, if its drafts are the text's."""
    states = head.states.features(PaddedBatch([stored_completion(text[:1], text[1:known])]), head.layers)
    if isinstance(head, MedusaDraft):
        return [head.logits(states[NORMED][0, known - 2, None], place)[0] for place in range(places)]
    model, found = head.model, []
    hidden_1TH = model.combine(states)[:, : known - 1]
    for place in range(places):
        count = hidden_1TH.shape[1]
        ids_1T = torch.tensor([text[1 : 1 + count]])
        at_T = torch.arange(count)
        masks = [(at_T <= at_T[:, None]) & (at_T > at_T[:, None] - (window or count)) for window in model.windows]
        out_1TH = model(ids_1T, hidden_1TH, at_T[None], [mask[None, None] for mask in masks])
        found.append(head.logits(out_1TH[0, -1:], place)[0])
        hidden_1TH = torch.cat([hidden_1TH, out_1TH[:, -1:]], dim=1)
    return found


def test_sampled_text_and_rounds_are_those_of_the_law(target: Any, head: Head) -> None:
    """1,000 one-token blocks at temperature 1 from one context: how often the draft is accepted is the sum of min(p, q), within 5
    standard errors (a false alarm in 1 of 1.7 million runs)."""
    prompt, count = [3, 9, 1, 20, 4, 11], 1000
    decoded = _decoder(target, head, 1, Sampling()).decode([Request(prompt, 2, seed) for seed in range(count)])
    rate = np.mean([one.accepted[0] for one in decoded])
    items = [stored_completion(prompt, [token]) for token in range(VOCABULARY)]
    with torch.inference_mode():
        log_p_V = target(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    batch = PaddedBatch(items)
    applied = GREEDY if head.kind.greedy else Sampling()  # as engines draft with a head of this kind
    found = head.examine(batch, applied, 1, head.states.features(batch, head.layers))
    values_V = np.array([float(values[0, 0]) for values in found.values])
    q_V = values_V if found.hits else np.exp(values_V)
    expected = float(np.minimum(log_p_V.exp().numpy(), q_V).sum())
    assert abs(rate - expected) < 5 * np.sqrt(expected * (1 - expected) / count)
    assert 0.005 < expected < 0.98


def test_drafting_off_for_some_rounds_changes_no_text(target: Any, head: Head) -> None:
    """The head goes on with states of rounds in which it drafted nothing."""
    prompts = _prompts()
    requests = [Request(prompt, 5 + 4 * number, 0) for number, prompt in enumerate(prompts)]
    schedule = LengthSchedule(((1, 3, 3), (4, 5, 0), (6, 9, 2)))
    scheduled = _decoder(target, head, schedule).decode(requests)
    plain = _decoder(target, None, 0).decode(requests)
    assert [one.tokens for one in plain] == [one.tokens for one in scheduled]
    assert any(sum(one.accepted) for one in scheduled)


def test_the_state_of_a_layer_is_what_enters_it(target: Any) -> None:
    """The last one is before the final norm, where transformers' own last hidden state is after it."""
    batch, layers = PaddedBatch([stored_completion([3, 4, 5], [6, 7])]), target.config.num_hidden_layers
    found = TargetStates(target).features(batch, [0, *LAYERS, NORMED])
    with torch.inference_mode():
        output = target(batch.ids_BT, output_hidden_states=True)
        assert torch.equal(target.model.norm(found[layers]), found[NORMED])
        assert torch.equal(target.lm_head(found[NORMED]), output.logits)
    for layer in {0, *LAYERS} - {layers}:
        assert torch.equal(output.hidden_states[layer], found[layer])


def test_layers_that_the_target_lacks_are_refused(target: Any) -> None:
    with pytest.raises(UsageError, match=r"reads the hidden state of layer 5 of the target, which has layers 0 to 4"):
        StateRecorder(target, [1, 5])


def test_nan_logits_break_the_draft(target: Any) -> None:
    head = eagle3_draft(target)
    head.model.fc.weight.data[0, 0] = torch.nan
    items = [stored_completion([3, 4, 5], [6, 7])]
    for sampling in (GREEDY, Sampling()):
        found = examine({"head": head}, items, sampling, sampling, 200, 2)["head"]
        assert isinstance(found, BrokenDraft)
        assert "NaN logits" in str(found)


def test_a_round_longer_than_the_heads_is_as_long_as_they_are(target: Any) -> None:
    """In the examination and in the decoder alike, at both temperatures; and engines draft with them greedily."""
    head = medusa_draft(target, 2)
    requests = [Request(prompt, 12, 7) for prompt in _prompts()]
    for sampling in (GREEDY, Sampling()):
        long, short = (
            _decoder(target, head, gamma, sampling).decode(requests) for gamma in (head.longest + 3, head.longest)
        )
        assert max(most for one in long for most in one.drafted) == head.longest
        if sampling == GREEDY:
            assert [one.tokens for one in long] == [one.tokens for one in short]
            assert [one.accepted for one in long] == [one.accepted for one in short]
    completions = [stored_completion([3, 4, 5], [6, 7, 8, 9, 10])]
    by_sampling = [
        examine({"medusa": head}, completions, sampling, sampling, 4096, head.longest + 3)["medusa"]
        for sampling in (GREEDY, Sampling())
    ]
    of_text, at_one = (found[0].at(head.longest) for found in by_sampling if not isinstance(found, BrokenDraft))
    assert of_text.tolist() == at_one.tolist()  # whether the argmax is the token of the text, at every temperature
