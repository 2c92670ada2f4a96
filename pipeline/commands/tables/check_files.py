"""The files that `understudy check` writes for CI."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.tables.check import CheckResult, check_json, check_markdown
from pipeline.commands.tables.check_junit import check_junit
from pipeline.errors import UsageError
from pipeline.store.files import check_user_file

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub Actions names a file here; what is appended to it is shown with the job


@dataclass(frozen=True)
class _File:
    name: str  # the option, or the variable
    path: Path
    render: Callable[[CheckResult], str]
    append: bool = False


@dataclass(frozen=True)
class CheckFiles:
    """The files that the renderings go to."""

    files: tuple[_File, ...]

    def prepare(self, baseline: Path) -> None:
        """UsageError for a file that cannot be written. A file of an earlier check is deleted, so that it cannot be mistaken
        for the result of this one."""
        taken = {baseline.resolve(): "--baseline"}
        for file in self.files:
            if other := taken.get(file.path.resolve()):
                raise UsageError(f"{file.name} {file.path}: the same file as {other}; choose another name")
            taken[file.path.resolve()] = file.name
            check_user_file(file.path, file.name)
        for file in self.files:
            if not file.append and file.path.is_file():
                file.path.unlink()

    def write(self, result: CheckResult) -> None:
        """Write every file. UsageError, with the result's own line, if one cannot be written."""
        for file in self.files:
            try:
                with file.path.open("a" if file.append else "w", encoding="utf-8") as stream:
                    stream.write(file.render(result))
            except OSError as error:
                raise UsageError(
                    f"{file.name} {file.path}: {error.strerror or error}; the check itself ended with: {result.line}"
                ) from None


def check_files(junit: Path | None, summary: Path | None, json_file: Path | None) -> CheckFiles:
    """The files that the options name. Without --summary, the summary is appended to the file that GITHUB_STEP_SUMMARY names."""
    files = []
    if junit is not None:
        files.append(_File("--junit", junit, check_junit))
    if summary is not None:
        files.append(_File("--summary", summary, check_markdown))
    elif named := os.environ.get(STEP_SUMMARY):
        files.append(_File(STEP_SUMMARY, Path(named), check_markdown, append=True))
    if json_file is not None:
        files.append(_File("--json", json_file, _json_text))
    return CheckFiles(tuple(files))


def _json_text(result: CheckResult) -> str:
    return json.dumps(check_json(result), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
