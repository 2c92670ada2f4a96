"""The list of files that a user or a stranger can write: a valid one of each kind, and the reader that the product uses."""

import gzip
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.acceptance.baseline import baseline_json
from pipeline.acceptance.decoding_speed import Measured, SpeedCheck
from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.acceptance.profile_file import read_examination, write_profile
from pipeline.acceptance.schema import FILE as EXAMINATION_FILE
from pipeline.acceptance.schema import read_profile
from pipeline.acceptance.step_times import StepTimes, find_step_times
from pipeline.canary.choices import KEPT
from pipeline.canary.schema import CANARY
from pipeline.canary.verified import VERIFICATION
from pipeline.commands.check import _read as read_check_baseline
from pipeline.commands.compare import _read as read_compared_baseline
from pipeline.config.corpus import PromptSource
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.loading import load_config, parse_config
from pipeline.config.stored import run_config
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.corpus.traffic import Traffic
from pipeline.distillation.learning_curve import CURVE, CurvePoint, curve_json, find_curve
from pipeline.drafts.directory import TRAINED_ON, trained_on, trained_on_before
from pipeline.drafts.head_config import kind_of, read_eagle3, read_medusa
from pipeline.drafts.kinds import PLAIN
from pipeline.errors import BrokenDraft
from pipeline.examination.on_completions import Settings, conditions_of, open_completions
from pipeline.examination.shard_worker import _shard_counts
from pipeline.export.schema import FILE as EXPECTED_FILE
from pipeline.export.schema import read_expected
from pipeline.generation.journal import Journal, Record, read_journal
from pipeline.handover.settled import SETTLED, Settled
from pipeline.judgement.decision_file import find_decision, read_decision, read_training, recorded_decision
from pipeline.judgement.example_file import read_examples
from pipeline.judgement.schema import FILE as DECISION_FILE
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measured_points import read_points
from pipeline.latency.costs.measurements import read_measurements
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.output_lengths import parse_output_lengths
from pipeline.latency.load.workload import read_workload
from pipeline.models.directory_checks import check_directory
from pipeline.models.files import tokenizer_files
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import load_tokenizer
from pipeline.models.model_json import PROCESSOR_TEMPLATE, template_of_processor
from pipeline.models.shape import measure_weights, read_shape
from pipeline.models.stored_pair import PAIR_FILE, read_pair
from pipeline.running.after_stage import after_stage
from pipeline.running.inputs import DIGESTS
from pipeline.running.served_input import SERVED
from pipeline.servers.identity import Golden, Identity
from pipeline.servers.target import ServedModel
from pipeline.store.artifacts import MANIFEST, Store, age_in_days
from pipeline.store.files import read_user_json, write_json
from pipeline.store.row_files import RowFile
from pipeline.store.runs import list_runs, require_run
from pipeline.watch.followed_files import LogPositions, follow
from pipeline.watch.log_counts import LogCounts
from pipeline.watch.own_requests import ASKINGS
from pipeline.watch.state import STATE
from tests.decisions import TRAINING, make_decision, make_example_set
from tests.exports import make_export
from tests.fakes import tiny_tokenizer
from tests.pairs import pair_facts
from tests.profiles import make_profile, profile_json
from tests.strategies import parquet_file, yaml_text
from tests.unit.canary.evidence import KEPT_CHOICES, verification
from tests.unit.canary.evidence import result as canary_result
from tests.unit.latency.costs.test_latency_profile import PROFILE
from tests.unit.latency.load.test_workload import BASELINE, COUNTS
from tests.unit.test_fuzz import CONFIG, MANIFEST_CONTENT, RECORD, ROWS, VLLM
from tests.unit.watch.expectations import ASKED, watched_state


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of file. `covers`: the places in the source that read it (`sites.py`)."""

    name: str
    file: str  # its path within the place of a test
    valid: Any  # a JSON document, or bytes
    read: Callable[[Path], object]  # of the place of the test
    covers: Sequence[str]
    prepare: Callable[[Path], object] = lambda place: None  # the files beside it

    @property
    def slow(self) -> bool:
        """Whether its reader loads a tokenizer, which takes a tenth of a second."""
        return self.read is _read_model

    @property
    def text(self) -> bytes:
        return self.valid if isinstance(self.valid, bytes) else json.dumps(self.valid).encode()


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _rows(source: PromptSource) -> Callable[[Path], object]:
    def read(place: Path) -> None:
        for row in Traffic(SourceReader(0, source, place / source.path), source, date(2026, 1, 1)):
            with suppress(BadRow):
                parse_row(row.value, source).comparison_text.encode()

    return read


def _store(place: Path) -> Store:
    return Store(place / "store")


def _artifact(place: Path) -> object:
    (place / "store/artifacts/generate-k").mkdir(parents=True)
    return (place / "store/artifacts/generate-k/a.txt").write_text("a")


def _read_artifact(place: Path) -> None:
    store = _store(place)
    found = store.find("generate", "k")
    age_in_days(store.directory("generate", "k"))
    after_stage("corpus", CONFIG_READ, store.directory("generate", "k"))
    opened = open_completions(store.directory("generate", "k"))
    assert found is not None
    conditions_of(opened, SETTINGS, PLAIN)


def _model(place: Path) -> None:
    """A model without weights worth the name, and a tokenizer."""
    tiny_tokenizer().save_pretrained(place)
    for name, content in {"config.json": MODEL_CONFIG, "generation_config.json": GENERATION}.items():
        write_json(place / name, content)
    (place / "model.safetensors").write_bytes(WEIGHTS)


def _read_model(place: Path) -> None:
    check_directory(place)
    sampling_defaults(place)
    measure_weights(place)
    load_tokenizer(place)
    read_shape(place)


def _weights() -> bytes:
    header = json.dumps({
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [32, 16], "data_offsets": [0, 2048]},
        "model.layers.0.mlp.weight": {"dtype": "F32", "shape": [16], "data_offsets": [2048, 2112]},
    }).encode()  # fmt: skip
    return struct.pack("<Q", len(header)) + header + bytes(2112)


def _journal() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "j")
        journal.append(Record(3, {"length": 2}, {}))
        journal.close()
        return (Path(folder) / "j").read_bytes()


WEIGHTS = _weights()
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256,
    "dtype": "float32", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
GENERATION = {"eos_token_id": [0, 1], "temperature": 0.7, "top_k": 20, "top_p": 0.9, "max_new_tokens": 64}
IDENTITY = Identity(
    digest="d", model=ServedModel("m", "m", 256, "1"), revision=None, dtype="float32", golden=Golden([[1, 2]], [[-0.5]])
)
DECISION = _json(asdict(make_decision()))
COMPLETIONS = MANIFEST_CONTENT | {
    "stage": "generate", "inputs": {"target": "t"},
    "notes": {
        "domains": {"code": {"train": 5, "dev": 1, "examination": 40}},
        "stated_sampling": [[{"temperature": 1.0}, 46], [{"temperature": 0.7, "top_k": 0.0}, 2]],
    },
    "settings": {"dtype": "float32", "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}},
    "created": "2026-01-01T00:00:00Z", "environment": {"git": "a"}, "peak_memory": {"process": 5}, "decision": None,
}  # fmt: skip


def _read_costs(place: Path) -> None:
    read_step_costs(place / "costs.json")


def _read_baseline(place: Path) -> None:
    read_check_baseline(place / "baseline.json")
    read_compared_baseline(place / "baseline.json", "baseline.json")
    read_workload(place / "baseline.json")


def _read_record(place: Path) -> None:
    list_runs(_store(place))
    record = require_run(_store(place), "r")
    run_config(record)
    recorded_decision(record)


def _read_examination(place: Path) -> None:
    read_profile(place)
    read_examination(place)


def _in_lines(counts: Sequence[PromptCounts]) -> bytes:
    """As an examination writes it, with a second list."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / EXAMINATION_FILE
        with RowFile(path, ["greedy", "deployed"]) as rows:
            for name in ("greedy", "deployed"):
                rows.add(name, counts_json(counts))
            write_profile(rows, make_profile(counts))
        return path.read_bytes()


