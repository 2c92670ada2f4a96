"""The compiled forward: logits of the model's own forward, the same bits in every batch; PyTorch where it cannot be built."""

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.native import build as build_module
from pipeline.speculation import compiled_forward
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.compiled_forward import CompiledForward
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.forward import CachedModel
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.model_forward import ModelForward
from pipeline.speculation.settings import GREEDY
from tests.fakes import family_model, full_logits, greedy_text, largest_gap, ragged_requests

needs_compiler = pytest.mark.skipif(build_module.compiler() is None, reason="no C compiler here")
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.1}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key for all": ("Llama", {"num_key_value_heads": 1}),
    "llama, one key a head": ("Llama", {"num_key_value_heads": 4}),
    "llama, an odd number of vectors a head": ("Llama", {"head_dim": 48, "hidden_size": 96, "num_attention_heads": 6}),
    "llama, more heads than lanes": (
        "Llama",
        {"hidden_size": 160, "num_attention_heads": 20, "num_key_value_heads": 1},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03}  # of the largest logit
_INSTRUCTIONS = {"-mno-amx-bf16": "amx_bf16", "-mno-avx512bf16": "avx512_bf16"}  # as the kernel names them
BUILDS = {
    "as for this machine": [],
    "without tiles": ["-mno-amx-bf16"],
    "without bf16": ["-mno-amx-bf16", "-mno-avx512bf16"],
    "for an older machine": ["-march=x86-64-v3", "-Wno-psabi"],
    "without threads": ["-fno-openmp"],
}


def _differs(flags: list[str]) -> bool:
    """Whether a build may differ from that for this machine: one without instructions that it lacks does not."""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return True
    return not flags or any(_INSTRUCTIONS.get(flag, flag) in (flag, *known) for flag in flags)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test looks for a compiler and a library anew."""
    compiled_forward.load_library.cache_clear()
    build_module._log_once.cache_clear()
    yield
    compiled_forward.load_library.cache_clear()


def _body(dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Any, LlamaForward]:
    model = family_model("Llama", dtype, **SIZES | settings)
    body = choose_forward(model, 37)
    assert isinstance(body, LlamaForward)
    return model, body


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_the_models_own(shape: str, dtype: torch.dtype) -> None:
    """Up to rounding, with ragged rows, single tokens, blocks, overwritten rejected tokens and a padded vocabulary."""
    family, settings = SHAPES[shape]
    model = family_model(family, dtype, **SIZES | settings)
    body = choose_forward(model, 37)
    largest = float(full_logits(model, range(1, 30)).abs().max())

    assert isinstance(body, LlamaForward)
    assert body.compiled is not None
    assert largest_gap(model, body, 37) < TOLERANCE[dtype] * largest


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("build", [build for build, flags in BUILDS.items() if _differs(flags)])
def test_every_build_gives_the_same_logits(build: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds for processors with fewer instruction sets give the same logits."""
    monkeypatch.setattr(build_module, "FLAGS", [*build_module.FLAGS, *BUILDS[build]])
    model, body = _body(dtype)
    largest = float(full_logits(model, range(1, 30)).abs().max())

    if compiled_forward.load_library(dtype) is None:
        pytest.skip(f"the compiler here does not build {build}")
    assert body.compiled is not None
    assert largest_gap(model, body, 37) < TOLERANCE[dtype] * largest


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_logits_do_not_depend_on_the_rest_of_the_batch(dtype: torch.dtype, threads: int) -> None:
    """Token by token, in blocks, or beside rows at other positions: the same bits, so speculation changes no token."""
    _, body = _body(dtype)
    generator, before = torch.Generator().manual_seed(3), torch.get_num_threads()
    ids_BT = torch.randint(37, (4, 30), generator=generator)
    alone, together = CachedModel(body, 1, 30), CachedModel(body, 4, 40)
    torch.set_num_threads(threads)
    try:
        expected = torch.cat([alone.logits(ids_BT[:1, at : at + 1], [at], 1) for at in range(30)], dim=1)[0]
        for at, width in ((0, 1), (1, 2), (3, 3), (6, 1), (7, 3), (10, 2), (12, 3), (15, 2), (17, 3)):
            first = [at, at + 2 * (at > 0), at, at + (at > 3)]
            actual = together.logits(ids_BT[:, at : at + width], first, width)[0]
            assert torch.equal(expected[at : at + width], actual)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_greedy_speculation_is_bit_for_bit_plain_decoding(dtype: torch.dtype) -> None:
    """In bf16 too, where PyTorch may resolve a near-tie either way."""
    model, _ = _body(dtype)
    draft, _ = _body(dtype, num_hidden_layers=1)
    requests = ragged_requests(6)
    plain = [Decoder(model, None, sampling=GREEDY, vocabulary=37).decode([request])[0].tokens for request in requests]
    decoder = Decoder(model, PlainDraft(draft, 37), sampling=GREEDY, vocabulary=37, gamma=2)

    assert plain == [decoder.decode([request])[0].tokens for request in requests]
    if dtype == torch.float32:
        pairs = zip(requests, plain, strict=True)
        assert plain == [greedy_text(model, r.prompt, r.limit, 37, guess=tokens) for r, tokens in pairs]


