"""Files that users write, damaged by hypothesis: whatever comes, it is read or refused in plain lines, soon.

`make test` tries FEW of each kind, always the same. `make fuzz` tries FUZZ_INPUTS, new ones each time, `make test-long` a tenth.
"""

import gzip
import hashlib
import json
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.acceptance.baseline import baseline_json, read_baseline
from pipeline.acceptance.profile import counts_json
from pipeline.acceptance.profile_file import ProfileWithCounts, read_examination
from pipeline.acceptance.schema import read_profile
from pipeline.config.corpus import PromptSource
from pipeline.config.loading import load_config, parse_config
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.request_counts import request_counts
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.corpus.template_names import TemplateNames
from pipeline.corpus.traces import MessageTraces
from pipeline.judgement.decision_file import read_decision, recorded_decision
from pipeline.judgement.schema import FILE, brief
from pipeline.latency.costs.columns import COLUMNS
from pipeline.latency.costs.fit import Experts
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import fitted_costs_from_json
from pipeline.latency.costs.measurements import MOST_GAMMA, Measurement, read_measurements
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.costs.tool_results import TOOLS
from pipeline.latency.load.workload import read_workload
from pipeline.store.artifacts import MANIFEST, Store
from pipeline.store.files import canonical_json, read_user_json
from pipeline.store.runs import find_built, list_runs, require_run
from tests.damage import json_text, read_or_refused
from tests.decisions import make_decision
from tests.profiles import profile_json
from tests.strategies import (
    csv_text,
    damaged,
    json_files,
    json_values,
    mutated,
    parquet_file,
    yaml_text,
)
from tests.unit.corpus.test_answer_forms import FORMS
from tests.unit.latency.load.test_workload import BASELINE, COUNTS, PROFILE

FEW = 25
INPUTS = int(os.environ.get("FUZZ_INPUTS", FEW))

fuzzed = settings(
    max_examples=INPUTS,
    derandomize=INPUTS <= FEW,
    database=None,
    print_blob=True,
    deadline=None,  # `read_or_refused` stops what hangs
    suppress_health_check=list(HealthCheck),
)

VLLM: dict[str, Any] = {
    "completed": 10, "total_output_tokens": 500, "total_input_tokens": 300, "duration": 9.5, "max_concurrency": 4,
    "request_rate": "inf", "request_throughput": 1.1, "output_throughput": 52.0, "mean_ttft_ms": 30.0, "mean_tpot_ms": 20.0,
    "mean_e2el_ms": 900.0, "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.2,
}  # fmt: skip


def _nested(paths: list[str]) -> dict[str, Any]:
    """A document that has a number at each path."""
    found: dict[str, Any] = {}
    for path in paths:
        *keys, last = path.split(".")
        place = found
        for key in keys:
            place = place.setdefault(key, {})
        place[last] = 2.5
    return found


NESTED = [_nested(" ".join((*tool.columns.values(), *tool.requests[:1])).split()) for tool in TOOLS.values()]
TABLE = b"users,k,mean_acceptance_length,tpot_p50_ms,ttft_p50_ms\n1,0,1.0,21,30\n4,2,2.2,11,30\n"
COLUMN_NAMES = [name for names in COLUMNS.values() for name in names]
ROWS: list[Any] = [
    {"prompt": "def main():", "domain": "code", "group": 7, "tools": [{"type": "function", "function": {"name": "f"}}]},
    {"messages": [{"role": role, "content": "Why?"} for role in ("system", "user", "assistant", "tool", "user")]},
    {"turns": ["One question", "and another"], "tools": '[{"type": "function"}]'},
]
FOREIGN_ROWS: list[Any] = [
    {"conversations": [{"from": one, "value": "Why?"} for one in ("system", "human", "gpt", "function_call", "human")]},
    {"instruction": "Translate.", "input": "Ja", "output": "Yes"},
    {"request": {"messages": [{"role": "user", "content": "Why?"}], "tools": []}, "response": "a", "created": 1.7e9},
    {
        "request": {
            "messages": [
                {"role": "bot", "content": None},
                {"role": "user", "content": [{"type": "text", "text": "Why?"}] * 2},
            ],
            "reasoning_effort": "low",
            "documents": [{"text": "a"}],
            "system": "Be brief.",
            "tools": [{"name": "f"}, {"name": "g"}],
            "tool_choice": {"type": "function"},
            "truncate_prompt_tokens": 9,
            "add_special_tokens": False,
            "reasoning": {},
            "x": 1,
        }
    },
    {"input": "Why?", "instructions": "Be brief.", "reasoning": {"effort": "low"}, "continue_final_message": False},
]
LOGGED = [{"answer": given, "finish_reason": None, "usage": {"completion_tokens": 2}} for given, _ in FORMS.values()]
EXAMINATION = json.loads(json.dumps(profile_json(COUNTS)))
DECISION = json.loads(json.dumps(asdict(make_decision())))


