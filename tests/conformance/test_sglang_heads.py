"""EAGLE-3 heads as they are exported, loaded and computed by SGLang's own code of the model (`models/llama_eagle3.py`)."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import LlamaConfig

from pipeline.drafts.eagle3_model import cached_pass
from pipeline.drafts.kinds import EAGLE3
from pipeline.engines.facts import FACTS
from pipeline.export import for_sglang
from pipeline.speculation.cache import RaggedCache
from tests.conformance.sglang_parts import eagle3_module
from tests.conformance.sources import function_of, source
from tests.conformance.test_sglang_source import check_options
from tests.heads import eagle3_draft, write_eagle3
from tests.unit.export.test_heads import IDS, READ, exported, head_plan, saved_target


@pytest.fixture(scope="module")
def sglang() -> Path:
    return source("SGLANG_SOURCE")


@pytest.mark.parametrize(
    "options",
    [{}, {"kept": 12}, {"fc_norm": True}, {"norm_before_fc": True, "norm_output": True}, {"layers": 2, "kept": 12}],
)
def test_its_own_model_computes_the_exported_head(
    sglang: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Each tensor is loaded once, and none of its parameters is left but the embedding, which is the target's; logits and what a
    round drafts further from are ours, and so is the map of the vocabulary."""
    module, target = eagle3_module(sglang, monkeypatch), saved_target(tmp_path / "target")
    flags: dict[str, Any] = {name: True for name in options if name not in ("kept", "layers")}
    head = write_eagle3(tmp_path / "head", draft := eagle3_draft(target, read=READ, **options), **flags)
    tensors, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    read = LlamaConfig(**config)
    model = module.LlamaForCausalLMEagle3(read)
    for one in model.parameters():
        one.data.fill_(torch.nan)
    model.load_weights(iter(tensors.items()))
    # SGLang makes an input norm for each layer, and reads that of the first.
    left = [name for name, one in model.named_parameters() if bool(one.isnan().any())]
    unread = [f"model.layers.{number}.input_layernorm.weight" for number in range(1, options.get("layers", 1))]
    assert ["model.embed_tokens.weight", *unread] == left
    model.model.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)

    ids_T, positions_T = torch.tensor(IDS), torch.arange(len(IDS))
    features = draft.states.states_at(ids_T[None], READ)
    states_TX = torch.cat([features[state][0] for state in READ], dim=-1)
    batch: Any = SimpleNamespace(mm_input_embeds=None, spec_info=SimpleNamespace(hidden_states=states_TX))
    with torch.no_grad():
        embeds = model.model.embed_tokens(ids_T)
        normed_TH, (recurrent_TH,) = model.model(ids_T, positions_T, batch, input_embeds=embeds)
        logits_TD = model.lm_head(normed_TH)[0]
        own_TH = cached_pass(draft.model, RaggedCache(1, len(IDS)), ids_T[None], draft.model.combine(features), [0])
        own_TD = draft.model.logits(own_TH)[0]
    torch.testing.assert_close(logits_TD, own_TD, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(recurrent_TH, own_TH[0], rtol=1e-4, atol=1e-5)
    if "kept" in options:
        assert draft.model.targets_D is not None
        assert torch.equal(draft.model.targets_D, model.hot_token_id)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_captured_layers_are_those_that_the_head_reads(sglang: Path, tmp_path: Path, family: str) -> None:
    """It adds 1 to what the config states, and captures what a layer is given: the hidden state of that number. Without layer
    ids it takes those that we take."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    _, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    capture = function_of(sglang / "srt" / "models" / f"{family}.py", "set_eagle3_layers_to_capture")
    engine = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=12),
        model=SimpleNamespace(),
    )
    capture(engine, config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    assert list(READ) == engine.model.layers_to_capture
    capture(engine)
    assert [2, 6, 9] == engine.model.layers_to_capture
    text = (sglang / "srt" / "models" / "llama.py").read_text()
    assert (
        "if i in self.layers_to_capture" in text
    )  # of the layers 0 to n - 1, of which none is given the last one's output


def test_the_start_command_is_one_of_its_own(sglang: Path, tmp_path: Path) -> None:
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    check_options(sglang, for_sglang.files(head_plan(tmp_path, head, EAGLE3, "sglang"), cast(Any, {}))["launch.sh"])


def test_draft_tokens_are_sampled_at_the_temperature_alone(sglang: Path, tmp_path: Path) -> None:
    """q is the softmax of the logits over the temperature, as in the examination: its own code gives it to the verification. The
    option takes no value, and is refused where the vocabularies differ."""
    speculative = sglang / "srt" / "speculative"
    scaled = function_of(
        speculative / "spec_utils.py",
        "renorm_draft_probs",
        sampling_softmax=lambda logits, temperatures=1.0: (logits / temperatures).softmax(-1),
    )
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(2))
    settings = SimpleNamespace(temperatures=torch.tensor([[0.5], [2.0]]), top_ks=torch.tensor([1, 3]))
    torch.testing.assert_close((logits / settings.temperatures).softmax(-1), scaled(logits, settings, True))
    assert "draft_probs=probs if use_rejection_sampling else None" in (speculative / "eagle_worker_v2.py").read_text()
    assert "if draft_vocab_size != target_vocab_size" in (speculative / "eagle_worker_v2.py").read_text()
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    plan = dataclasses.replace(head_plan(tmp_path, head, EAGLE3, "sglang"), drafting="probabilistic")
    script = for_sglang.files(plan, cast(Any, {}))["launch.sh"]
    assert "--speculative-use-rejection-sampling" in script
    check_options(sglang, script)


def test_the_width_of_the_states_is_that_of_the_target(sglang: Path, tmp_path: Path) -> None:
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    _, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    width = function_of(sglang / "srt" / "speculative" / "eagle_utils.py", "get_draft_input_from_target_hidden_dim")
    runner = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=LlamaConfig(**config), hidden_size=1),
        spec_algorithm=SimpleNamespace(is_eagle3=lambda: True),
    )
    assert 3 * 32 == width(runner)


def test_the_facts_are_in_its_source(sglang: Path) -> None:
    """The algorithm; that the target's embedding takes the place of a head's of the same width; that the states before the norm
    are in the residual stream, always."""
    srt = sglang / "srt"
    assert f"{FACTS['sglang'].methods['eagle3']} = auto()" in (srt / "speculative" / "spec_info.py").read_text()
    assert "self.config.target_hidden_size != self.config.hidden_size" in (srt / "models" / "llama.py").read_text()
    model = (srt / "models" / "llama_eagle3.py").read_text()
    assert "norm_before_residual" not in model
    assert "q_norm" not in model
