"""nf4 layers of bitsandbytes in the compiled forward: the same weights, the same bits."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.native import build as build_module
from pipeline.speculation import compiled_forward
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.forward import CachedModel
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.nf4_layers import BLOCK, NF4Linear, is_nf4, read
from tests.fakes import family_model

bitsandbytes: Any = pytest.importorskip("bitsandbytes")
needs_compiler = pytest.mark.skipif(build_module.compiler() is None, reason="no C compiler here")
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "head_dim": 32,
    "vocab_size": 64,
    "initializer_range": 0.1,
}
BUILDS = ([], ["-mno-amx-bf16"], ["-mno-amx-bf16", "-mno-avx512bf16"], ["-march=x86-64-v3", "-Wno-psabi"])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test looks for a library anew."""
    compiled_forward.load_library.cache_clear()
    yield
    compiled_forward.load_library.cache_clear()


def _coded(weights_OI: torch.Tensor, nested: bool = True) -> Any:
    linear = bitsandbytes.nn.Linear4bit(
        weights_OI.shape[1], len(weights_OI), bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
    )
    linear.weight = bitsandbytes.nn.Params4bit(
        weights_OI, requires_grad=False, quant_type="nf4", compress_statistics=nested
    ).to("cpu")
    return linear.eval()


def _weights(coded: NF4Linear) -> torch.Tensor:
    """(out, in), as `llama_forward.c` dequantizes them."""
    numbers = torch.cat([coded.codes & 15, coded.codes >> 4], dim=-1).long()
    levels = coded.tables[coded.table_index.long() & 0xFFFF]  # (out, in / 64, 16)
    return levels.gather(-1, numbers).flatten(1)


@pytest.mark.parametrize("nested", [True, False])
def test_weights_are_those_of_bitsandbytes(nested: bool) -> None:
    """Weight by weight, with doubly quantized scales or not, up to the rounding of scales and products."""
    linear = _coded(torch.randn(96, 3 * BLOCK, generator=torch.Generator().manual_seed(1)).bfloat16(), nested)
    theirs = bitsandbytes.functional.dequantize_4bit(linear.weight.data, linear.weight.quant_state)

    assert is_nf4(linear)
    torch.testing.assert_close(theirs, _weights(read(linear)), rtol=2**-7, atol=0)


def test_a_forward_pass_does_not_change_what_is_read() -> None:
    """bitsandbytes may repack the weights in a forward pass; codes and scales are read the same, and the layer still works."""
    linear = _coded(torch.randn(64, 2 * BLOCK, generator=torch.Generator().manual_seed(2)).bfloat16())
    before, x = read(linear), torch.randn(3, 2 * BLOCK).bfloat16()
    with torch.inference_mode():
        said = linear(x)
        after = read(linear)
        assert torch.equal(said, linear(x))

    assert torch.equal(before.codes, after.codes)
    assert torch.equal(before.tables[before.table_index.long()], after.tables[after.table_index.long()])


@needs_compiler
@pytest.mark.parametrize(("build", "head"), [*((build, True) for build in BUILDS), (BUILDS[0], False)], ids=str)
def test_logits_are_those_of_the_dequantized_weights(
    build: list[str], head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of nf4 layers gives the bits of one with the same weights in bfloat16, in every build, for one token and many."""
    monkeypatch.setattr(build_module, "FLAGS", [*build_module.FLAGS, *build])
    whole = family_model("Llama", torch.bfloat16, **SIZES)
    coded = copy.deepcopy(whole)
    for name, linear in list(whole.named_modules()):
        if isinstance(linear, nn.Linear) and (head or name != "lm_head"):
            small = _coded(linear.weight.data.clone())
            linear.weight = nn.Parameter(_weights(read(small)), requires_grad=False)
            parent, _, child = name.rpartition(".")
            setattr(coded.get_submodule(parent), child, small)
    bodies = [choose_forward(model, 37) for model in (whole, coded)]
    ids_BT = torch.randint(37, (2, 20), generator=torch.Generator().manual_seed(3))

    if compiled_forward.load_library(torch.bfloat16) is None:
        pytest.skip(f"the compiler here does not build {build}")
    for body in bodies:
        assert isinstance(body, LlamaForward)
        assert body.compiled is not None
    sides = [CachedModel(body, 2, 20) for body in bodies]
    for begin, end in ((0, 7), (7, 8), (8, 10), (10, 20)):
        expected, actual = (side.logits(ids_BT[:, begin:end], [begin] * 2, end - begin) for side in sides)
        assert torch.equal(expected, actual)


def test_other_formats_are_not_read() -> None:
    """fp4, plain layers, and layers whose inputs are not a multiple of the block size."""
    fp4 = bitsandbytes.nn.Linear4bit(BLOCK, 32, bias=False, quant_type="fp4")
    fp4.weight = bitsandbytes.nn.Params4bit(torch.randn(32, BLOCK), requires_grad=False, quant_type="fp4").to("cpu")

    assert not is_nf4(fp4)
    assert not is_nf4(nn.Linear(BLOCK, 32))
    assert not is_nf4(_coded(torch.randn(64, 96).bfloat16()))
