"""Files that users write, damaged at random: whatever comes, it is read or refused in plain lines. Never a traceback.

Each input follows from its seed. `make test` tries FEW of each kind, `make fuzz` FUZZ_INPUTS, `make test-long` a tenth of that.
"""

import copy
import csv
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.acceptance.baseline import read_baseline
from pipeline.config.corpus import PromptSource
from pipeline.config.loading import load_config
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.errors import UnderstudyError
from pipeline.latency.costs.fitted import fit_measurements
from pipeline.latency.costs.measurements import _GUIDELLM, Measurement, read_measurements
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.workload import read_workload
from pipeline.store.files import read_json
from tests.unit.test_workload import COUNTS, PROFILE, counts_json

FEW = 60
INPUTS = int(os.environ.get("FUZZ_INPUTS", FEW))
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e-300, 1e300, 2**63, -(2**70), 10**400, float("nan"), float("inf")),
    *("", " ", "nan", "1e999", "0x1f", "-", "\x00", "\ud800", "é🙂", "../..", "a" * 300, "prompts.jsonl", "reference"),
    *([], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": 1}}),
)
ODD_TEXTS = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"nan",
    b"-1",
    b"2026-99-99",
    b"1e999",
    b"9" * 30,
    b": ",
    b"- ",
    b"{",
    b"]",
    b'"',
    b"\n",
    b",",
    b"\t",
)

COSTS = fit_measurements(
    [
        Measurement(
            where="",
            requests=n,
            gamma=gamma,
            tokens_per_step=1.0 + gamma / 3,
            step_seconds=0.01 + 0.001 * gamma * n,
            output_tokens=50.0,
            ttft=0.1,
        )
        for n in (1, 4, 16)
        for gamma in (0, 2, 4)
    ]
).json()
VLLM: dict[str, Any] = {
    "completed": 10, "total_output_tokens": 500, "total_input_tokens": 300, "duration": 9.5, "max_concurrency": 4,
    "request_rate": "inf", "request_throughput": 1.1, "output_throughput": 52.0, "mean_ttft_ms": 30.0, "mean_tpot_ms": 20.0,
    "mean_e2el_ms": 900.0, "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.2,
}  # fmt: skip
_MEAN = {"successful": {"mean": 2.5}, "total": {"mean": 3.0}}
GUIDELLM = {"benchmarks": [{"metrics": dict.fromkeys(_GUIDELLM.values(), _MEAN)}]}
TABLE = [
    ["users", "k", "mean_acceptance_length", "tpot_p50_ms", "ttft_p50_ms"],
    [1, 0, 1.0, 21, 30],
    [4, 2, 2.2, 11, 30],
]
ROWS: list[Any] = [
    {"prompt": "def main():", "domain": "code", "group": 7},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "So."},
        ]
    },
    {"turns": ["One question", "and another"]},
]
EXAMINATION = {
    "schema": 2, "conditions": {"convention": "user"}, "draft": {"kind": "model", "digest": "d"},
    "prompts": counts_json(COUNTS),
}  # fmt: skip