def _read_shard_counts(place: Path) -> None:
    with suppress(BrokenDraft):
        for window in _shard_counts(place / "a.counts.json"):
            counts_json(window)


def _read_decision(place: Path) -> None:
    find_decision(place)
    read_decision(place)


def _expected() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        make_export(Path(folder), "d")
        return json.loads((Path(folder) / EXPECTED_FILE).read_text())


def _tokenizer_files() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        tiny_tokenizer().save_pretrained(folder)
        return {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}


def _index(place: Path) -> None:
    _model(place)
    (place / "model.safetensors").rename(place / "one.safetensors")


SOURCE = PromptSource(path="prompts.jsonl", redact=True, tools_field="tools")
SETTINGS = Settings(evaluate=EvaluateConfig(), dtype="float32")
CONFIG_READ = parse_config(CONFIG, "config")
DIGEST_LIST = {"/a/b": {"stamp": [1, 2, 2**60, 4], "sha256": "d"}, "/library:2": {"stamp": "s", "sha256": "d"}}
_MODELS = (
    "pipeline/models/loading:load_tokenizer",
    "pipeline/models/built:load_config",
)
EAGLE3_CONFIG = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 24,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
    "norm_before_residual": True,
    "transformer_layer_config": {"model_type": "llama", "hidden_size": 16, "vocab_size": 32, "num_hidden_layers": 1},
}
MEDUSA_CONFIG = {"model_type": "medusa", "hidden_size": 16, "vocab_size": 32, "num_heads": 3, "num_hidden_layers": 1}
_TOKENIZER = _tokenizer_files()
REQUEST = {
    "request": {
        "messages": [{"role": "user", "content": "Why?"}], "options": {"num_predict": "64", "stop": '["."]'},
        "system": "Be brief.", "reasoning_effort": "low", "documents": [{"text": "a"}],
        "truncate_prompt_tokens": 900, "tool_choice": "auto", "x": 1,
    },
    "response": {"choices": [{"message": {"role": "assistant", "content": "So."}, "finish_reason": "stop"}]}, "created": 1.7e9,
}  # fmt: skip
SHARE_GPT = {"conversations": [{"from": "human", "value": "Why?"}, {"from": "function_call", "value": '{"name": "f"}'}]}
STEP_TIMES = StepTimes(
    device="cpu", prompts=2, tokens=9, plain=[0.5, 0.6], rounds={1: [0.7, 0.8], 4: [1.2, 1.4]}, draft="d", needed_seconds=9.0,
    check=SpeedCheck(
        gamma=1, prompts=8, tokens=512, computed=Measured(1.2, 1.1, 1.3), decoded=Measured(1.2, 1.0, None), agrees=True
    ),
)  # fmt: skip
SWEEP = b"concurrency,k,mean_acceptance_length,tpot_p50_ms,ttft_p50_ms\n1,0,1.0,21,30\n4,2,2.2,11,30\n"


