"""What is wrong with a command line is told before torch is imported, which takes seconds: for every command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import AIMS

ROOT = Path(__file__).parents[3]
SMOKE = str(ROOT / "configs/smoke.yaml")
LOAD = "--acceptance-rate 0.8 --output-tokens 20 --prompt-tokens 5"
NOTHING = "/no/such"
# By command, words that are wrong in themselves, or name what is not there. {d}: a directory with a config.json; {p}: prompts.
WRONG = {
    "init": [f"--target {NOTHING} --draft {{d}} --prompts {{p}}", f"--target {{d}} --draft {NOTHING} --prompts {{p}}",
             f"--target {{d}} --draft {{d}} --prompts {NOTHING}", "--target {d} --draft {d} --prompts README.md"],
    "plan": [NOTHING, f"{SMOKE} --set plan.rows=10 --measure"],
    "run": [NOTHING, f"{SMOKE} --from nowhere", f"{SMOKE} --set a.b=1"],
    "stage": [f"nowhere {SMOKE} --run x", f"generate {SMOKE} --run x --shards 9/3"],
    "dags": [""],
    "runs": ["more"],
    "show": [NOTHING, "--json --markdown"],
    "compare": [f"{NOTHING} {{d}}"],
    "check": [f"--draft {NOTHING} --baseline {{p}}", "--draft {d} --baseline {p} --margin -1"],
    "probe": [f"--target {NOTHING} --draft {{d}} --prompts {{p}}", "--target {d} --draft {d}",
              "--target {d} --draft {d} --prompts {p} --top-p 0"],
    "decode": [f"--target {NOTHING} --draft {{d}} hi", f"--target {{d}} --draft {NOTHING} hi",
               "--target {d} --draft {d} --gamma 0 hi",
               "--target {d} --draft {d} --temperature -1 hi"],
    "promote": [NOTHING], "rollback": [f"{NOTHING} --reason x"], "history": [NOTHING], "settle": [NOTHING], "verify": [NOTHING],
    "export": [f"{NOTHING} --engine vllm --out out", "{d} --engine tgi --out out", "{d} --engine vllm --out {d}"],
    "watch": [f"{NOTHING} --once"],
    "canary": [NOTHING],
    "fit": [f"{NOTHING} --out costs.json"],
    "predict": [f"--costs {NOTHING} {LOAD} --request-rate 1"],
    "schedule": [f"--costs {NOTHING} {LOAD}"],
    "explain": ["--plain-ms 0 --verify-ms 24 --draft-ms 2 --gamma 5 --acceptance-rate 0.8"],
    "profile": [f"--target {NOTHING} --draft {{d}}", "--target {d} --draft {d} --batch-sizes x"],
    "gc": ["--keep-runs -1"], "sync": [NOTHING], "doctor": ["more"],
}  # fmt: skip
_CALL = """
import json, sys
from pipeline.cli import _main, app
for words in json.load(sys.stdin):
    sys.argv = ["understudy", *words]
    code = _main()
    heavy = sorted({"torch", "transformers"} & set(sys.modules))
    print(json.dumps([code, heavy]), flush=True)
    if heavy:
        break
"""


def test_every_command_has_a_wrong_use() -> None:
    """A new command takes part."""
    assert {one.command.__name__ for listed in AIMS.values() for one in listed} == set(WRONG)


@pytest.mark.long
def test_a_wrong_use_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    """Exit 2 each; all in one process, which imports the light modules once."""

    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "p.jsonl").write_text('{"prompt": "hi"}\n')
    (tmp_path / "README.md").write_text("no prompts")
    groups = {one.command.__name__: one.group for listed in AIMS.values() for one in listed}
    named = [f"{groups[name]} {name} {words}" for name, wrong in WRONG.items() for words in wrong]
    asked = [words.format(d=tmp_path / "model", p=tmp_path / "p.jsonl").split() for words in named]
    ended = subprocess.run(
        [sys.executable, "-c", _CALL], input=json.dumps(asked), capture_output=True, text=True, cwd=tmp_path, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert [(words, 2, []) for words in named] == [(words, *one) for words, one in zip(named, found, strict=False)], (
        ended.stderr[-2000:]
    )
