"""A draft with another tokenizer as an engine maps its tokens: which are the same, and that it is a draft in the target's."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.examine import examine
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.drafts.tli import TliDraft
from pipeline.drafts.token_map import TokenMap, map_tokens
from pipeline.errors import BrokenDraft
from pipeline.models.tokenizers import columns_for
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import family_model, stored_completion
from tests.unit.models.test_token_bytes import byte_level, sentencepiece

WIDTH, OWN_WIDTH = 20, 14
CPU = torch.device("cpu")


def _names(found: TokenMap, target: Any, own: Any) -> dict[str, str]:
    places = found.shared_V.nonzero().squeeze(1).tolist()
    names = target.convert_ids_to_tokens(places)
    return dict(zip(names, own.convert_ids_to_tokens(found.own_V[places].tolist()), strict=True))


def test_tokens_are_compared_as_they_are_written() -> None:
    """Not by bytes: `<0x67>` is no `g`, and a line break of byte-level BPE is no line break. Other tokens are fed as the unknown
    one, or without it as EOS."""
    target, own = (
        byte_level("\u0120the", "\u0120x", "ing"),
        sentencepiece("\u2581the", "ing", "g", "\n", "a", "\u2581a"),
    )
    own.unk_token = "<unk>"
    width = columns_for(target) + 2
    found = map_tokens(target, own, width, columns_for(own))
    names = _names(found, target, own)

    assert {"\u0120the": "\u2581the", "ing": "ing", "g": "g", "a": "a", "\u0120": "\u2581", "</s>": "</s>"} == names
    assert (6, width, 0) == (found.shared, len(found.own_V), found.ambiguous)
    assert {own.unk_token_id} == set(found.own_V[~found.shared_V].tolist())
    own.unk_token = None
    assert {own.eos_token_id} == set(map_tokens(target, own, width, columns_for(own)).own_V[~found.shared_V].tolist())


def test_a_spelling_of_two_tokens_is_counted() -> None:
    """vLLM's choice depends on the order of a hash table."""
    target, own = byte_level("\u0120the"), sentencepiece("\u2581the", " the", "\u2581a")
    found = map_tokens(target, own, columns_for(target), columns_for(own))

    assert 1 == found.ambiguous
    assert "\u2581the" == _names(found, target, own)["\u0120the"]


def test_tokens_without_a_column_are_not_shared() -> None:
    target, own = byte_level("th"), sentencepiece("th", "g", "\u2581a")
    assert "th" not in _names(map_tokens(target, own, columns_for(target), own.get_vocab()["th"]), target, own)


def test_what_an_engine_does_not_map_is_said() -> None:
    """A draft with nothing to feed for other tokens, and one that shares none."""
    target, own = byte_level(), sentencepiece("g", "\u2581a")
    own.unk_token = own.eos_token = None
    with pytest.raises(BrokenDraft, match="neither an unknown token nor an EOS"):
        map_tokens(target, own, columns_for(target), columns_for(own))
    with pytest.raises(BrokenDraft, match="no token of its tokenizer"):
        map_tokens(target, sentencepiece("zzz", single=False), 200, 2)


def _pair() -> tuple[Any, TliDraft, Any]:
    """A target, a draft with fewer tokens, and the same draft as a model in the target's vocabulary: mapped rows, and a bias at
    what is not shared."""
    sizes = {"hidden_size": 24, "tie_word_embeddings": False}
    target, model = (family_model("Llama", torch.float32, vocab_size=width, **sizes) for width in (WIDTH, OWN_WIDTH))
    own_V = torch.tensor([(7 * place) % OWN_WIDTH for place in range(WIDTH)])
    shared_V = torch.arange(WIDTH) < 12
    own_V[~shared_V] = 3
    same = family_model("Llama", torch.float32, vocab_size=WIDTH, **sizes)
    tensors = {name: one for name, one in model.state_dict().items() if "embed" not in name and "lm_head" not in name}
    same.load_state_dict(tensors, strict=False)
    same.lm_head = torch.nn.Linear(24, WIDTH)
    with torch.no_grad():
        same.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight[own_V])
        same.lm_head.weight.copy_(model.lm_head.weight[own_V])
        same.lm_head.bias.copy_(torch.where(shared_V, 0.0, -1e9))
    return target, TliDraft(model, TokenMap(own_V, shared_V, 0), WIDTH), same


def test_it_is_a_draft_in_the_targets_tokens() -> None:
    """Its logits are those of a model with mapped rows and a bias."""
    _, draft, same = _pair()
    ids = [1, 5, 19, 0, 13, 2]
    found, expected = draft.logits_after(ids, 6), same(input_ids=torch.tensor([ids])).logits[0, -1]

    torch.testing.assert_close(expected[:12], found[:12], check_dtype=False, rtol=1e-4, atol=1e-5)
    assert bool(found[12:].isneginf().all())


@pytest.mark.parametrize(("sampling", "gamma"), [*product((GREEDY, Sampling()), (1, 4))])
def test_decoding_has_the_rounds_of_the_examination(sampling: Sampling, gamma: int) -> None:
    """Greedily drafted at every temperature, so each count is exact given the text. No token is accepted that is not shared."""
    target, draft, _ = _pair()
    prompts = np.random.default_rng(0).integers(0, WIDTH, (8, 6))
    requests = [Request(prompt.tolist(), 40, number) for number, prompt in enumerate(prompts)]
    texts = Decoder(target, draft, sampling=sampling, vocabulary=WIDTH, gamma=gamma).decode(requests)
    items = [
        stored_completion(prompt.tolist(), one.tokens, length=one.length)
        for prompt, one in zip(prompts, texts, strict=True)
    ]
    found = examine({"it": draft}, items, sampling, sampling, 8192, gamma)["it"]
    assert not isinstance(found, BrokenDraft)
    assert draft.kind.greedy
    for one, text in zip(found, texts, strict=True):
        a_T = one.at(gamma).astype(float)
        assert set(a_T[np.array(text.tokens) >= 12].tolist()) <= {0.0}
        counted = expected_rounds(a_T[None], np.array([text.length]), gamma, CONVENTIONS["transformers"])
        assert (text.rounds, sum(text.accepted)) == (counted.rounds_B[0], counted.accepted_BG.sum())
    assert sum(sum(text.accepted) for text in texts) > 10
