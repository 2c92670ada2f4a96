"""Drawing and verification in compiled code against PyTorch's: the same tokens, but for numbers at the border of two tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.native.compiler import compiler
from pipeline.speculation.batch import Request
from pipeline.speculation.compiled_rules import CompiledRules
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.rules import ImposedAcceptance, Rules, TorchRules
from pipeline.speculation.sampling import check_weight_sums
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.verification import VerificationResult
from tests.fakes import tiny_llama

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler here")
SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 5003]
ROWS = 300
ROUNDING = 1e-5  # of a cumulative probability in fp32


class _Model:
    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.dtype, self.device = dtype, torch.device(device)


def _rules(temperature: float = 1.0, draft_temperature: float = 1.0) -> tuple[Rules, Rules]:
    own = Sampling(temperature), Sampling(draft_temperature)
    compiled = CompiledRules.of([_Model()], *own)
    assert compiled is not None
    return compiled, TorchRules(*own)


def _logits(*shape: int, seed: int = 0) -> torch.Tensor:
    """Some tokens impossible, some nearly so."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(*shape, generator=generator)
    impossible = torch.rand(*shape, generator=generator) < 0.2
    impossible[..., shape[-1] // 2] = False
    return logits.masked_fill(impossible, -torch.inf)


def _uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    uniform = torch.rand(*shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
    uniform[0] = 0.0
    uniform[-1] = 1 - 2**-53
    return uniform


@pytest.mark.parametrize(("size", "temperature"), [*((size, 2.5) for size in SIZES), (257, 0.3), (257, 1.0)])
def test_the_same_tokens_are_drawn(size: int, temperature: float) -> None:
    compiled, plain = _rules(draft_temperature=temperature)
    logits_BV, uniform_BN = _logits(ROWS, size), _uniform(ROWS, 3)

    found, wanted = (rules.draw(logits_BV, uniform_BN[:, 1]) for rules in (compiled, plain))

    torch.testing.assert_close(found.q[:, :size], wanted.q, rtol=1e-5, atol=1e-7)
    assert not found.q[:, size:].any()
    torch.testing.assert_close(found.sums_B, torch.ones_like(found.sums_B), rtol=1e-5, atol=0)
    assert (logits_BV.gather(1, found.token_B[:, None]) > -torch.inf).all(), "an impossible token was drawn"
    cumulative_BV = wanted.q.double().cumsum(1)
    differ = (found.token_B != wanted.token_B).nonzero().flatten().tolist()
    for row in differ:
        borders_V = cumulative_BV[row] - uniform_BN[row, 1]
        assert borders_V.abs().min() < ROUNDING
    assert len(differ) <= 4


def test_an_impossible_token_is_not_drawn_where_sums_are_rounded() -> None:
    """A block's sum in fp32 may be above that of its numbers one by one: the number then falls behind the last of them."""
    compiled, _ = _rules()
    logits_BV = _logits(ROWS, 256).index_fill(1, torch.tensor([0, 255]), -torch.inf)

    drawn = compiled.draw(logits_BV, torch.full((ROWS,), 1 - 2**-53, dtype=torch.float64))

    assert (logits_BV.gather(1, drawn.token_B[:, None]) > -torch.inf).all()


@pytest.mark.parametrize(("size", "gamma"), [*((size, 4) for size in SIZES), (257, 0), (257, 1)])
def test_the_same_tokens_are_accepted_and_corrected(size: int, gamma: int) -> None:
    """Rows draft 0 to gamma tokens; target and draft resemble each other, so that acceptances and rejections both occur."""
    logits_BTV, uniform_BN = _logits(ROWS, gamma + 1, size), _uniform(ROWS, 2 * gamma + 1)
    noise_BTV = torch.randn(logits_BTV.shape, generator=torch.Generator().manual_seed(5))
    drafted = [row % (gamma + 1) for row in range(ROWS)]

    found, wanted = _verify_with_both(logits_BTV, logits_BTV + noise_BTV, uniform_BN, drafted)

    same_B = (found.accepted_B == wanted.accepted_B) & (found.next_B == wanted.next_B)
    assert same_B.sum() >= ROWS - 4  # the others: numbers at a border
    assert bool((found.sums_B > 0).all())
    rejected = int((found.accepted_B < torch.tensor(drafted)).sum())
    if gamma and size > 7:
        assert 0.05 * ROWS < rejected < 0.7 * ROWS


def _verify_with_both(
    target_BTV: torch.Tensor, draft_BTV: torch.Tensor, uniform_BN: torch.Tensor, drafted: Sequence[int]
) -> tuple[VerificationResult, VerificationResult]:
    """By compiled code and by PyTorch, for the same drafted tokens."""
    gamma, both = target_BTV.shape[1] - 1, _rules(0.7, 1.3)
    drawn = [[rules.draw(draft_BTV[:, i], uniform_BN[:, i]) for i in range(gamma)] for rules in both]
    tokens_BG = torch.stack([one.token_B for one in drawn[1]], dim=1) if gamma else torch.empty(len(drafted), 0).long()
    accept_BG, next_B = uniform_BN[:, gamma : 2 * gamma], uniform_BN[:, -1]
    found, wanted = (
        rules.verify(target_BTV, tokens_BG, [one.q for one in own], drafted, accept_BG, next_B)
        for rules, own in zip(both, drawn, strict=True)
    )
    return found, wanted


def test_a_correction_where_target_and_draft_are_equal_is_drawn_from_the_target() -> None:
    """A number of 1 rejects what p / q = 1 would accept: nothing is left of p - q, so the token comes from p."""
    compiled, _ = _rules()
    logits_BV, uniform_BN = _logits(ROWS, 33), _uniform(ROWS, 3)
    drawn = compiled.draw(logits_BV, uniform_BN[:, 0])
    always_rejected = torch.ones(ROWS, 2, dtype=torch.float64)
    always_rejected[:, 1] = uniform_BN[:, 2]

    result = compiled.verify(
        logits_BV[:, None].repeat(1, 2, 1), drawn.token_B[:, None], [drawn.q], [1] * ROWS, *_split(always_rejected)
    )

    assert [0] * ROWS == result.accepted_B.tolist()
    assert torch.equal(result.next_B, compiled.draw(logits_BV, uniform_BN[:, 2]).token_B)


def _split(uniform_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return uniform_BT[:, :-1], uniform_BT[:, -1]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("side", ["draft", "target"])
def test_nan_and_infinite_logits_are_found(side: str, wrong: float) -> None:
    compiled, _ = _rules()
    logits_BTV = torch.zeros(1, 2, 40)
    bad_BTV = logits_BTV.clone()
    bad_BTV[0, 0] = wrong if wrong == -torch.inf else bad_BTV[0, 0].index_fill(0, torch.tensor(7), wrong)
    uniform_BN = torch.full((1, 3), 0.5, dtype=torch.float64)
    target_BTV, draft_BTV = (logits_BTV, bad_BTV) if side == "draft" else (bad_BTV, logits_BTV)

    drawn = compiled.draw(draft_BTV[:, 0], uniform_BN[:, 0])
    result = compiled.verify(target_BTV, drawn.token_B[:, None], [drawn.q], [1], *_split(uniform_BN[:, 1:]))

    assert 0 <= int(drawn.token_B) < 40
    assert 0 <= int(result.next_B) < 40
    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        check_weight_sums(torch.cat([drawn.sums_B, result.sums_B]))


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_row_does_not_depend_on_the_others_or_on_threads() -> None:
    """Each thread has memory of its own for the distributions of its row. A row that is alone has one thread."""
    rows, (compiled, _) = 60, _rules()
    logits_BTV, uniform_BN = _logits(rows, 3, 1024), _uniform(rows, 5)
    noise_BTV = torch.randn(logits_BTV.shape, generator=torch.Generator().manual_seed(5))

    def decoded(some: slice) -> tuple[torch.Tensor, ...]:
        target_BTV, draft_BTV = logits_BTV[some], (logits_BTV + noise_BTV)[some]
        drawn = [compiled.draw(draft_BTV[:, i], uniform_BN[some, i]) for i in range(2)]
        tokens_BG, q_G = torch.stack([one.token_B for one in drawn], dim=1), [one.q for one in drawn]
        counts = [2] * len(target_BTV)
        result = compiled.verify(target_BTV, tokens_BG, q_G, counts, *_split(uniform_BN[some, 2:]))
        return *q_G, tokens_BG, result.accepted_B, result.next_B, result.sums_B

    together, alone = decoded(slice(None)), [decoded(slice(row, row + 1)) for row in range(rows)]

    for found, each in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(found, torch.cat(each))


@pytest.mark.parametrize(
    ("models", "sampling"),
    [
        ([_Model(), _Model(torch.float64)], Sampling()),
        ([_Model(), _Model(device="meta")], Sampling()),
        ([object.__new__(_Model)], Sampling()),
        ([_Model()], GREEDY),
        ([_Model()], Sampling(top_k=5)),
        ([_Model()], Sampling(top_p=0.9)),
        ([_Model()], Sampling(min_p=0.1)),
    ],
    ids=["fp64", "another device", "no dtype", "greedy", "top-k", "top-p", "min-p"],
)
def test_what_it_does_not_compute_is_left_to_torch(models: list[Any], sampling: Sampling) -> None:
    for model in models:
        vars(model).setdefault("device", torch.device("cpu"))

    assert CompiledRules.of(models, sampling, Sampling()) is None
    assert CompiledRules.of(models, Sampling(), sampling) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decode_emits_the_tokens_of_pytorch(dtype: torch.dtype) -> None:
    target, draft = tiny_llama(0, dtype=dtype), tiny_llama(1, dtype=dtype)
    requests = [Request([1, 2, 3, 4 + row], 24, row) for row in range(3)]
    vocabulary = min(target.config.vocab_size, draft.config.vocab_size)

    def decoder() -> Decoder:
        return Decoder(target, PlainDraft(draft, vocabulary), sampling=Sampling(0.9), vocabulary=vocabulary, gamma=3)

    compiled, plain = decoder(), decoder()
    assert isinstance(compiled.rules, CompiledRules)
    plain.rules = TorchRules(Sampling(0.9), Sampling(0.9))

    assert plain.decode(requests) == compiled.decode(requests)


@pytest.mark.parametrize(
    "settings", [{"verification": "block"}, {"verification": ImposedAcceptance([0.5, 0.5])}], ids=str
)
def test_other_rules_than_token_level_are_pytorchs(settings: dict[str, Any]) -> None:
    model = tiny_llama(dtype=torch.float32)

    decoder = Decoder(model, PlainDraft(model, 32), sampling=Sampling(), vocabulary=32, gamma=2, **settings)

    assert isinstance(decoder.rules, TorchRules)
