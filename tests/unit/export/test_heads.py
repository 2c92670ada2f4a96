"""Heads in the layouts that SGLang, TensorRT-LLM and TGI read: each tensor that their loaders take is there, and no other; the
numbers are those of the stored head; what an engine does not compute is refused."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.drafts.head_config import kind_of, read_eagle3
from pipeline.drafts.kinds import EAGLE3, KINDS, MEDUSA, Kind
from pipeline.drafts.loading import load_head
from pipeline.engines.facts import FACTS
from pipeline.engines.heads import why_unserved
from pipeline.errors import UsageError
from pipeline.export import for_sglang, for_tensorrt, for_tgi
from pipeline.export.checks import require_loadable
from pipeline.export.expected import _drafts_as
from pipeline.export.head_files import write_head
from pipeline.export.lengths import DraftLengths
from pipeline.export.plan import ExportPlan, plan_export
from pipeline.export.target import states_read
from pipeline.speculation.target_states import TargetStates
from tests.fakes import tiny_llama, tiny_tokenizer
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa

READ = (1, 2, 3)  # of the target's five hidden states
IDS = [3, 8, 1, 9, 4, 6]
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EVERYWHERE = {
    *(f"self_attn.{name}.weight" for name in ATTENTION),
    *(f"mlp.{name}.weight" for name in MLP),
    *("hidden_norm.weight", "post_attention_layernorm.weight"),
}


def saved_target(place: Path) -> Any:
    """Of four layers, in float32, with its tokenizer."""
    target = tiny_llama(hidden=32, layers=4, dtype=torch.float32)
    target.save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return target


def test_sglang_samples_a_head_at_the_temperature_alone() -> None:
    """By which its counters are predicted; of a model it does not."""
    head, model = (cast(Any, SimpleNamespace(kind=kind)) for kind in (EAGLE3, KINDS["plain"]))
    assert ("vllm", "user") == (_drafts_as(head, FACTS["sglang"]), _drafts_as(model, FACTS["sglang"]))
    assert "vllm" == _drafts_as(model, FACTS["vllm"])


def test_an_embedding_of_its_own_is_known_and_refused_where_engines_replace_it() -> None:
    target = tiny_llama(hidden=32, layers=4, dtype=torch.float32)
    draft = eagle3_draft(target)
    assert () == draft.own_traits
    draft.model.embed_tokens.weight.data[3] += 1
    assert ("own_embedding",) == draft.own_traits
    assert "without embed_tokens.weight in its files" in str(why_unserved("sglang", "eagle3", ["own_embedding"]))
    assert why_unserved("vllm", "eagle3", ["own_embedding"]) is None


def head_plan(
    place: Path, head: Path, kind: Kind, engine: Any, gamma: int = 2, hub: bool = False, states: tuple[int, ...] = ()
) -> ExportPlan:
    """An export of the head in `head`, of the target in `place / "target"`, which may be called one of the hub."""
    source = SimpleNamespace(is_hub=hub, is_served=False, source="org/model", revision="c" * 40 if hub else None)
    pair = SimpleNamespace(
        path=lambda role: place / "target",
        dtype=lambda role: "float32",
        facts={"target": {"source": "org/model", "revision": None, "digest": "d", "logits_width": 32}},
        tokenizer=place / "target",
    )
    settings = SimpleNamespace(
        pair=SimpleNamespace(target=source, trust_remote_code=False, draft=SimpleNamespace(dtype="bfloat16")),
        gate=SimpleNamespace(load=None, profile={}),
        evaluate=SimpleNamespace(gamma=gamma, max_gamma=8, draft_sampling="greedy"),
        sampling=SimpleNamespace(temperature=0.0, min_p=0.0),
    )
    draft: Any = SimpleNamespace(
        directory=head,
        kind=kind,
        pair=pair,
        config=settings,
        variant="unquantized",
        label="head",
        record=SimpleNamespace(decision=None),
        given=None,
    )
    return ExportPlan(
        draft=draft,
        engine=engine,
        out=place / "out",
        tensor_parallel=1,
        lengths=DraftLengths(gamma),
        drafting="greedy",
        notes=(),
        states=states or (states_read(draft) if kind == EAGLE3 else ()),
    )


def exported(plan: ExportPlan, out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the config that were written, as they are read back."""
    out.mkdir()
    write_head(plan, out)
    (weights,) = out.glob("*.safetensors")
    return load_file(weights), json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, set()),
        ({"kept": 12}, {"d2t"}),
        ({"fc_norm": True}, {f"fc_norm.{number}.weight" for number in range(3)}),
        ({"norm_before_fc": True, "norm_output": True}, {"input_norm.weight"}),
    ],
)
def test_a_head_of_one_layer_is_the_midlayer(
    tmp_path: Path, engine: str, options: dict[str, Any], more: set[str]
) -> None:
    """All tensors of the loaders, and none else: no embedding, which is the target's, and no `t2d`."""
    target = saved_target(tmp_path / "target")
    flags = {name: True for name in options if name != "kept"}
    head = write_eagle3(tmp_path / "head", draft := eagle3_draft(target, read=READ, **options), **flags)
    tensors, config = exported(head_plan(tmp_path, head, EAGLE3, engine), tmp_path / "out")
    of_layer = {f"midlayer.{name}" for name in EVERYWHERE | {"input_layernorm.weight"}}
    assert {"fc.weight", "norm.weight", "lm_head.weight", *of_layer, *more} == set(tensors)
    kept, hidden = options.get("kept", 32), 32
    assert [(kept, hidden), (hidden, 3 * hidden), (4 * 32, 2 * hidden), (2 * 32, 2 * hidden)] == [
        tuple(tensors[f"{name}.weight"].shape)
        for name in ("lm_head", "fc", "midlayer.self_attn.q_proj", "midlayer.self_attn.k_proj")
    ]
    assert (["LlamaForCausalLMEagle3"], "llama", 32, kept, hidden, "float32") == tuple(
        config[name]
        for name in (
            *("architectures", "model_type", "vocab_size"),
            *("draft_vocab_size", "target_hidden_size", "torch_dtype"),
        )
    )
    assert {
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "use_aux_hidden_state": True,
        "norm_before_fc": "norm_before_fc" in options,
    } == config["eagle_config"]
    assert str(tmp_path) not in json.dumps(config)
    if "kept" in options:
        assert torch.equal(draft.model.targets_D, tensors["d2t"] + torch.arange(kept))