def _read_or_refused(*names: Path | str) -> AbstractContextManager[None]:
    """Each line of a refusal begins with one of `names`."""
    return read_or_refused("a falsifying example", *map(str, names))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


CONFIG = {
    "name": "full",
    "pair": {
        "target": {"source": "./t", "dtype": "bfloat16"}, "draft": {"source": "target", "layers": [0, 3]},
        "target_before": {"source": "org/name", "revision": "0" * 40},
    },
    "corpus": {
        "sources": [{"path": "p.jsonl", "limit": 10, "every_turn": True}, {"path": "~/q.parquet", "domain": "code"}],
        "splits": {"train": 0.6, "dev": 0.1, "examination": 0.3},
        "chat_template_arguments": {"enable_thinking": False, "deep": {"list": [1, "a"]}},
    },
    "sampling": {"temperature": 0.7}, "generate": {"max_new_tokens": 64}, "distill": {"max_steps": 10, "learning_rate": 3e-3},
    "quantize": {"variants": ["int8"], "engine": "vllm", "recovery": {"max_acceptance_loss": 0.1}},
    "evaluate": {"gamma": 4, "convention": "vllm"},
    "gate": {"load": {"requests_per_second": 2.0, "max_batch": 8}, "profile": {"int8": "costs.json"}, "min_speedup": 1.1},
    "promote": {"deployment": "d"}, "tracking": {"uri": "http://host:5000", "experiment": "e"},
}  # fmt: skip
OVERRIDES = (
    "name", "seed", "pair", "pair.target.source", "corpus.sources.0.path", "corpus.sources", "corpus.sources.x.y",
    "corpus.chat_template_arguments.a", "distill.lora", "gate.load.max_batch", "gate.profile", "tracking.uri", "", ".", "no.such",
    "quantize.variants.0", "quantize.variants.²", "quantize.variants.-1", "quantize.variants." + "9" * 5_000,
)  # fmt: skip
BOMB = "b0: &b0 [x, x]\n" + "".join(f"b{n + 1}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(64))
MANIFEST_CONTENT = {
    "stage": "pair", "key": "k", "settings": {}, "figures": {"n": 1.0}, "provides": {"draft": "d"},
    "files": {"a.txt": {"size": 1, "mtime_ns": 7, "sha256": hashlib.sha256(b"a").hexdigest()}},
}  # fmt: skip
JOB = {"stage": "pair", "part": "", "task": {"stage": "pair"}, "key": "k", "state": "built", "seconds": 0.5}
RECORD = {
    "schema": 1,
    "id": "r", "name": "r", "created": "2026-01-01T00:00:00Z", "config": CONFIG, "resolved": CONFIG, "jobs": {"pair": JOB},
    "state": "finished", "outside": {"target": {"digest": "d", "path": None, "facts": {}}},
    "decision": brief(make_decision()),
    "mlflow": {"uri": None, "experiment_id": "1", "run_id": "a", "synced": {"pair": "done k"}, "page": "", "summary": ""},
}  # fmt: skip


def _survives_its_record(config: Config) -> None:
    stored = canonical_json(config.model_dump(mode="json")).encode()
    assert config == parse_config(json.loads(stored), "run")


@fuzzed
@given(damaged(mutated([CONFIG]).map(yaml_text)))
@example(BOMB.encode())
def test_configs(place: Path, content: bytes) -> None:
    """What is accepted survives its record in `run.json`."""
    path = place / "config.yaml"
    path.write_bytes(content)
    with _read_or_refused(path):
        _survives_its_record(load_config(path))


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(OVERRIDES), damaged(json_values.map(json_text))), min_size=1, max_size=2))
def test_overrides(place: Path, pairs: list[tuple[str, bytes]]) -> None:
    """The same of `--set` with any key and any value."""
    path = place / "good.yaml"
    path.write_bytes(yaml_text(CONFIG))
    with _read_or_refused(path, "--set"):
        _survives_its_record(
            load_config(path, [f"{key}={value.decode(errors='surrogateescape')}" for key, value in pairs])
        )


