"""Our requests, our stand-in and our exported start command against the source of SGLang itself.

SGLang needs a GPU, so it is not run. `make conformance` fetches its wheel, and SGLANG_SOURCE names the package in it.
"""

import ast
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.corpus.request_counts import request_counts
from pipeline.engines.counts import Counts
from pipeline.engines.facts import FACTS
from pipeline.export import for_sglang
from pipeline.export.lengths import DraftLengths
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.sglang import Sglang
from pipeline.speculation.settings import Sampling
from tests.conformance.sources import Declared, fields_of, function_of, lists_of, module_of, source, strings_of
from tests.standin_sglang import SglangStandIn
from tests.unit.export.test_export import example_plan

REQUEST = GenerateRequest(
    prompt=[20, 30], sampling=Sampling(0.7, 5, 0.9, 0.1), max_tokens=4, stop_tokens=[7], seed=1, kept=3
)
BODIES = [
    Sglang().generate(REQUEST, "target")[1],
    Sglang().score(ScoreRequest(ids=[20, 30, 40], start=1, kept=3), "target")[1],
]


@pytest.fixture(scope="module")
def sglang() -> Path:
    return source("SGLANG_SOURCE")


@pytest.fixture
def contract(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's own decoder of the bodies of requests. Of msgspec it needs a class with fields."""

    class Struct(SimpleNamespace):
        def __init_subclass__(cls, **options: Any) -> None: ...

    return module_of(sglang / "api" / "v1" / "api_types.py", monkeypatch, {"msgspec": {"Struct": Struct}})


def test_the_version_is_the_one_that_was_read(sglang: Path) -> None:
    """The table of engine facts and the stand-in name it."""
    (metadata,) = sglang.parent.glob("sglang-*.dist-info/METADATA")
    version = next(
        line.partition(": ")[2] for line in metadata.read_text().splitlines() if line.startswith("Version: ")
    )
    assert (version, version) == (FACTS["sglang"].checked, SglangStandIn().version)


@pytest.mark.parametrize("body", BODIES)
def test_its_own_decoder_takes_our_requests(contract: Any, body: dict[str, Any]) -> None:
    """Every sampling parameter is known to it, and has its type; so is every other field."""
    decoded = contract.GenerateRequest.from_json_value(body)
    assert body["input_ids"] == decoded.input_ids
    for name, value in body["sampling_params"].items():
        assert value == getattr(decoded.sampling_params, name), name
    wrong = body | {"sampling_params": {**body["sampling_params"], "top_q": 1}}
    with pytest.raises(contract.JsonContractError, match="unknown field `top_q`"):
        contract.GenerateRequest.from_json_value(wrong)


@pytest.mark.parametrize("body", BODIES)
def test_its_classes_have_our_fields(sglang: Path, body: dict[str, Any]) -> None:
    """Names of GenerateReqInput, which ignores those that it does not know, and of SamplingParams."""
    request = fields_of(sglang / "srt" / "managers" / "io_struct.py", "GenerateReqInput")
    sampling = fields_of(sglang / "srt" / "sampling" / "sampling_params.py", "SamplingParams")
    assert [] == sorted(set(body) - set(request))
    assert [] == sorted(set(body["sampling_params"]) - set(sampling))


@pytest.mark.parametrize("body", BODIES)
def test_the_stand_in_answers_with_its_names(sglang: Path, body: dict[str, Any]) -> None:
    """Every key of an answer is written by SGLang's tokenizer manager, or by its reasons to finish."""
    managers = sglang / "srt" / "managers"
    written = strings_of(managers / "tokenizer_manager.py") | strings_of(managers / "schedule_batch.py")
    answer = SglangStandIn().right_answer(body)
    keys = {*answer, *answer["meta_info"], *answer["meta_info"]["finish_reason"]}
    assert [] == sorted(keys - written)


def test_log_p_of_a_completion_is_scaled_and_that_of_a_prompt_is_not(sglang: Path) -> None:
    """The sampler divides by the temperature unless SGLANG_RETURN_ORIGINAL_LOGPROB is set; the log-probabilities of a prompt are
    computed where no temperature is known."""
    layers = sglang / "srt" / "layers"
    sampler = (layers / "sampler.py").read_text()
    assert "logits.div_(sampling_info.temperatures)" in sampler
    assert 'get_bool_env_var("SGLANG_RETURN_ORIGINAL_LOGPROB")' in sampler
    tree = ast.parse((layers / "logprob_processor.py").read_text())
    prompts = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "InputLogprobProcessor")
    assert "temperature" not in ast.unparse(prompts)


@pytest.mark.parametrize("variant", list(FACTS["sglang"].loads))
def test_the_start_command_is_one_of_its_own(sglang: Path, tmp_path: Path, variant: str) -> None:
    plan = example_plan(tmp_path, DraftLengths(4), engine="sglang", variant=variant)
    check_options(sglang, for_sglang.files(plan, cast(Any, {}))["launch.sh"])


def check_options(sglang: Path, script: str) -> None:
    """Every option that export writes is declared in its server arguments, takes a value if we give one, and takes this value."""
    groups = sglang / "srt" / "arg_groups"
    declared: dict[str, Declared] = {}
    for path in sorted((groups / "fields").glob("*.py")):
        declared |= fields_of(path)
    choices = lists_of(groups / "choices.py")
    written = _options(script)
    assert "--speculative-num-steps" in written
    for option, value in written.items():
        field = declared[option.removeprefix("--").replace("-", "_")]
        kind, allowed = _kind(field), _choices(field, choices)
        assert (kind == "bool") == (value is None), option
        if kind == "int":
            assert value == str(int(value or "")), option
        assert not allowed or value in allowed, f"{option}: {value} is none of {allowed}"