UNFIT: dict[str, dict[str, Any]] = {
    "sums of another size": {"intermediate_size": 80},
    "heads of another size": {"head_dim": 24},
    "fp64": {"dtype": torch.float64},
    "fp16": {"dtype": torch.float16},
}


@pytest.mark.parametrize("case", UNFIT)
def test_unsupported_shapes_use_pytorch(case: str) -> None:
    """Sizes and dtypes that `llama_forward.c` does not support."""
    _, body = _body(**UNFIT[case])

    assert body.compiled is None


def test_a_tiny_vocabulary_uses_pytorch() -> None:
    """A vocabulary smaller than a block of outputs is not supported."""
    body = choose_forward(family_model("Llama", torch.float32, **SIZES), 12)

    assert isinstance(body, LlamaForward)
    assert body.compiled is None


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the product logs from level INFO on. pytest's own plugin for it is off: it costs every test."""
    records: list[logging.LogRecord] = []
    handler, logger = logging.Handler(), logging.getLogger("pipeline")
    handler.emit = records.append  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(before)


OBSTACLES = {
    "no compiler": ("PATH", "/nowhere", "no C compiler was found"),
    "a compiler that fails": ("CC", "false", "false ended with exit code 1"),
    "switched off": ("UNDERSTUDY_NATIVE", "0", "UNDERSTUDY_NATIVE=0 is set"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_where_nothing_can_be_built_pytorch_is_used(
    obstacle: str, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    """A machine without a compiler is normal: the logits are the same, and one line at level INFO says why."""
    name, value, reason = OBSTACLES[obstacle]
    monkeypatch.setenv(name, value)
    model, body = _body()
    _body()

    assert body.compiled is None
    assert largest_gap(model, body, 37) < 1e-4
    _assert_one_info_line(logged, reason)


@needs_compiler
def test_a_compiler_error_is_logged_by_its_first_line(tmp_path: Path, logged: list[logging.LogRecord]) -> None:
    """The same failure is logged once, without the rest of the compiler's output."""
    source = tmp_path / "source.c"
    source.write_text("#error first line\n#error second line\n")
    assert build_module.load(source) is None
    assert build_module.load(source) is None

    _assert_one_info_line(logged, "#error first line")
    assert "second line" not in logged[0].getMessage()


@needs_compiler
def test_a_library_that_may_not_be_executed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    """If cache and temporary directory are mounted noexec, PyTorch is used and one line says why."""

    def refuse(path: str) -> None:
        raise OSError("failed to map segment from shared object")

    source = tmp_path / "source.c"  # of a library that is built sooner
    source.write_text("int number(void) { return 7; }")
    monkeypatch.setattr(compiled_forward, "_SOURCE", source)
    monkeypatch.setattr(build_module.ctypes, "CDLL", refuse)
    library = compiled_forward.load_library(torch.float32)

    assert library is None
    _assert_one_info_line(logged, "failed to map segment")


@needs_compiler
def test_a_cache_that_may_not_be_executed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cache alone is mounted noexec, each process builds in the temporary directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, own = tmp_path / "source.c", build_module.ctypes.CDLL
    source.write_text("int number(void) { return 7; }")
    assert build_module.load(source) is not None

    def refuse(path: str) -> Any:
        if path.startswith(str(tmp_path)):
            raise OSError("failed to map segment from shared object")
        return own(path)

    monkeypatch.setattr(build_module.ctypes, "CDLL", refuse)
    library = build_module.load(source)

    assert library is not None
    assert 7 == library.number()


def _assert_one_info_line(logged: list[logging.LogRecord], reason: str) -> None:
    assert [logging.INFO] == [record.levelno for record in logged]
    assert reason in logged[0].getMessage()


@needs_compiler
@pytest.mark.parametrize("change", ["a field more", "another order", "another type"])
def test_a_struct_that_differs_between_c_and_python_is_an_internal_error(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field of the binding is changed: loading names the struct, before any code reads it."""
    fields = list(compiled_forward._ForwardArgs._fields_)
    if change == "a field more":
        fields.append(("more", ctypes.c_int64))
    if change == "another order":
        fields[0], fields[1] = fields[1], fields[0]
    if change == "another type":
        fields[0] = (fields[0][0], ctypes.c_int32)
    changed = type("Changed", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setitem(compiled_forward._STRUCTURES, "forward_args", changed)

    with pytest.raises(AssertionError, match="struct forward_args is not the same in C and in Python"):
        compiled_forward.load_library(torch.float32)


@needs_compiler
@pytest.mark.parametrize("factor", [1.01, torch.nan])
def test_wrong_logits_are_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that does not reproduce the model, or gives NaN for a healthy one, is not used."""
    own = CompiledForward.forward
    monkeypatch.setattr(CompiledForward, "forward", lambda *args: own(*args) * factor)
    _, body = _body()

    assert body.compiled is None


@needs_compiler
def test_what_is_out_of_range_raises() -> None:
    """An id outside the vocabulary or a slot outside the cache is an error, not a read of other memory."""
    _, body = _body()
    side = CachedModel(body, 1, 8)

    with pytest.raises(IndexError, match="no such token"):
        side.logits(torch.tensor([[40]]), [0], 1)
    with pytest.raises(IndexError, match="no such token"):
        side.logits(torch.tensor([[-1]]), [0], 1)
    with pytest.raises(IndexError, match="no such slot: 2 tokens a row from slots \\[7\\]"):
        side.logits(torch.tensor([[1, 2]]), [7], 1)
    with pytest.raises(IndexError, match="no such slot"):
        side.logits(torch.tensor([[1]]), [-1], 1)
    with pytest.raises(IndexError, match="no such slot"):
        CachedModel(body, 2, 8).logits(torch.tensor([[1], [1]]), [0, 8], 1)


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_damaged_weights_are_reported(dtype: torch.dtype, damage: float) -> None:
    """NaN and infinity reach the logits, and the decoder reports them."""
    model = family_model("Llama", dtype, **SIZES)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = damage
    decoder = Decoder(model, None, sampling=GREEDY, vocabulary=37)

    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        decoder.decode(ragged_requests(1))


def test_other_models_are_left_alone() -> None:
    """The layers of an unsupported family are not read."""
    assert isinstance(choose_forward(family_model("GPT2", torch.float32), 40), ModelForward)


@needs_compiler
def test_the_default_dtype_does_not_matter() -> None:
    """Memory for compiled code has the dtype it expects, whatever torch's default dtype is."""
    model = family_model("Llama", torch.float32, **SIZES)
    torch.set_default_dtype(torch.float64)
    try:
        body = choose_forward(model, 37)
    finally:
        torch.set_default_dtype(torch.float32)

    assert isinstance(body, LlamaForward)
    assert body.compiled is not None
    assert largest_gap(model, body, 37) < 1e-4


@pytest.mark.parametrize("inner", [32, 4096])
def test_layers_of_other_sizes_than_the_config_says_use_pytorch(inner: int) -> None:
    """A pruned model is decoded by PyTorch, because compiled code takes the sizes from the config."""
    model = family_model("Llama", torch.float32, **SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = model.model.layers[1].mlp
        mlp.gate_proj, mlp.up_proj = nn.Linear(64, inner, bias=False), nn.Linear(64, inner, bias=False)
        mlp.down_proj = nn.Linear(inner, 64, bias=False)
    body = choose_forward(model, 37)

    assert isinstance(body, LlamaForward)
    assert body.compiled is None
    assert largest_gap(model, body, 37) < 1e-4


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("build", ["as for this machine", "without tiles"])
def test_any_number_of_tokens_is_accepted(build: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass size up to two blocks of inputs gives the same bits as token by token."""
    monkeypatch.setattr(build_module, "FLAGS", [*build_module.FLAGS, *BUILDS[build]])
    _, body = _body(dtype)
    ids_BT = torch.randint(37, (1, 24), generator=torch.Generator().manual_seed(5))
    alone = CachedModel(body, 1, 24)
    expected = torch.cat([alone.logits(ids_BT[:, at : at + 1], [at], 1) for at in range(24)], dim=1)

    for count in range(1, 25):
        assert torch.equal(expected[:, :count], CachedModel(body, 1, 24).logits(ids_BT[:, :count], [0], count))


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rows_at_distant_positions_do_not_affect_each_other(dtype: torch.dtype) -> None:
    """One row is at slot 0, the other at slot 400; the buffer for scores has the size of the longer."""
    _, body = _body(dtype)
    ids_BT = torch.tensor([[3], [4]])
    expected = [CachedModel(body, 1, 401).logits(ids_BT[row : row + 1], [at], 1) for row, at in ((0, 0), (1, 400))]

    assert torch.equal(torch.cat(expected), CachedModel(body, 2, 401).logits(ids_BT, [0, 400], 1))


@needs_compiler
def test_large_scores_do_not_overflow() -> None:
    """Scores and gates are far above what exp holds in fp32."""
    model = family_model("Llama", torch.float32, **SIZES)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 300
            layer.mlp.gate_proj.weight *= 300
    body = choose_forward(model, 37)
    largest = float(full_logits(model, range(1, 30)).abs().max())

    assert isinstance(body, LlamaForward)
    assert body.compiled is not None
    assert largest_gap(model, body, 37) < 1e-4 * largest


@needs_compiler
def test_bf16_is_rounded_to_the_nearest() -> None:
    """Ties go to even, as in torch; the values in the cache show it."""
    model = family_model("Llama", torch.bfloat16, **SIZES, rms_norm_eps=1e-12)  # ones stay exactly one
    layer, step = model.model.layers[0], 2.0**-8  # half of what bf16 tells apart above 1
    wanted = torch.tensor([1 + step, 1 + 3 * step, 1 + step + 2.0**-15, -1 - 3 * step])
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(1.0)
        layer.input_layernorm.weight.fill_(1.0)
        weight = layer.self_attn.v_proj.weight.zero_()
        weight[:4, 0] = torch.tensor([1.0, 1.0, 1.0, -1.0])
        weight[:4, 1] = torch.tensor([step, 3 * step, step, -3 * step])
        weight[2, 2] = 2.0**-15
    body = choose_forward(model, 37)
    assert isinstance(body, LlamaForward)
    assert body.compiled is not None
    caches = body.allocate(1, 2)
    body.forward(torch.tensor([[1]]), [0], caches, 1)

    assert wanted.bfloat16().tolist() == caches.layers[0][0, 0, body.key_heads, :4].tolist()


@needs_compiler
def test_passes_of_many_tokens_use_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit PyTorch is as fast."""
    _, body = _body()
    assert body.compiled is not None
    most, own, fed = body.compiled.max_tokens, CompiledForward.forward, []

    def forward(model: CompiledForward, ids_BT: torch.Tensor, *rest: Any) -> torch.Tensor:
        fed.append(ids_BT.numel())
        return own(model, ids_BT, *rest)

    monkeypatch.setattr(CompiledForward, "forward", forward)
    for count in (most, most + 1):
        CachedModel(body, 1, most + 1).logits(torch.ones(1, count, dtype=torch.long), [0], 1)

    assert [most] == fed


@needs_compiler
def test_where_tiles_are_not_granted_vectors_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel or a sandbox may not grant the tile registers that the processor has."""
    commands: list[list[str]] = []

    def load(source: Path, command: list[str], structures: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(
            llama_features_granted=lambda: "-mno-amx-bf16" in command, llama_scratch_floats=SimpleNamespace()
        )

    monkeypatch.setattr(compiled_forward, "load", load)
    library = compiled_forward.load_library(torch.bfloat16)

    assert library is not None
    assert library.llama_features_granted()
    assert [False, True] == ["-mno-amx-bf16" in command for command in commands]
