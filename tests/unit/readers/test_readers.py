"""Every file that a user or a stranger can write: whatever is wrong with it, its reader ends soon and says so in one line."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.errors import UnderstudyError
from tests.unit.readers.damage import PLACES, documents, put, texts
from tests.unit.readers.kinds import KINDS, Kind
from tests.unit.readers.sites import sites

FEW, FEW_SLOW = 25, 5  # damaged documents of each kind in `make test`; `make test-long` reads all
MOST_SECONDS = 60.0  # a bound on hanging, on a busy machine; a file takes milliseconds
MOST_CHARACTERS = 1_000  # of an error

# Places that read something else, by reason.
NOT_LISTED = {
    "written by the same process, or of this installation": (
        "pipeline/config/corpus:_template_arguments",  # its own JSON text, to see whether it comes back
        "pipeline/corpus/readers:SourceReader",  # calls the readers of `text_files.py`
        "pipeline/corpus/external_sort:_merge",
        "pipeline/corpus/row_buffer:RowBuffer",
        "pipeline/corpus/answer_store:write_answers",
        "pipeline/corpus/prompt_store:write_prompts",
        "pipeline/canary/examined:_of_distributions",  # of the completion store, by `distributions`
        "pipeline/distillation/checkpoints:_read_weights",  # of the training that goes on
        "pipeline/distillation/checkpoints:read_optimizer",
        "pipeline/distillation/dataset:_teacher",
        "pipeline/distillation/training_task:TASK",  # of the process that starts the reader
        "pipeline/models/tokenizers:_merges",  # of a tokenizer that was loaded
        "pipeline/native/build:_built",
        "pipeline/native/build:_is_whole",
        "pipeline/native/build:_keep",
        "pipeline/quantization/variants:_tensors",
        "pipeline/reference/recipe:_part",
        "pipeline/reference/text:text_digest",
        "pipeline/reference/text:_source_files",
        "pipeline/reference/text:_help_topics",
        "pipeline/registry/tracking:Tracker",  # the card that promote wrote
        "pipeline/report/page:_render",
        "stages/pair:_make_reference",
        "pipeline/running/execution/worker_errors:packed",  # an error of a worker, through a pipe or Ray
        "pipeline/running/execution/worker_errors:unpacked",
    ),
    "claims, whose age alone counts where they cannot be read (tests/unit/running/execution/test_spread.py)": (
        "pipeline/running/execution/claims:_read",
    ),
    "DAG files, whose text is only hashed (tests/unit/planning/test_dag_files.py)": (
        "pipeline/planning/dag_files:_require_unchanged",
        "pipeline/planning/dag_files:_write",
        "pipeline/planning/dag_files:write_dags",
    ),
    "of the kernel": (
        "pipeline/corpus/template_limits:_address_space",
        "pipeline/native/build:_openmp",
        "pipeline/native/compiler:processor",
        "pipeline/models/host_memory:cgroup_files",
        "pipeline/models/host_memory:free_host_memory",
        "pipeline/models/host_memory:read_text",
        "pipeline/planning/doctor/machine:_cpu_flags",
        "pipeline/store/processes:machine",
        "pipeline/store/processes:running_process",
        "pipeline/running/peak_memory:_peak",
    ),
    "Arrow files of an artifact: the manifest has their SHA-256, which is compared before a stage reads them": (
        "pipeline/corpus/answer_store:StoredAnswers",
        "pipeline/corpus/answer_store:_answer",
        "pipeline/generation/evidence:Evidence",  # in the metadata of a shard, or a journal's records, which have checksums
        "pipeline/generation/sample_test:SampleEvidence",
        "pipeline/corpus/prompt_store:StoredPrompts",
        "pipeline/corpus/prompt_store:_prompts",
        "pipeline/examination/token_acceptance:read_token_acceptance",
        "pipeline/examination/token_acceptance:TokenAcceptanceFile",  # of a shard, by a worker of the same job
        "pipeline/generation/completion_files:open_batch",
        "pipeline/generation/segment_files:segments_of",
    ),
    "model directories that `check_directory` has read": (
        "pipeline/export/widths:_vocabulary_tensors",
        "pipeline/export/widths:_resize_file",
        "pipeline/models/loading:load_model",  # the weights: tests/unit/models/test_strange_models.py
        "pipeline/quantization/block_sizes:impossible_variants",
        "pipeline/quantization/variants:_quantize_fp8",
        "pipeline/quantization/variants:_quantize_bitsandbytes",
    ),
    "text of the target, which need not be JSON": ("pipeline/models/segmenter:Segmenter",),
    "read by another library; its errors are caught (tests/integration/test_bad_input.py)": (
        "pipeline/corpus/tables:_dataset",
    ),
    "answers of a server (tests/unit/servers), and values in MLflow's database": (
        "pipeline/servers/endpoint:Endpoint",
        "pipeline/registry/relocation:_moved",
    ),
}


def test_every_place_that_reads_is_listed() -> None:
    """A new reader needs an entry in KINDS, with a valid file, or in NOT_LISTED, with the reason."""
    listed = {place for kind in KINDS for place in kind.covers} | {
        place for some in NOT_LISTED.values() for place in some
    }
    found = set(sites())
    assert ([], []) == (sorted(found - listed), sorted(listed - found))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_valid_file_is_read(kind: Kind, tmp_path: Path) -> None:
    """Or the damaged ones would prove nothing."""
    _write(kind, tmp_path, kind.text)
    kind.read(tmp_path)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    """Some values, and the bytes."""
    _damage(kind, tmp_path, FEW_SLOW if kind.slow else FEW)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_damaged_value_is_read_or_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    """All values at all places."""
    _damage(kind, tmp_path, None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("what", PLACES)
def test_what_is_no_file_is_refused(kind: Kind, what: str, tmp_path: Path) -> None:
    """A directory, a link to itself or to nowhere, a FIFO, a device without end: none blocks, none is read without end."""
    _write(kind, tmp_path, kind.text)
    path = tmp_path / kind.file
    path.unlink()
    put(what, path)
    with _one_line(kind, f"{what} at {path}"):
        kind.read(tmp_path)


def _damage(kind: Kind, place: Path, count: int | None) -> None:
    seed = sum(kind.name.encode())
    _write(kind, place, kind.text)
    damaged = list(texts(kind.text, seed))
    if kind.slow and count is not None:
        damaged = damaged[seed % 4 :: 4]
    if not isinstance(kind.valid, bytes):
        damaged += documents(kind.valid, count, seed)
    for content in damaged:
        (place / kind.file).write_bytes(content)
        with _one_line(kind, repr(content[:2_000])):
            kind.read(place)


def _write(kind: Kind, place: Path, content: bytes) -> None:
    kind.prepare(place)
    (place / kind.file).parent.mkdir(parents=True, exist_ok=True)
    (place / kind.file).write_bytes(content)


@contextmanager
def _one_line(kind: Kind, what: str) -> Iterator[None]:
    """The body ends soon, and raises nothing but an UnderstudyError of short lines, each with the place of the file."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{kind.name}: more than {MOST_SECONDS:g} s: {what}")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    except UnderstudyError as error:
        for line in str(error).split("\n"):
            assert len(line) <= MOST_CHARACTERS, line
            assert line.isprintable(), line
    except Exception as error:
        raise AssertionError(f"{kind.name}: {type(error).__name__}: {error}: {what}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