def _followed(place: Path) -> object:
    """From the beginning of the file, as one that appeared after the first look."""
    path, rows = place / "requests.jsonl", LogCounts("")
    found = follow(path, LogPositions(path=str(path), time=0.0), 1.0, rows.take)
    return found, rows.by_domain(), rows.problems()


KINDS: tuple[Kind, ...] = (
    Kind(
        name="run record", file="store/runs/r/run.json", valid=_json(RECORD), read=_read_record,
        covers=("pipeline/store/runs:RunRecord", "pipeline/judgement/schema:BriefDecision"),
    ),
    Kind(
        name="manifest", file=f"store/artifacts/generate-k/{MANIFEST}", valid=COMPLETIONS, read=_read_artifact, prepare=_artifact,
        covers=(
            "pipeline/store/artifacts:Manifest", "pipeline/examination/on_completions:_MadeBy",
            "pipeline/running/after_stage:CONVERSATIONS", "pipeline/running/after_stage:DOMAINS",
            "pipeline/running/after_stage:STATED",
        ),
    ),
    Kind(
        name="digests", file="digests.json", valid=DIGEST_LIST, read=lambda place: DIGESTS.find(Store(place)),
        covers=("pipeline/running/inputs:DIGESTS",),
    ),
    Kind(
        name="served targets", file="served_targets.json", valid=_json([IDENTITY.facts()]),
        read=lambda place: SERVED.find(Store(place)), covers=("pipeline/running/served_input:SERVED",),
    ),
    Kind(
        name="identity in a record", file="facts.json", valid=_json(IDENTITY.facts()),
        read=lambda place: Identity.from_facts(read_user_json(place / "facts.json", "")),
        covers=("pipeline/servers/identity:Identity",),
    ),
    Kind(
        name="pair", file=PAIR_FILE, valid=pair_facts(), read=lambda place: read_pair(place, {}),
        covers=("pipeline/models/stored_pair:PAIR",),
    ),
    Kind(
        name="examination", file=EXAMINATION_FILE, valid=_json(profile_json(COUNTS)), read=_read_examination,
        covers=(
            "pipeline/acceptance/schema:AcceptanceProfile", "pipeline/acceptance/schema:read_profile",
            "pipeline/store/row_files:read_head",
        ),
    ),
    Kind(
        name="examination in lines", file=EXAMINATION_FILE, valid=_in_lines(COUNTS), read=_read_examination,
        covers=("pipeline/acceptance/profile_file:read_examination", "pipeline/store/row_files:read_listed_rows",
                "pipeline/store/row_files:_rows_until_end"),
    ),
    Kind(
        name="counts of a shard", file="a.counts.json", valid={"broken": None, "prompts": _json(counts_json(COUNTS))},
        read=_read_shard_counts, covers=("pipeline/examination/shard_worker:_ShardCounts",),
    ),
    Kind(
        name="examination as a workload", file=EXAMINATION_FILE, valid=_json(profile_json(COUNTS)), read=read_workload,
        covers=("pipeline/latency/load/workload:read_workload",),
    ),
    Kind(
        name="baseline", file="baseline.json", valid=_json(baseline_json(BASELINE)), read=_read_baseline,
        covers=(
            "pipeline/commands/check:_read", "pipeline/commands/compare:_read", "pipeline/running/retention:_keep_for_baselines",
        ),
    ),
    Kind(
        name="decision", file=DECISION_FILE, valid=DECISION, read=_read_decision,
        covers=("pipeline/judgement/schema:Decision",),
    ),
    Kind(
        name="training log", file="training.json", valid=TRAINING, read=lambda place: read_training(place / "training.json"),
        covers=("pipeline/judgement/decision_file:TRAINING",),
    ),
    Kind(
        name="examples", file="examples.json", valid=make_example_set("a", "b"), read=read_examples,
        covers=("pipeline/judgement/example_file:EXAMPLES",),
    ),
    Kind(
        name="learning curve", file=CURVE, valid=curve_json([CurvePoint(5, 50, 0.5, 1.9), CurvePoint(9, 90, 0.6, 2.0)]),
        read=find_curve, covers=("pipeline/distillation/learning_curve:LearningCurve",),
    ),
    Kind(
        name="expected counters", file=EXPECTED_FILE, valid=_expected(), read=read_expected,
        covers=("pipeline/export/schema:Expected",),
    ),
    Kind(
        name="notices", file="store/handover/x.json", valid=asdict(Settled(3, {"r": 2})),
        read=lambda place: SETTLED.find(_store(place), "x"), covers=("pipeline/handover/settled:Settled",),
    ),
    Kind(
        name="state of the watch", file="store/watch/x.json", valid=_json(asdict(watched_state())),
        read=lambda place: STATE.find(_store(place), "x"), covers=("pipeline/watch/state:WatchState",),
    ),
    Kind(
        name="result of a canary", file="store/canary/x.json", valid=_json(asdict(canary_result())),
        read=lambda place: CANARY.find(_store(place), "x"), covers=("pipeline/canary/schema:CanaryResult",),
    ),
    Kind(
        name="kept choices of a head", file="store/choices/x.json", valid=_json(asdict(KEPT_CHOICES)),
        read=lambda place: KEPT.find(_store(place), "x"), covers=("pipeline/canary/choices:KeptChoices",),
    ),
    Kind(
        name="record of canaries", file="store/askings/x.json", valid=_json(asdict(ASKED)),
        read=lambda place: ASKINGS.find(_store(place), "x"), covers=("pipeline/watch/own_requests:LatestCanaries",),
    ),
    Kind(
        name="result of a verification", file="store/verified/x.json", valid=_json(asdict(verification())),
        read=lambda place: VERIFICATION.find(_store(place), "x"), covers=("pipeline/canary/verified:EngineCheck",),
    ),
    Kind(
        name="training prompts", file=TRAINED_ON, valid={"prompts": ["a", "b"]},
        read=lambda place: (trained_on_before(place), trained_on(place)),
        covers=("pipeline/drafts/directory:TrainedOn",),
    ),
    Kind(
        name="config of a model", file="config.json", valid=MODEL_CONFIG, prepare=_model, read=_read_model,
        covers=("pipeline/models/model_json:CONFIG_FORMAT", *_MODELS),
    ),
    Kind(
        name="config of an EAGLE-3 head", file="config.json", valid=EAGLE3_CONFIG,
        read=lambda place: (kind_of(place), read_eagle3(place)), covers=("pipeline/drafts/head_config:_FORMAT",),
    ),
    Kind(
        name="config of Medusa heads", file="config.json", valid=MEDUSA_CONFIG,
        read=lambda place: (kind_of(place), read_medusa(place)), covers=("pipeline/drafts/head_config:_FORMAT",),
    ),
    Kind(
        name="generation config", file="generation_config.json", valid=GENERATION, prepare=_model, read=_read_model,
        covers=("pipeline/models/model_json:GENERATION_FORMAT",),
    ),
    Kind(
        name="config of a tokenizer", file="tokenizer_config.json", valid={"auto_map": {"AutoTokenizer": ["a.B", None]}},
        read=lambda place: tokenizer_files(place), covers=("pipeline/models/model_json:TOKENIZER_FORMAT",),
    ),
    Kind(
        name="chat template of a processor", file=PROCESSOR_TEMPLATE, valid={"chat_template": "{{ messages }}"},
        read=lambda place: template_of_processor(place), covers=("pipeline/models/model_json:TEMPLATE_FORMAT",),
    ),
    Kind(
        name="index of weights", file="model.safetensors.index.json",
        valid={"metadata": {"total_size": 2112}, "weight_map": {"a": "one.safetensors"}}, prepare=_index, read=_read_model,
        covers=("pipeline/models/model_json:INDEX_FORMAT",),
    ),
    Kind(
        name="weights", file="model.safetensors", valid=WEIGHTS, prepare=_model, read=_read_model,
        covers=("pipeline/models/safetensors_header:read_header",),
    ),
    *(
        Kind(name=f"tokenizer: {name}", file=name, valid=content, prepare=_model, read=_read_model, covers=(),)
        for name, content in _TOKENIZER.items()
    ),
    Kind(
        name="profile", file="costs.json", valid=_json(PROFILE.json()), read=_read_costs,
        covers=("pipeline/latency/costs/step_costs:_read",),
    ),
    Kind(
        name="step times", file="step_times.json", valid=_json(asdict(STEP_TIMES)), read=find_step_times,
        covers=("pipeline/acceptance/step_times:StepTimes",),
    ),
    Kind(
        name="measured points", file="costs.json.measured",
        valid={"schema": 1, "about": {"a": 1}, "points": {"1x64": {"target": {"1": 0.1}, "draft": 0.1}}, "prefills": {"9": 0.2}},
        read=lambda place: read_points(place / "costs.json", {"a": 1}),
        covers=(
            "pipeline/latency/costs/measured_points:MeasuredPoints", "pipeline/latency/costs/measured_points:read_points",
        ),
    ),
    Kind(
        name="fitted costs", file="costs.json", valid=_json(fit_measurements(PROFILE.measurements()).json()), read=_read_costs,
        covers=(),
    ),
    Kind(
        name="result of a benchmark", file="result.json", valid=VLLM, read=lambda place: read_measurements(place / "result.json"),
        covers=("pipeline/latency/costs/tables:json_documents", "pipeline/latency/costs/tables:_rows"),
    ),
    Kind(
        name="table of measurements", file="sweep.csv", valid=SWEEP, read=lambda place: read_measurements(place / "sweep.csv"),
        covers=("pipeline/latency/costs/csv_rows:_split",),
    ),
    Kind(
        name="output lengths", file="lengths.json", valid=[{"output_lens": [5, 9]}],
        read=lambda place: parse_output_lengths(str(place / "lengths.json")),
        covers=("pipeline/latency/load/output_lengths:_read",),
    ),
    Kind(
        name="output lengths by latency", file="lengths.json",
        valid={"completed": 9, "total_output_tokens": 900, "mean_ttft_ms": 5.0, "mean_e2el_ms": 105.0, "p95_e2el_ms": 200.0},
        read=lambda place: parse_output_lengths(str(place / "lengths.json")),
        covers=("pipeline/latency/load/output_lengths:_read",),
    ),
    Kind(
        name="config", file="config.yaml", valid=yaml_text(CONFIG), read=lambda place: load_config(place / "config.yaml"),
        covers=("pipeline/config/loading:_read", "pipeline/config/loading:_apply"),
    ),
    *(
        Kind(
            name=f"prompts {number}", file="prompts.jsonl", valid=row, read=_rows(SOURCE),
            covers=(
                "pipeline/corpus/text_files:opened", "pipeline/corpus/text_files:_parse",
                "pipeline/corpus/as_served:with_arguments", "pipeline/corpus/rows:_tools",
                "pipeline/corpus/modes:stated_arguments",
            ),
        )
        for number, row in enumerate(ROWS)
    ),
    Kind(
        name="prompts in an array", file="prompts.json", valid=ROWS,
        read=_rows(SOURCE.model_copy(update={"path": "prompts.json"})),
        covers=("pipeline/corpus/text_files:_Array", "pipeline/corpus/text_files:first_values"),
    ),
    Kind(
        name="chats of ShareGPT", file="prompts.jsonl", valid=SHARE_GPT, read=_rows(PromptSource(path="prompts.jsonl")),
        covers=("pipeline/corpus/json_values:decoded",),
    ),
    Kind(
        name="requests of a log", file="prompts.jsonl", valid=REQUEST, read=_rows(PromptSource(path="prompts.jsonl")),
        covers=("pipeline/corpus/nested_settings:_plain",),
    ),
    Kind(
        name="prompts in a CSV table", file="prompts.csv", valid=b"prompt,domain\nWhy?,code\n",
        read=_rows(PromptSource(path="prompts.csv")), covers=("pipeline/corpus/text_files:_table",),
    ),
    Kind(
        name="compressed prompts", file="prompts.jsonl.gz", valid=gzip.compress(json.dumps(ROWS[0]).encode(), mtime=0),
        read=_rows(PromptSource(path="prompts.jsonl.gz")), covers=(),
    ),
    Kind(
        name="prompt table", file="prompts.parquet", valid=parquet_file(ROWS),
        read=_rows(SOURCE.model_copy(update={"path": "prompts.parquet"})),
        covers=tuple(f"pipeline/corpus/tables:{name}" for name in ("count_parquet", "read_parquet", "_unreadable")),
    ),
    Kind(
        name="log that is followed", file="requests.jsonl", valid=ROWS[0], read=_followed,
        covers=tuple(f"pipeline/watch/followed_files:{name}" for name in ("_at", "_known", "_read_on", "_row")),
    ),
    Kind(
        name="journal", file="journal", valid=_journal(), read=lambda place: read_journal(place / "journal"),
        covers=("pipeline/generation/journal:_records", "pipeline/generation/journal:_record"),
    ),
)  # fmt: skip
