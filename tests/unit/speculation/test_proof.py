"""Forwards are proved before they are used: tiny random models of other architectures, decoded as their own passes say."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UsageError
from pipeline.speculation import choice
from pipeline.speculation.batch import Request
from pipeline.speculation.choice import choose_forward, proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.model_forward import ModelForward
from pipeline.speculation.proof import Unproved, make_case, prove, short_windows
from pipeline.speculation.row_forward import RowForward
from pipeline.speculation.settings import GREEDY
from tests.architectures import LLAMA_4, VOCABULARY, tiny_model
from tests.fakes import family_model, greedy_text, tiny_llama

WAYS = {
    "Llama 4": LLAMA_4,
    "Gemma 3": "batch",
    "Mistral": "llama",
    "DeepSeek V3": "batch",
    "GPT-Neo": "rows",
    "Bloom": "rows",
    "Falcon, alibi": "rows",
    "LFM 2": "rows",
    "Qwen 3 Next": "rows, cache rebuilt",
    "Jamba": "rows, cache rebuilt",
    "Mamba": "rows, cache rebuilt",
    "RecurrentGemma": "rows, no cache",
}
_LIKE_OTHERS = ("Bloom", "Qwen 3 Next")  # positions of Falcon with alibi; attention beside recurrent layers as in Jamba
_LENGTHS = (5, 20, 1, 13)  # shorter and longer than every window


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in _LIKE_OTHERS)) for name in WAYS]
)
def test_ragged_greedy_completions_are_those_of_single_passes(name: str) -> None:
    """Prompts within and past the windows, decoded in one batch with a draft that is rejected and accepted."""
    target, draft = tiny_model(name), tiny_model(name)
    with torch.no_grad():
        weight = draft.get_output_embeddings().weight
        weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in _LENGTHS]
    decoder = Decoder(target, PlainDraft(draft, VOCABULARY), sampling=GREEDY, vocabulary=VOCABULARY, gamma=3)
    completions = decoder.decode([Request(prompt, 10, 0) for prompt in prompts])

    assert WAYS[name] == proved_way(target, VOCABULARY)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert greedy_text(target, prompt, 10, VOCABULARY, guess=completion.tokens) == completion.tokens


@pytest.mark.parametrize(
    ("name", "dtype", "way"),
    [
        ("LFM 2", torch.bfloat16, "rows"),
        ("Mamba", torch.bfloat16, "rows, cache rebuilt"),
    ],
    ids=str,
)
def test_lower_precision_changes_no_way(name: str, dtype: torch.dtype, way: str) -> None:
    """Rounding is told apart from a wrong mask."""
    assert way == proved_way(tiny_model(name, dtype), VOCABULARY)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("Llama 4", torch.float32), ("Gemma 3", torch.float32), ("Gemma 3", torch.bfloat16), ("GPT-Neo", torch.float32)],
    ids=str,
)
def test_a_forward_that_ignores_windows_is_not_proved(name: str, dtype: torch.dtype) -> None:
    """Full attention in place of a window or a chunk, which equals it on short texts."""
    model = tiny_model(name, dtype)
    with short_windows(model, VOCABULARY):
        forward, case = ModelForward(model, VOCABULARY), make_case(model, VOCABULARY)
        forward.windows = {}
        with pytest.raises(Unproved, match="logits differ by"):
            prove(forward, case, VOCABULARY)


def test_a_window_is_shortened_for_the_proof_only() -> None:
    """A window of 4,096 is proved on short rows, and is the model's again afterwards."""
    model, lengths = tiny_model("Gemma 3", sliding_window=4096, max_position_embeddings=8192), []
    own = model.forward

    def forward(**kwargs: Any) -> Any:
        lengths.append(kwargs["input_ids"].shape[1])
        return own(**kwargs)

    model.forward = forward
    with short_windows(model, VOCABULARY) as short:
        assert (True, 8) == (short, model.config.sliding_window)
    assert "batch" == proved_way(model, VOCABULARY)
    assert 4096 == model.config.sliding_window
    assert max(lengths) < 64


def test_a_window_that_cannot_be_shortened_is_left_to_the_model() -> None:
    """A long window that is built into the model's layers: no forward that computes windows is tried."""
    model = tiny_model("GPT-Neo", window_size=600, max_position_embeddings=1024)

    with short_windows(model, VOCABULARY) as short:
        assert not short
    assert isinstance(choose_forward(model, VOCABULARY), RowForward)


