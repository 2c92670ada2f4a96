"""Breaks central functions one at a time in a temporary copy of a tree, and runs the tests that must notice: `make mutants`.

A break names a function and an expression in it. Both are found in the syntax, so lines, files and folders may change. In an
expression, the names A and B stand for any expression. Another tree: `python -m tests.mutants --tree PATH`.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ANY = ("A", "B")
_COPIED = (
    "pipeline",
    "stages",
    "configs",
    "tests",
    "dags",
    "understudy_cli.py",
    "understudy_pytest.py",
    "pyproject.toml",
)
_SOURCES = ("pipeline", "stages")
_FAILED = 1  # pytest's exit code where tests failed; that of an error of collection is another


@dataclass(frozen=True)
class Break:
    """One central behaviour, and how it is lost."""

    what: str
    function: str  # `name`, or `Class.name`; two where trees of different age have either
    old: str  # an expression; all that match are replaced
    new: str
    tests: tuple[str, ...]  # arguments of pytest


UNIT, INTEGRATION = "tests/unit/", "tests/integration/"
BREAKS = (
    Break(
        "acceptance is q/p, not min(1, q/p)",
        "_accepted _examine_batch",
        "np.minimum(A, 0.0)",
        "A",
        (UNIT + "acceptance/test_examine.py", "-k", "batches_find"),
    ),
    Break(
        "an engine that never clips is counted as one that does",
        "drafted_tokens",
        "convention.clipped",
        "True",
        (UNIT + "acceptance/test_rounds.py",),
    ),
    Break(
        "a round that accepts all has no bonus token",
        "expected_rounds",
        "A + under_JB[-1]",
        "A",
        (UNIT + "acceptance/test_rounds.py",),
    ),
    Break(
        "a rejected token is replaced from p, not from the residual",
        "residual",
        "(A - B).clamp(min=0.0)",
        "A",
        (UNIT + "speculation/test_verification.py",),
    ),
    Break(
        "rejected tokens stay visible in the KV cache",
        "RaggedCache.set_slots",
        "A <= B",
        "(A <= B) | True",
        (UNIT + "speculation/test_cache.py",),
    ),
    Break(
        "the gate compares the estimate, not its lower bound",
        "_proved",
        "gain.low > threshold",
        "gain.value > threshold",
        (UNIT + "judgement/test_policy.py",),
    ),
    Break(
        "a domain may lose any acceptance",
        "_margin",
        "-margin",
        "-1.0",
        (UNIT + "judgement/test_policy.py",),
    ),
    Break(
        "the lock of a store does not wait",
        "lock",
        "self._taken(A, B)",
        "True",
        (UNIT + "running/test_shared_files.py", "-k", "two_processes"),
    ),
    Break(
        "a setting is not part of the key",
        "key_json",
        "fields(A)",
        "fields(A)[1:]",
        (UNIT + "running/test_key_leaves.py",),
    ),
    Break(
        "near-duplicates are split by themselves",
        "identities",
        "A[clusters.first]",
        "A",
        (UNIT + "corpus/test_near_duplicates.py", "-k", "identity or split"),
    ),
    Break(
        "later turns of a chat lose the time of their row",
        "chat_json",
        "fields(RowFacts)",
        "fields(RowFacts)[:2]",
        (UNIT + "corpus/test_spooled_prompts.py", "-k", "come_back"),
    ),
    Break(
        "a request that continues a message is rendered as another",
        "longest_prompt",
        "refusal(row, REFUSED)",
        "None",
        (UNIT + "corpus/test_request_fields.py", "-k", "another_prompt"),
    ),
    Break(
        "a template's own roles are read by the table",
        "parse_row",
        "names.own_roles",
        "{}",
        (UNIT + "corpus/test_traces.py", "-k", "words_of_the_template"),
    ),
    Break(
        "the loss leaves out the mass of tokens that are not stored",
        "sparse_columns",
        "torch.where(bucket_N, 0.0, A)",
        "torch.where(bucket_N, A, A)",
        (UNIT + "distillation/test_losses.py",),
    ),
    Break(
        "positions of packed documents do not begin again",
        "collate",
        "np.arange(end - begin)",
        "np.arange(begin, end)",
        (UNIT + "distillation/test_dataset.py",),
    ),
    Break(
        "the claim of a live process is taken over",
        "_has_died",
        "has_ended(A) is True",
        "True",
        (INTEGRATION + "test_registry.py", "-k", "claim or wins or process"),
    ),
    Break(
        "a champion that changed since the examination is replaced",
        "require_expected",
        "A != B",
        "False",
        (INTEGRATION + "test_registry.py", "-k", "moved_by_hand"),
    ),
    Break(
        "counters that began again count from their old values",
        "_has_restarted",
        "total.value < old.value",
        "False",
        (UNIT + "watch/test_increments.py",),
    ),
    Break(
        "an engine that emits what its own log p exclude is a changed target",
        "_contradiction",
        "divergence.against",
        "False",
        (UNIT + "canary/test_diagnosis.py",),
    ),
    Break(
        "a few large differences of log p are not seen among many tiny ones",
        "about_target",
        "_moved(evidence, bound) > most_beyond(evidence.dtype == 'float32', evidence.log_p_tokens)",
        "False",
        (UNIT + "canary/test_diagnosis.py",),
    ),
    Break(
        "reports of the watch pass over drifts of other states",
        "Findings.open",
        "self.states",
        "{self.key: self.own}",
        (UNIT + "watch/test_several_states.py",),
    ),
    Break(
        "the engine's draft length is taken from the engine",
        "lengths_seen",
        "not wanted.exported",
        "True",
        (UNIT + "canary/test_drafted.py",),
    ),
    Break(
        "windows of the draft are no layers of a pair",
        "mixture_of",
        "set(draft.by_window)",
        "{None}",
        (UNIT + "models/test_attention_layers.py",),
    ),
    Break(
        "a marker that is never found is no error",
        "Segmenter._never_found",
        "marker.find(A, 0) is None",
        "False",
        (UNIT + "segments/test_segmenter.py",),
    ),
)


class _Replace(ast.NodeTransformer):
    """Every expression that matches `old`, as `new`."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = (ast.parse(text, mode="eval").body for text in (old, new))
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        found: dict[str, ast.AST] = {}
        if isinstance(node, ast.expr) and _matches(self.old, node, found):
            self.count += 1
            return _Fill(found).visit(ast.parse(ast.unparse(self.new), mode="eval").body)  # type: ignore[no-any-return]
        return self.generic_visit(node)


