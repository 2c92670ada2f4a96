"""A stand-in for the `understudy` command, and DAGs that run against it in this process."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

ROOT = Path(__file__).resolve().parents[2]

# Notes its arguments, and answers as the file beside it says: by the words of the command, the exit code and the output of each
# call; the last one stays. Without an entry: 0, and `{}` where JSON was asked for.
SCRIPT = """#!{python} -S
import json, os, sys
place = os.path.dirname(os.path.abspath(__file__))
words = " ".join(word for word in sys.argv[1:4] if not word.startswith("-"))
with open(place + "/calls.jsonl", "a") as stream:
    stream.write(json.dumps([words, *sys.argv[1:]]) + "\\n")
with open(place + "/calls.jsonl") as stream:
    calls = sum(json.loads(line)[0] == words for line in stream)
with open(place + "/answers.json") as stream:
    given = json.load(stream).get(words, [[0, "{{}}"]])
code, said = given[min(calls, len(given)) - 1]
if "--json" in sys.argv:
    print(said)
sys.exit(code)
"""

Answers = Mapping[str, Sequence[tuple[int, str]]]


@dataclass(frozen=True)
class StandIn:
    """The command in a directory of its own."""

    place: Path

    @property
    def command(self) -> str:
        return str(self.place / "understudy")

    def answer(self, answers: Answers) -> None:
        (self.place / "answers.json").write_text(json.dumps(dict(answers)))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        log = self.place / "calls.jsonl"
        return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def called(self) -> list[str]:
        """The words of each call: the command, the stage, and whether JSON was asked for."""
        log = self.place / "calls.jsonl"
        return [json.loads(line)[0] for line in log.read_text().splitlines()] if log.exists() else []


def stand_in(place: Path) -> StandIn:
    """Write the command, with an answer of 0 to everything."""
    made = StandIn(place)
    place.mkdir(exist_ok=True)
    (place / "understudy").write_text(SCRIPT.format(python=sys.executable))
    (place / "understudy").chmod(0o755)
    made.answer({})
    return made


def load(dag_id: str, path: Path = ROOT / "dags") -> DAG:
    """The DAG as Airflow reads it, freshly."""
    bag = DagBag(path)
    assert bag.import_errors == {}
    dag: DAG = bag.dags[dag_id]
    return dag


def without_waiting(dag: DAG, retries: int = 0) -> DAG:
    """At most so many retries, at once."""
    for task in dag.tasks:
        task.retries, task.retry_delay, task.retry_exponential_backoff = min(task.retries, retries), timedelta(0), 0
    return dag


def run(dag: DAG, conf: Mapping[str, Any] | None = None) -> tuple[str, str, dict[str, str]]:
    """Run `dag` to its end; its run id, state and tasks' states."""
    with patch("time.sleep"):  # Airflow sleeps a second whenever tasks were only skipped
        ended = dag.test(run_conf=dict(conf or {}))
    states = {task.task_id: str(task.state) for task in ended.get_task_instances()}
    return str(ended.run_id), str(ended.state), states