def test_the_exported_head_computes_what_the_stored_one_does(tmp_path: Path) -> None:
    """Read here in EAGLE's layout, with the states by the numbers of vLLM: the same logits at every place of a block.

    To rounding: on some processors a product depends on where in memory a file's weights lie.
    """
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", draft := eagle3_draft(target, read=READ, kept=12))
    _, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    section = config["eagle_config"] | {"eagle_aux_hidden_state_layer_ids": list(READ)}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"eagle_config": section}))
    read = load_head(kind_of(tmp_path / "out"), tmp_path / "out", TargetStates(target), 32)
    for known in (4, 5):
        torch.testing.assert_close(draft.logits_after(IDS, known), read.logits_after(IDS, known), rtol=1e-5, atol=1e-6)


def test_further_layers_have_their_input_norm_under_another_name(tmp_path: Path) -> None:
    """`hidden_norm`, as both engines call it; their input_layernorm is the embedding's, which only the first layer reads."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", draft := eagle3_draft(target, layers=2, read=READ))
    tensors, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    first = {f"layers.0.{name}" for name in EVERYWHERE | {"input_layernorm.weight"}}
    second = {f"layers.1.{name}" for name in EVERYWHERE}
    assert {"fc.weight", "norm.weight", "lm_head.weight"} | first | second == set(tensors)
    assert 2 == config["num_hidden_layers"]
    assert torch.equal(draft.model.layers[1].input_layernorm.weight, tensors["layers.1.hidden_norm.weight"])  # type: ignore[union-attr, arg-type]


def test_a_whole_vocabulary_in_another_order_needs_no_map(tmp_path: Path) -> None:
    """Engines read one only where the head has a part of it: the rows of the output layer are put in the target's order."""
    target = saved_target(tmp_path / "target")
    draft = eagle3_draft(target, read=READ)
    head = write_eagle3(tmp_path / "head", draft)
    stored, order = (
        load_file(head / "model.safetensors"),
        torch.randperm(32, generator=torch.Generator().manual_seed(1)),
    )
    moved = stored["lm_head.weight"][order].contiguous()
    save_file(stored | {"d2t": order - torch.arange(32), "lm_head.weight": moved}, head / "model.safetensors")
    tensors, _ = exported(head_plan(tmp_path, head, EAGLE3, "tensorrt-llm"), tmp_path / "out")
    assert "d2t" not in tensors
    assert torch.equal(stored["lm_head.weight"], tensors["lm_head.weight"])