@fuzzed
@given(damaged(st.just(TABLE) | csv_text(COLUMN_NAMES, 4)))
def test_measured_tables(place: Path, content: bytes) -> None:
    """What is read of a CSV table has finite step times above 0."""
    _measurements_are_sound(place / "sweep.csv", content)


@fuzzed
@given(json_files(VLLM, [VLLM], *NESTED))
def test_measured_results(place: Path, content: bytes) -> None:
    """The same of results of `vllm bench serve` and of other tools."""
    _measurements_are_sound(place / "result.json", content)


def _measurements_are_sound(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with _read_or_refused(path):
        for one in read_measurements(path).measured:
            assert one.requests > 0
            assert one.gamma >= 0
            assert 0 < one.step_seconds < np.inf


_numbers = st.floats(0.001, 2) | st.floats(1e-300, 1e300) | st.floats(1, 1e5)
_measured = st.builds(
    Measurement,
    where=st.just("sweep.csv"),
    requests=st.integers(1, 64) | st.floats(1e-3, 1e5),
    gamma=st.integers(0, 8) | st.integers(0, MOST_GAMMA),
    tokens_per_step=st.floats(1, 9),
    step_seconds=_numbers,
    output_tokens=st.none() | st.floats(1, 1e4) | _numbers,
    ttft=st.none() | _numbers,
    isolated=st.booleans(),
)

OWN_LOADS = [
    Measurement(where="sweep.csv", requests=1 + gamma, gamma=gamma, tokens_per_step=1, step_seconds=1)
    for gamma in (0, 1)
]  # of each draft length one, at a load of its own


@settings(fuzzed, max_examples=max(FEW, INPUTS // 10))
@given(
    st.lists(_measured, min_size=1, max_size=40), st.none() | st.builds(Experts, st.integers(1, 8), st.integers(8, 256))
)
@example(OWN_LOADS, None)
def test_fits(measured: list[Measurement], experts: Experts | None) -> None:
    """A fit is refused, or survives its file with finite step times."""
    with _read_or_refused("sweep.csv", "measurement", "all", f"{len(measured)}"):
        found = fit_measurements(measured, experts)
        again = fitted_costs_from_json(json.loads(json.dumps(found.json(), allow_nan=False)), "sweep.csv")
        assert np.isfinite(again.steps(64, 100)).all()


@fuzzed
@given(json_files(fit_measurements(PROFILE.measurements()).json(), PROFILE.json()))
def test_costs_and_profiles(place: Path, content: bytes) -> None:
    """What `latency fit` and `profile` wrote: the times of a step are finite."""
    path = place / "costs.json"
    path.write_bytes(content)
    with _read_or_refused(path):
        found = read_step_costs(path)
        assert np.isfinite(found.steps(2, 64, 1)).all()
        assert np.isfinite(found.prefills([1, 100])).all()


@fuzzed
@given(json_files(EXAMINATION, baseline_json(BASELINE)))
def test_workloads(place: Path, content: bytes) -> None:
    """What is read of an `acceptance.json` has finite rounds."""
    path = place / "acceptance.json"
    path.write_bytes(content)
    with _read_or_refused(path):
        found = read_workload(path)
        assert np.isfinite([*found.rounds_G, *found.variance_GW.ravel(), found.context]).all()


@fuzzed
@given(json_files(baseline_json(BASELINE)))
def test_baselines(place: Path, content: bytes) -> None:
    """What is read of a baseline can be compared with a draft."""
    path = place / "baseline.json"
    path.write_bytes(content)
    with _read_or_refused(path):
        found = read_baseline(read_user_json(path, "give another"), str(path))
        canonical_json([baseline_json(found), found.conditions.settings.model_dump()])


@fuzzed
@given(json_files(EXAMINATION))
def test_acceptance_profiles(place: Path, content: bytes) -> None:
    """What is read of a profile can be written again."""
    path = place / "acceptance.json"
    path.write_bytes(content)
    with _read_or_refused(path):
        read_profile(place)
        found = read_examination(place)
        counts = found.counts if isinstance(found, ProfileWithCounts) else []
        canonical_json([asdict(found.profile), counts_json(counts)])


@fuzzed
@given(st.lists(json_files(*ROWS), max_size=5), st.booleans())
def test_prompt_lines(place: Path, lines: list[bytes], every_turn: bool) -> None:
    """A line is a request, or a BadRow whose reason can be written down."""
    path = place / "prompts.jsonl"
    path.write_bytes(b"\n".join(lines))
    _rows_are_sound(path, PromptSource(path=str(path), every_turn=every_turn))


@fuzzed
@given(damaged(st.lists(mutated(ROWS), min_size=1, max_size=4).map(parquet_file)))
def test_prompt_tables(place: Path, content: bytes) -> None:
    """The same of a Parquet file's rows."""
    path = place / "prompts.parquet"
    path.write_bytes(content)
    _rows_are_sound(path, PromptSource(path=str(path)))


@fuzzed
@given(json_files([*ROWS, *FOREIGN_ROWS]) | damaged(st.lists(mutated(FOREIGN_ROWS), max_size=4).map(json_text)))
def test_prompt_arrays(place: Path, content: bytes) -> None:
    """The same of the elements of a JSON array, in ShareGPT's form and Alpaca's too."""
    path = place / "prompts.json"
    path.write_bytes(content)
    _rows_are_sound(path, PromptSource(path=str(path)))


@fuzzed
@given(
    csv_text(("prompt", "question", "domain", "messages", "id"), 5),
    st.sampled_from((".csv", ".tsv", ".txt", ".csv.gz")),
)
def test_prompt_cells(place: Path, content: bytes, extension: str) -> None:
    """The same of the rows of a table, and of the lines of a text; what is no gzip file is refused."""
    path = place / f"prompts{extension}"
    path.write_bytes(content)
    _rows_are_sound(path, PromptSource(path=str(path)))


@fuzzed
@given(
    damaged(st.lists(mutated(ROWS), max_size=3).map(json_text).map(gzip.compress)),
    st.sampled_from((".json.gz", ".json.zst")),
)
def test_compressed_prompts(place: Path, content: bytes, extension: str) -> None:
    """A damaged compressed file is refused by its name."""
    path = place / f"prompts{extension}"
    path.write_bytes(content)
    _rows_are_sound(path, PromptSource(path=str(path)))


@fuzzed
@given(mutated(LOGGED))
def test_recorded_answers(row: Any) -> None:
    """In the forms of all servers: read, or not used with a reason."""
    if isinstance(row, dict):
        with suppress(UnusableAnswer):
            parse_answer(row, PromptSource(path="p"))
        request_counts(row)


def _rows_are_sound(path: Path, source: PromptSource) -> None:
    names = TemplateNames(
        ("{{ reasoning_effort }}{{ 'critic' }}{% for m in messages %}{{ m.role == 'bot' }}{% endfor %}",)
    )
    traces = MessageTraces(
        lambda messages, arguments: canonical_json([*messages, dict(arguments)]), TemplateNames(("{{ 'critic' }}",))
    )
    with _read_or_refused(path):
        reader = SourceReader(0, source, path)
        reader.total()
        for row in reader:
            try:
                prompt = parse_row(row.value, reader.source, names)
                text = prompt.comparison_text + canonical_json([prompt.messages, *asdict(prompt.facts).values()])
                traces.check(prompt, prompt.facts.arguments)
            except BadRow as bad:
                text = str(bad)
                assert len(text.splitlines()) == 1, text
            assert text.encode()


@fuzzed
@given(json_files(MANIFEST_CONTENT))
def test_manifests(place: Path, content: bytes) -> None:
    """An artifact is found, and names its files and figures, or its manifest is damaged."""
    store = Store(place)
    directory = store.directory("pair", "k")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "a.txt").write_text("a")
    (directory / MANIFEST).write_bytes(content)
    with _read_or_refused(directory):
        found = store.find("pair", "k")
        assert found is not None
        found.check_hashes()
        canonical_json([found.key, found.figures, found.provides])


@fuzzed
@given(json_files(RECORD))
def test_run_records(place: Path, content: bytes) -> None:
    """A record is read, with its config and its jobs, or refused."""
    store = Store(place / "records")
    path = store.runs / "r" / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with _read_or_refused(path, "run "):
        list_runs(store)
        record = require_run(store, "r")
        run_config(record)
        find_built(store, record, "pair")
        recorded_decision(record)


@fuzzed
@given(json_files(DECISION))
def test_decisions(place: Path, content: bytes) -> None:
    """What is read of a decision can be written again."""
    path = place / FILE
    path.write_bytes(content)
    with _read_or_refused(path):
        canonical_json(asdict(read_decision(place)))