class _Fill(ast.NodeTransformer):
    def __init__(self, found: dict[str, ast.AST]) -> None:
        self.found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.found.get(node.id, node)


def _matches(pattern: object, node: object, found: dict[str, ast.AST]) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id in _ANY and isinstance(node, ast.expr):
        return ast.dump(found.setdefault(pattern.id, node)) == ast.dump(node)
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            _matches(getattr(pattern, name), getattr(node, name), found) for name in pattern._fields if name != "ctx"
        )
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(_matches(*pair, found) for pair in zip(pattern, node, strict=True))
    return bool(pattern == node)


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")


@cache
def _sources(root: Path) -> list[tuple[Path, str]]:
    """Every module and its text, unbroken: it is read once for all breaks."""
    paths = sorted(path for folder in _SOURCES for path in (root / folder).rglob("*.py"))
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


def broken(one: Break, root: Path) -> tuple[Path, str]:
    """The file that has the function with the expression, and its source once broken. Exactly one function must have it."""
    found, names = [], one.function.split()
    for path, text in _sources(root):
        if not any(f"def {name.split('.')[-1]}(" in text for name in names):
            continue
        tree = ast.parse(text)
        for name, node in _functions(tree):
            if any(name == wanted or name.endswith(f".{wanted}") for wanted in names):
                replace = _Replace(one.old, one.new)
                replace.generic_visit(node)
                if replace.count:
                    found.append((path, tree))
    if len(found) != 1:
        raise LookupError(f"{one.what}: {len(found)} functions {one.function} have the expression {one.old}")
    ((path, tree),) = found
    return path, ast.unparse(ast.fix_missing_locations(tree))


def copy(tree: Path, place: Path) -> None:
    """Code, configs and tests of a checkout."""
    for name in _COPIED:
        if (tree / name).is_dir():
            shutil.copytree(tree / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif (tree / name).exists():
            shutil.copy(tree / name, place / name)


def run_tests(root: Path, tests: tuple[str, ...]) -> int:
    """pytest's exit code. Nothing compiled is kept, because a break may leave size and mtime of a file as they were."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long", *tests]
    return subprocess.run(line, cwd=root, env=environment, capture_output=True).returncode


def main() -> int:
    """Prints a line for each break; 1 if one stays unnoticed, or if its tests fail without it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parents[1], help="a checkout; this one if not given"
    )
    parser.add_argument("--only", default="", help="breaks whose name contains this")
    options = parser.parse_args()
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        root = Path(place)
        copy(options.tree.resolve(), root)
        for one in BREAKS:
            if options.only in one.what:
                began = time.monotonic()
                verdict = _verdict(one, root)
                unnoticed += verdict != "red"
                print(f"{verdict:28}{time.monotonic() - began:5.0f} s  {one.what}", flush=True)
    print(f"{unnoticed} not noticed" if unnoticed else "every break is noticed")
    return 1 if unnoticed else 0


def _verdict(one: Break, root: Path) -> str:
    try:
        path, source = broken(one, root)
    except LookupError as error:
        return str(error)
    if code := run_tests(root, one.tests):
        return f"exit {code} without the break"
    whole = path.read_bytes()
    path.write_text(source, encoding="utf-8")
    try:
        code = run_tests(root, one.tests)
    finally:
        path.write_bytes(whole)
    return "red" if code == _FAILED else f"exit {code} with the break"


if __name__ == "__main__":
    sys.exit(main())