def test_an_output_layer_of_the_target_is_said(tmp_path: Path) -> None:
    """By SGLang's sign for it: no size of the draft's vocabulary."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    stored = load_file(head / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, head / "model.safetensors")
    tensors, config = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    assert "lm_head.weight" not in tensors
    assert config["draft_vocab_size"] is None


def test_an_embedding_of_its_own_is_refused(tmp_path: Path) -> None:
    """Both engines would replace it."""
    target = saved_target(tmp_path / "target")
    draft = eagle3_draft(target, read=READ)
    draft.model.embed_tokens.weight.data[3, 0] += 1
    head = write_eagle3(tmp_path / "head", draft)
    with pytest.raises(UsageError, match=r"an embedding of its own, .* export it for vLLM"):
        exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")


def test_another_base_of_the_rotary_embedding_is_kept(tmp_path: Path) -> None:
    """In the form that every version of transformers reads."""
    from transformers import LlamaConfig

    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    config = json.loads((head / "config.json").read_text())
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7e5}
    config["transformer_layer_config"]["rope_parameters"] = scaled
    (head / "config.json").write_text(json.dumps(config))
    _, written = exported(head_plan(tmp_path, head, EAGLE3, "sglang"), tmp_path / "out")
    assert (7e5, {"rope_type": "linear", "factor": 2.0}) == (written["rope_theta"], written["rope_scaling"])
    assert scaled == LlamaConfig(**written).rope_parameters


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("options", "changes", "complaint"),
    [
        (
            {},
            {"norm_before_residual": True},
            r"the normed states in its residual stream .* pair.draft.head.layer = eagle",
        ),
        ({"kind": "qwen3"}, {}, r"layers of Qwen3 \(q_norm, k_norm\); choose vllm"),
        ({"window": 4}, {}, "attention windows in its layers"),
        ({"read": (0, 1, 2)}, {}, "the target's embedding among the states"),
        ({"read": (1, 2, 4)}, {}, "the output of the target's last layer among the states"),
    ],
)
def test_what_an_engine_does_not_compute_is_refused(
    tmp_path: Path, engine: str, options: dict[str, Any], changes: dict[str, Any], complaint: str
) -> None:
    """In one line, with an engine that computes it; vLLM does."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, **({"read": READ} | options)), **changes)
    if "window" in options:
        config = json.loads((head / "config.json").read_text())
        config["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 4}
        (head / "config.json").write_text(json.dumps(config))
    draft = head_plan(tmp_path, head, EAGLE3, engine).draft
    with pytest.raises(UsageError, match=complaint) as raised:
        require_loadable(draft, engine, 1)
    assert 1 == len(str(raised.value).splitlines())
    require_loadable(draft, "vllm", 1)


@pytest.mark.parametrize(
    ("engine", "kind", "complaint"),
    [
        ("tensorrt-llm", "medusa", r"TensorRT-LLM \(its TensorRT backend, .* removed .*; choose one of vllm, tgi"),
        ("sglang", "medusa", "not exported for SGLang; choose one of vllm, tgi"),
        ("tgi", "eagle3", r"TGI \(it serves no EAGLE-3 head, .*; choose one of vllm, sglang, tensorrt-llm"),
        ("tgi", "plain", r"TGI \(it serves no draft model, .*; choose one of vllm, sglang, tensorrt-llm, llama.cpp"),
        ("llama.cpp", "eagle3", "not exported for llama.cpp; choose one of vllm"),
    ],
)
def test_a_kind_that_is_not_served_says_by_whom_it_is(engine: str, kind: Any, complaint: str) -> None:
    assert re.search(complaint, why_unserved(engine, kind) or "")


def test_every_served_head_has_a_layout() -> None:
    """And a name where the start command of the engine has one."""
    for facts in FACTS.values():
        assert {kind for kind in facts.serving if KINDS[kind].reads_states} == set(facts.heads)
        assert not facts.methods or set(facts.serving) == set(facts.methods)


@pytest.mark.parametrize(
    ("engine", "kept", "temperature", "drafting"),
    [
        ("sglang", None, 1.0, "probabilistic"),
        ("sglang", 12, 1.0, "greedy"),
        ("sglang", None, 0.0, "greedy"),
        ("tensorrt-llm", None, 1.0, "greedy"),
    ],
)
def test_sglang_samples_the_draft_of_a_whole_vocabulary(
    tmp_path: Path, engine: Any, kept: int | None, temperature: float, drafting: str
) -> None:
    """As it was examined, by an option that SGLang refuses with a part of it; else greedily, which is said."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ, kept=kept))
    draft: Any = head_plan(tmp_path, head, EAGLE3, engine).draft
    draft.config.evaluate.draft_sampling, draft.config.sampling.temperature = "probabilistic", temperature
    plan = plan_export(draft, engine, tmp_path / "out")
    assert drafting == plan.drafting
    assert (drafting == "greedy" and temperature > 0) == any("drafts greedily" in note for note in plan.notes)
    if engine == "sglang":
        script = for_sglang.files(plan, cast(Any, {}))["launch.sh"]
        assert (drafting == "probabilistic") == ("--speculative-use-rejection-sampling" in script)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_medusa_heads_are_those_that_tgi_reads(tmp_path: Path, layers: int, bias: bool) -> None:
    """Every block with a bias, an output layer each, and a config without architectures, which would be another kind there."""
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", draft := medusa_draft(target, heads=3, layers=layers))
    if bias:
        stored = load_file(head / "model.safetensors")
        names = [name for name in stored if ".linear." in name]
        more = {name.replace("weight", "bias"): torch.full((32,), 0.5) for name in names}
        save_file(stored | more, head / "model.safetensors")
        config = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps(config | {"medusa_fc_bias": True}))
    tensors, config = exported(head_plan(tmp_path, head, MEDUSA, "tgi", hub=True), tmp_path / "out")
    blocks = {f"{place}.{layer}.linear" for place in range(3) for layer in range(layers)}
    outputs = {f"{place}.{layers}.weight" for place in range(3)}
    assert {f"{block}.{part}" for block in blocks for part in ("weight", "bias")} | outputs == set(tensors)
    assert {"medusa_num_heads": 3, "medusa_num_layers": layers, "base_model_name_or_path": "org/model"} == config
    assert [0.5 if bias else 0.0] * 3 == [float(tensors[f"{place}.0.linear.bias"].max()) for place in range(3)]
    for place in range(3):
        assert torch.equal(draft.model.lm_heads[place].weight, tensors[f"{place}.{layers}.weight"])  # type: ignore[arg-type]
    assert (tmp_path / "out" / "tokenizer.json").is_file()  # TGI's router reads it beside the heads


def test_one_output_layer_is_copied_for_every_head(tmp_path: Path) -> None:
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target, heads=2), original_lm_head=True)
    stored = load_file(head / "model.safetensors")
    one = {name: tensor for name, tensor in stored.items() if not name.startswith("medusa_heads.1.1.")}
    one["lm_heads.0.weight"] = one.pop("medusa_heads.0.1.weight")
    save_file(one, head / "model.safetensors")
    tensors, _ = exported(head_plan(tmp_path, head, MEDUSA, "tgi"), tmp_path / "out")
    assert torch.equal(tensors["0.1.weight"], tensors["1.1.weight"])


def test_medusa_heads_with_a_part_of_the_vocabulary_are_refused(tmp_path: Path) -> None:
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target), truncated_vocab_size=8)
    with pytest.raises(UsageError, match=r"TGI computes no medusa head with a part of the vocabulary .*; choose vllm"):
        require_loadable(head_plan(tmp_path, head, MEDUSA, "tgi").draft, "tgi", 1)


@pytest.mark.parametrize("hub", [True, False])
def test_tgi_is_started_with_the_heads(tmp_path: Path, hub: bool) -> None:
    """The target on the hub is named in their config; one in a directory is linked beside the script: no path is in it."""
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target))
    plan = head_plan(tmp_path, head, MEDUSA, "tgi", hub=hub)
    script, base = for_tgi.files(plan, cast(Any, {}))["launch.sh"], for_tgi.base_model(plan.draft)
    assert ("org/model" if hub else "target") == base
    assert f"text-generation-server download-weights {base} || exit 1" in script
    assert ("ln -sfn" in script) == ("TARGET names another target" in script) == (not hub)
    words = script[script.index("exec") :].replace("\\\n", " ").split()
    assert ["text-generation-launcher", "--model-id", "./draft", "--speculate", "2"] == words[1:6]


def test_sglang_and_tensorrt_are_told_the_kind(tmp_path: Path) -> None:
    """The algorithm, the dtype of both, a chain, and which layers are captured: those that the states leave."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    script = for_sglang.files(head_plan(tmp_path, head, EAGLE3, "sglang"), cast(Any, {}))["launch.sh"]
    for option in ("algorithm EAGLE3", "num-steps 2", "eagle-topk 1", "num-draft-tokens 3"):
        assert f"--speculative-{option} " in script
    assert "--dtype float32" in script
    options = for_tensorrt.llm_options(head_plan(tmp_path, head, EAGLE3, "tensorrt-llm"))
    assert {
        "decoding_type": "Eagle3",
        "speculative_model": str(tmp_path / "out" / "draft"),
        "max_draft_len": 2,
        "eagle3_layers_to_capture": [0, 1, 2],
    } == options["speculative_config"]
    assert "disable_overlap_scheduler" not in options


def test_a_plan_knows_the_states_and_says_what_tgi_loads(tmp_path: Path) -> None:
    """States that a head does not state are those that engines give it, of a target deep enough."""
    target = saved_target(tmp_path / "target")
    head = write_eagle3(tmp_path / "head", eagle3_draft(target, read=READ))
    draft = head_plan(tmp_path, head, EAGLE3, "sglang").draft
    assert READ == plan_export(draft, "sglang", tmp_path / "out").states
    assert () == plan_export(draft, "vllm", tmp_path / "out").states
    assert plan_export(draft, "vllm", tmp_path / "out").keeps_layout
    assert not plan_export(draft, "sglang", tmp_path / "out").keeps_layout
    heads = write_medusa(tmp_path / "heads", medusa_draft(target))
    plan = plan_export(head_plan(tmp_path, heads, MEDUSA, "tgi", hub=True).draft, "tgi", tmp_path / "out")
    assert [f"TGI loads the target's revision main, and the draft was examined with {'c' * 40}"] == list(plan.notes)


def test_an_untrained_head_of_eagles_layer_is_served_by_all(tmp_path: Path) -> None:
    """And one of speculators' layer by vLLM: of a Qwen3 target it has norms of queries and keys."""
    from pipeline.config.pair import HeadShape
    from pipeline.drafts.made_heads import new_head, save_head
    from tests.fakes import family_model

    target = family_model("Qwen3", torch.float32, vocab_size=32, hidden_size=32, num_hidden_layers=4)
    for layer, model_type, before in (("eagle", "llama", False), ("speculators", "qwen3", True)):
        shape = HeadShape(kind="eagle3", layer=layer, layer_ids=READ)  # type: ignore[arg-type]
        save_head(new_head(target, shape, 0), tmp_path / layer)
        head = read_eagle3(tmp_path / layer)
        assert (model_type, before) == (head.layer["model_type"], head.norm_before_residual)
        assert (before,) == (bool(shape.traits),)
        assert before == (why_unserved("sglang", "eagle3", shape.traits) is not None)


def test_the_start_script_of_tgi_links_a_target_in_a_directory(tmp_path: Path) -> None:
    """It downloads by the name in the heads' config, and starts beside them; a directory `target` that is there is kept."""
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target))
    plan, place, bins = head_plan(tmp_path, head, MEDUSA, "tgi"), tmp_path / "moved", tmp_path / "bin"
    plan.draft.pair.facts["target"]["source"] = str(tmp_path / "target")
    for directory in (place, bins):
        directory.mkdir()
    (place / "launch.sh").write_text(for_tgi.files(plan, cast(Any, {}))["launch.sh"])
    for name in ("text-generation-server", "text-generation-launcher"):
        (bins / name).write_text('#!/bin/sh\necho "$PWD" "$@"\n')
        (bins / name).chmod(0o755)
    for linked in (tmp_path / "target", tmp_path / "head"):
        environment = {"PATH": f"{bins}:/usr/bin:/bin", "TARGET": str(linked)}
        run = subprocess.run(
            ["sh", place / "launch.sh", "--port", "1"], capture_output=True, text=True, check=True, env=environment
        )
        assert [f"{place} download-weights target", f"{place} --model-id ./draft --speculate 2 --port 1"] == (
            run.stdout.splitlines()
        )
        assert linked == (place / "target").resolve()