def damaged(chance: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one to three of its nodes replaced, left out or doubled."""
    found = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        found = _damage(chance, found)
    return found


def _damage(chance: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.05:
        return copy.deepcopy(chance.choice(ODD))
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    what = chance.random()
    if what < 0.1:
        del value[key]
    elif what < 0.2 and isinstance(value, list):
        value.insert(key, copy.deepcopy(value[key]))
    elif what < 0.2 and isinstance(value, dict):
        value[str(chance.choice(ODD))] = value.pop(key)
    else:
        value[key] = _damage(chance, value[key])
    return value


def scrambled(chance: random.Random, text: bytes) -> bytes:
    """Text with one to four stretches left out, doubled, replaced or cut off."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.choice((0, 1, 1, 4, 20)))
        part = chance.choice((chance.choice(ODD_TEXTS), text[start:end] * 2, chance.randbytes(1)))
        text = text[:start] + part + (text[end:] if chance.random() < 0.95 else b"")
    return text


def _json_text(chance: random.Random, value: Any) -> bytes:
    """Damaged as a value, as a text, or both."""
    value = damaged(chance, value) if chance.random() < 0.7 else value
    text = json.dumps(value).encode()
    return scrambled(chance, text) if chance.random() < 0.4 else text


def _csv(rows: list[list[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode(errors="replace")


def _table(chance: random.Random) -> tuple[str, bytes]:
    kind = chance.random()
    if kind < 0.4:
        rows = copy.deepcopy(TABLE)
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice(ODD)
        return "sweep.csv", scrambled(chance, _csv(rows)) if chance.random() < 0.5 else _csv(rows)
    return "result.json", _json_text(chance, VLLM if kind < 0.8 else GUIDELLM)


def _each_is_read_or_refused(path: Path, read: Callable[[random.Random], object]) -> None:
    """`read` succeeds or raises an UnderstudyError: a line a mistake, each with the file or option. What fails names its seed."""
    for seed in range(INPUTS):
        try:
            read(random.Random(seed))
        except UnderstudyError as error:
            lines = str(error).split("\n")
            assert all(line.startswith((str(path), "--set")) for line in lines), f"seed {seed}: {lines}"
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("name", ["smoke.yaml", "quickstart.yaml"])
def test_configs(name: str, configs: Path, tmp_path: Path) -> None:
    """A config file with damage in its text or its values, and overrides of any key to any value."""
    text = (configs / name).read_bytes()
    path = tmp_path / "config.yaml"

    def read(chance: random.Random) -> None:
        kind = chance.random()
        if kind < 0.4:
            path.write_bytes(scrambled(chance, text))
        else:
            raw = yaml.safe_load(text)
            path.write_text(yaml.safe_dump(damaged(chance, raw) if kind < 0.8 else raw))
        load_config(path, [_override(chance) for _ in range(chance.randint(0, 2))])

    _each_is_read_or_refused(path, read)


def _override(chance: random.Random) -> str:
    keys = (
        "name",
        "pair",
        "pair.target.source",
        "corpus.sources.0.path",
        "corpus.splits",
        "distill.max_steps",
        "distill.lora",
    )
    keys += (
        "gate.load",
        "gate.profile",
        "evaluate.gamma",
        "corpus.sources",
        "",
        ".",
        "corpus.sources.x.y",
        "quantize.variants.0",
    )
    text = json.dumps(chance.choice(ODD), ensure_ascii=False)
    if chance.random() < 0.4:
        text = scrambled(chance, text.encode(errors="replace")).decode(errors="ignore").replace("\n", " ")
    return f"{chance.choice(keys)}={text}"


def test_prompt_rows(tmp_path: Path) -> None:
    """A line of JSON costs itself at most: it is a request, or a BadRow, whose reason can be written down."""
    path = tmp_path / "prompts.jsonl"

    def read(chance: random.Random) -> None:
        path.write_bytes(b"\n".join(_json_text(chance, chance.choice(ROWS)) for _ in range(5)))
        source = PromptSource(path=str(path), every_turn=chance.random() < 0.5)
        for row in SourceReader(0, source, path):
            try:
                text = parse_row(row.value, source).comparison_text
            except BadRow as bad:
                text = str(bad)
            assert text.encode()

    _each_is_read_or_refused(path, read)


def test_latency_tables(tmp_path: Path) -> None:
    """Tables and results of load tests: what is read has positive, finite times, and costs can be asked of it."""

    path = tmp_path

    def read(chance: random.Random) -> None:
        name, content = _table(chance)
        (tmp_path / name).write_bytes(content)
        found = read_measurements(tmp_path / name, *({}, {"requests": 4.0}) if chance.random() < 0.3 else ())
        assert all(one.requests > 0 and one.gamma >= 0 and 0 < one.step_seconds < np.inf for one in found)

    _each_is_read_or_refused(path, read)


@pytest.mark.parametrize("subject", ["costs", "profile"])
def test_costs_and_profiles(subject: str, tmp_path: Path) -> None:
    """What `latency fit` and `profile` wrote, altered by hand: a step's times are numbers, or the file is refused."""
    path, good = tmp_path / "costs.json", COSTS if subject == "costs" else PROFILE.json()

    def read(chance: random.Random) -> None:
        path.write_bytes(_json_text(chance, good))
        assert np.isfinite(read_step_costs(path).steps(2, 64, 1)).all()

    _each_is_read_or_refused(path, read)


def test_examinations(tmp_path: Path) -> None:
    """An `acceptance.json` or a baseline, altered by hand."""
    path = tmp_path / "acceptance.json"

    def read(chance: random.Random) -> None:
        path.write_bytes(_json_text(chance, EXAMINATION))
        assert np.isfinite(read_workload(path).rounds_GW).all()

    def read_as_baseline(chance: random.Random) -> None:
        path.write_bytes(_json_text(chance, EXAMINATION))
        read_baseline(read_json(path), str(path))

    _each_is_read_or_refused(path, read)
    _each_is_read_or_refused(path, read_as_baseline)