def test_standalone_is_an_algorithm_and_takes_no_sampled_draft(sglang: Path) -> None:
    """As the table of engine facts says: sampled drafts are refused for it."""
    hook = (sglang / "srt" / "arg_groups" / "speculative_hook.py").read_text()
    assert "STANDALONE" in _declared_help(sglang, "speculative_algorithm")
    assert 'cfg.speculative_algorithm not in ("EAGLE", "EAGLE3")' in hook
    assert "cfg.speculative_num_steps + 1" in hook


def test_its_counters_are_those_that_are_read(sglang: Path) -> None:
    """Names of counters, of the gauge and of labels; and its own code counts them when a request ends: generated tokens with that
    of the prefill, verifications, and the request."""
    collector, names = sglang / "srt" / "observability" / "metrics_collector.py", FACTS["sglang"].counters
    written = strings_of(collector)
    assert [] == [
        one for one in (names.drafts, names.tokens, names.requests, names.running, names.model) if one not in written
    ]
    assert names.rank in written
    counted = dict[str, float]()
    observe = function_of(collector, "observe_one_finished_request")
    observe(_Collector(counted), {}, 9, 24, 0, 1.0, False, spec_verify_ct=10)
    found = {
        name: counted[name] for name in ("generation_tokens_total", "spec_verify_calls_total", "num_requests_total")
    }
    assert {"generation_tokens_total": 24, "spec_verify_calls_total": 10, "num_requests_total": 1} == found


@pytest.mark.parametrize("form", ["meta_info", "sglext"])
def test_counts_of_a_request_are_read(sglang: Path, form: str) -> None:
    """Its own code writes the answer of a request with 10 verifications of 4 tokens (3 drafted) that accepted 13: as
    `meta_info`, and as the part of an OpenAI answer, whose fields its protocol declares."""
    srt = sglang / "srt"
    ended = SimpleNamespace(
        spec_verify_ct=[10],
        spec_num_correct_drafts=[13],
        completion_tokens=[24],
        spec_correct_drafts_histogram=[[3, 3, 2, 2]],
    )
    spec = SimpleNamespace(speculative_num_draft_tokens=4)
    write = function_of(
        srt / "managers" / "tokenizer_manager.py",
        "_calculate_spec_decoding_metrics",
        get_spec=lambda: spec,
        _ragged_verify_cap_accept=lambda: False,
    )
    meta_info: dict[str, Any] = {"completion_tokens": 24}
    write(None, meta_info, ended, 0)
    if form == "meta_info":
        answer: dict[str, Any] = {"text": "", "meta_info": meta_info}
    else:
        utils = srt / "entrypoints" / "openai" / "utils.py"
        details = function_of(utils, "spec_tokens_details_from_meta_info", SpecTokensDetails=dict)(meta_info)
        protocol = srt / "entrypoints" / "openai" / "protocol.py"
        assert set(details) <= set(fields_of(protocol, "SpecTokensDetails"))
        assert "spec_tokens_details" in fields_of(protocol, "SglExt")
        assert {"return_spec_tokens_details", "return_meta_info"} <= set(fields_of(protocol, "ChatCompletionRequest"))
        answer = {"usage": {"completion_tokens": 24}, "choices": [{}], "sglext": {"spec_tokens_details": details}}
    expected = Counts(drafts=10, draft_tokens=30, accepted=13, accepted_first=7, tokens=24)
    assert expected == request_counts({"messages": [], "response": answer})


def test_adapters_of_the_target_are_refused_beside_a_plain_draft(sglang: Path) -> None:
    """As the table of engine facts says."""
    check = function_of(
        sglang / "srt" / "arg_groups" / "lora_hook.py",
        "check_lora_speculative_compatibility",
        resolving_view=lambda given: given,
    )
    with pytest.raises(ValueError, match=r"LoRA is only compatible with .* not STANDALONE"):
        check(SimpleNamespace(speculative_algorithm="STANDALONE"))


class _Collector:
    """In place of SGLang's metrics: adds up what is counted, by the name of the metric."""

    def __init__(self, counted: dict[str, float]) -> None:
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        def add(value: float = 1) -> None:
            self._counted[name] = self._counted.get(name, 0) + value

        metric = SimpleNamespace(inc=add, observe=add)
        metric.labels = lambda **labels: metric
        return metric


def _options(script: str) -> dict[str, str | None]:
    """The options of a launch script with their values; None for one without."""
    words = shlex.split(script[script.index("exec") :].replace("\\\n", " "))
    found: dict[str, str | None] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = None if after.startswith("--") or after == "$@" else after
    return found


def _parts(field: Declared) -> list[ast.expr]:
    """Of `A[type, help]`: type and help."""
    inner = field.node.annotation
    assert isinstance(inner, ast.Subscript)
    assert isinstance(inner.slice, ast.Tuple)
    return inner.slice.elts


def _kind(field: Declared) -> str:
    return ast.unparse(_parts(field)[0]).removeprefix("Optional[").removesuffix("]")


def _choices(field: Declared, known: dict[str, list[str]]) -> list[str]:
    help_text = _parts(field)[1]
    for keyword in help_text.keywords if isinstance(help_text, ast.Call) else []:
        if keyword.arg == "choices":
            return known[keyword.value.id] if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
    return []


def _declared_help(sglang: Path, name: str) -> str:
    field = fields_of(sglang / "srt" / "arg_groups" / "fields" / "spec.py")[name]
    return ast.unparse(_parts(field)[1])
