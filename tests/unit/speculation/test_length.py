"""Models that change with the length of a text: no row's logits depend on the rows beside it, or the model is refused."""

from typing import Any

import pytest
import torch
from transformers import Ministral3Config, Ministral3ForCausalLM

from pipeline.errors import UsageError
from pipeline.models.fixed_rope import fix_rope, note_on_rope
from pipeline.speculation.batch import Request
from pipeline.speculation.choice import proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.length_numbers import short_lengths
from pipeline.speculation.proof import plain_pass, short_windows
from pipeline.speculation.settings import GREEDY
from tests.architectures import LLAMA_4, VOCABULARY, tiny_model

FACTORS = {"short_factor": [1.0] * 4, "long_factor": [1.0 + 8 * number for number in range(4)]}


def _longrope(context: int = 96, original: int = 32) -> Any:
    scaling = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": original, **FACTORS}
    return tiny_model(
        "Phi 3",
        max_position_embeddings=context,
        original_max_position_embeddings=original,
        sliding_window=None,
        rope_parameters=scaling,
    )


def _rows(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_row_has_its_own_logits_beside_longer_ones(kind: str) -> None:
    """Rows on both sides of the length at which RoPE changes, decoded together and alone: the same texts, and the log p of the
    model's own passes over each."""
    model = _longrope()
    if kind == "dynamic":
        scaling = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
        model = tiny_model("Llama", max_position_embeddings=96, rope_parameters=scaling)
    prompts, found = _rows(5, 28, 45), dict[int, list[float]]()

    def observe(done: Any) -> None:
        for at, (number, tokens) in enumerate(zip(done.numbers, done.emitted, strict=True)):
            logits = done.logits_BTV[at].log_softmax(-1)
            found.setdefault(number, []).extend(float(logits[place, token]) for place, token in enumerate(tokens))

    decoder = Decoder(model, None, sampling=GREEDY, vocabulary=VOCABULARY)
    texts = [done.tokens for done in decoder.decode([Request(prompt, 8, 0) for prompt in prompts], observe)]
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        assert text == next(iter(decoder.decode([Request(prompt, 8, 0)]))).tokens
        with torch.inference_mode():
            own_TV = plain_pass(model, [prompt + text[:-1]], VOCABULARY)[0, len(prompt) - 1 :].log_softmax(-1)
        expected = [float(own_TV[place, token]) for place, token in enumerate(text)]
        torch.testing.assert_close(torch.tensor(found[number]), torch.tensor(expected), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("context", "factors"), [(96, "long_factor"), (32, "short_factor")])
def test_the_factors_are_those_of_the_longest_text_that_is_served(context: int, factors: str) -> None:
    """As vLLM chooses them, once for all texts; and said."""
    model = _longrope(context)
    fix_rope(model)
    model(input_ids=torch.tensor(_rows(40 if context > 40 else 20)))
    model(input_ids=torch.tensor(_rows(3)))
    base_F = 10_000.0 ** -(torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, base_F / torch.tensor(FACTORS[factors]))
    assert f"the {factors.removesuffix('_factor')} ones are used" in str(note_on_rope(model.config, "pair.draft"))


def _changing(model: Any, limit: int) -> Any:
    """Code of a model's own: its embeddings change with the longest row of a pass."""
    rotary = model.model.rotary_emb
    rotary.original_max_position_embeddings, own = limit, rotary.forward

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        cos, sin = own(x, position_ids)
        longer = int(position_ids.max()) >= rotary.original_max_position_embeddings
        return own(x, position_ids // 2) if longer else (cos, sin)

    rotary.forward = forward
    return model


def test_a_model_that_changes_with_the_longest_row_is_refused() -> None:
    """The number is 4,096 in the model's own code: rows of the proof stand on both sides of it, without being so long."""
    model = _changing(tiny_model("Llama", max_position_embeddings=8192), 4096)
    with short_lengths(model, VOCABULARY) as names:
        assert ["original_max_position_embeddings"] == names
    with pytest.raises(UsageError, match="its logits of padded rows differ"):
        proved_way(model, VOCABULARY)
    assert 4096 == model.model.rotary_emb.original_max_position_embeddings


def test_a_number_that_changes_nothing_is_left() -> None:
    """Llama 3 names the context before its RoPE was scaled, and computes the frequencies once."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = tiny_model("Llama", rope_parameters=scaling)
    with short_lengths(model, VOCABULARY) as names:
        assert [] == names
    assert note_on_rope(model.config, "pair.target") is None


def test_attention_that_is_scaled_by_the_length_goes_one_row_at_a_time() -> None:
    """Llama 4 scales it from 8,192 tokens on, by positions that it counts from the cache and not from the row. That it is so in
    fp32 is shown in test_proof."""
    assert LLAMA_4 == proved_way(tiny_model("Llama 4", torch.bfloat16), VOCABULARY)


def test_passes_that_differ_by_rounding_are_not_a_change() -> None:
    """A GPU that adds in any order: Llama 3, whose number changes nothing, stays in batches; a window that matters is seen."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def inexact(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output + 1e-6 * torch.randn(output.shape, generator=generator)

    for family, changed in (({"rope_parameters": scaling}, "Llama"), ({"sliding_window": 12}, "Mistral")):
        model = tiny_model(changed, **family)
        model.lm_head.register_forward_hook(inexact)
        with short_lengths(model, VOCABULARY) as names, short_windows(model, VOCABULARY):
            assert [] == names
            assert getattr(model.config, "sliding_window", None) in (None, 8)
            number = model.config.rope_parameters.get("original_max_position_embeddings")
            assert number in (None, 64)


@pytest.mark.parametrize("context", [64, 512])
def test_no_position_behind_the_context_is_asked(context: int) -> None:
    """A learnt table ends there, and a GPU that reads behind it is lost for the process."""
    model, asked = _ministral(torch.float32, context), list[int]()

    def see(_: Any, __: Any, given: dict[str, Any]) -> None:
        if given.get("position_ids") is not None:
            asked.append(int(given["position_ids"].max()))

    model.register_forward_pre_hook(see, with_kwargs=True)
    with short_lengths(model, VOCABULARY) as names:
        assert [] == names
    assert context - 1 == max(asked)


def test_code_of_a_model_is_not_asked_for_later_positions() -> None:
    """Its tables may have any size: such a model goes one row at a time."""
    model = _ministral(torch.float32, 512)
    model.__class__ = type("Own", (type(model),), {"__module__": "transformers_modules.x"})
    with short_lengths(model, VOCABULARY) as names:
        assert ["original_max_position_embeddings"] == names


def _ministral(dtype: torch.dtype, context: int) -> Any:
    """Attention is scaled by the positions that the model is told."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Ministral3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=context, initializer_range=0.2,
        )  # fmt: skip
        return Ministral3ForCausalLM(config).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_scale_by_the_rows_own_positions_is_right_in_a_batch(dtype: torch.dtype) -> None:
    """Ministral 3 has the same scale, by positions that it is told."""
    model = _ministral(dtype, 8192)
    with short_lengths(model, VOCABULARY) as names:
        assert 16 == model.config.rope_parameters["original_max_position_embeddings"]
        assert [] == names
    assert "batch" == proved_way(model, VOCABULARY)