def test_rows_reach_past_a_window_that_cannot_be_shortened() -> None:
    """A window of 100 in the model's layers: full attention, which equals it on short texts, is not proved."""
    model = tiny_model("GPT-Neo", window_size=100, max_position_embeddings=512)

    with short_windows(model, VOCABULARY) as short:
        assert (True, 100) == (short, model.config.window_size)
    assert "rows" == proved_way(model, VOCABULARY)


def test_an_architecture_that_reads_ahead_is_refused_in_one_line() -> None:
    """No way of decoding a bidirectional model equals its own passes."""
    with pytest.raises(
        UsageError, match=r"^the architecture bert cannot be decoded: its logits .*another architecture$"
    ):
        proved_way(tiny_model("BERT, encoder"), VOCABULARY)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (lambda ids_BT: ids_BT.sum(1), "its logits depend on later tokens"),  # padding of zeros changes no sum
        (lambda ids_BT: torch.full((len(ids_BT),), len(ids_BT)), "its logits of padded rows differ"),
    ],
    ids=["later tokens", "batch size"],
)
def test_own_passes_that_contradict_each_other_are_refused(added: Any, reason: str) -> None:
    """Logits that depend on the text after a token, or on the number of rows, cannot be examined."""
    model = tiny_llama(1, dtype=torch.float32)
    own, shift_VV = model.forward, torch.randn(32, 32, generator=torch.Generator().manual_seed(0))

    def forward(**kwargs: Any) -> Any:
        output = own(**kwargs)
        output.logits += shift_VV[added(kwargs["input_ids"]) % 32].unsqueeze(1)
        return output

    model.forward = forward
    with pytest.raises(UsageError, match=f"^the architecture llama cannot be decoded: {reason}"):
        proved_way(model, 32)


class _FirstRowsSlots(ModelForward):
    """Computes every row at the slots of the first one, which is right where rows have one length."""

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Any, keep: int) -> torch.Tensor:
        return super().forward(ids_BT, [first[0]] * len(first), caches, keep)


def test_a_forward_that_is_wrong_for_ragged_rows_is_not_proved() -> None:
    """Rows of the proof have different lengths."""
    model = tiny_model("Llama")
    with pytest.raises(Unproved, match="logits differ by"):
        prove(_FirstRowsSlots(model, VOCABULARY), make_case(model, VOCABULARY), VOCABULARY)


def test_a_model_whose_own_pass_fails_is_refused_in_one_line() -> None:
    """A raw error of the model's code is named, not raised."""
    model = tiny_llama(1, dtype=torch.float32)

    def forward(**kwargs: Any) -> Any:
        raise IndexError("no such\nexpert")

    model.forward = forward
    with pytest.raises(
        UsageError, match=r"llama cannot be decoded: its own forward raised IndexError: no such expert;"
    ):
        proved_way(model, 32)


def test_a_model_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second decoder of a loaded model makes no further passes; another model does."""
    proofs = []
    monkeypatch.setattr(choice, "prove", lambda forward, case, vocabulary: proofs.append(forward))
    model = family_model("Llama")
    for _ in range(2):
        choose_forward(model, 40)
    assert 1 == len(proofs)
    choose_forward(family_model("Llama"), 40)
    assert 2 == len(proofs)


def test_rows_that_lack_their_past_are_left_alone() -> None:
    """A row that only fills the batch gets zeros, and its cache stays as it was."""
    model = tiny_model("LFM 2")
    forward = RowForward(model, VOCABULARY, "crop")
    caches = forward.allocate(2, 32)
    forward.forward(torch.tensor([[1, 2, 3], [4, 5, 6]]), [0, 0], caches, 1)
    logits_BTV = forward.forward(torch.tensor([[7], [8]]), [3, 9], caches, 1)

    assert ([1, 2, 3, 7], [4, 5, 6]) == (caches[0].tokens, caches[1].tokens)
    assert [True, False] == [bool(logits_TV.any()) for logits_TV in logits_BTV]


def test_a_small_share_of_later_tokens_is_found() -> None:
    """Logits of float32 that hold a thousandth of those of later tokens are not rounding."""
    model = tiny_llama(1, dtype=torch.float32)
    forward = model.forward

    def leaking(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits + 0.001 * output.logits.flip(1).cumsum(1).flip(1)
        return output

    model.forward = leaking
    with pytest.raises(Unproved, match="depend on later tokens"):
        make_case(model, 32)
