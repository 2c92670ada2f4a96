"""generate: what it leaves among the files of its artifact."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.tasks import GenerateTask, TargetRole
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.multi_turn import StopReasons
from pipeline.speculation.settings import Sampling
from pipeline.store.artifacts import Store
from stages import generate
from tests.fakes import generation_settings


def test_later_turns_are_spooled_beside_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is deleted while it is read. NFS then keeps it under another name, which a commit would take for one of the
    artifact's files, and which is gone later."""
    given = list[Any]()
    monkeypatch.setattr(generate, "load_tokenizer", lambda *_: None)
    monkeypatch.setattr(generate, "Renderer", lambda *_: None)
    monkeypatch.setattr(generate, "next_turn", lambda *arguments: given.extend(arguments) or [])
    asked = SimpleNamespace(chat_template=None, chat_template_arguments={}, prompt_limit=9)
    context: Any = SimpleNamespace(
        settings=asked,
        resources=SimpleNamespace(trust_remote_code=False),
        out=tmp_path / "work/generate-1",
        store=Store(tmp_path),
    )
    pair: Any = SimpleNamespace(tokenizer=None, vocabulary=9, stop_tokens=[0], template_day=None)
    chat: Any = SimpleNamespace(prompt=SimpleNamespace(chat="chat"))
    generate._next_turn(context, pair, [chat], 1, StopReasons())

    assert tmp_path / "parts" == given[-1]
    assert given[-1].is_dir()


@pytest.mark.parametrize(("target", "used"), [("target", True), ("target_before", False)])
def test_a_log_is_of_the_target_that_is_deployed(
    monkeypatch: pytest.MonkeyPatch, target: TargetRole, used: bool
) -> None:
    """The target before its change completes the prompts itself; the examination compares both."""

    class OneAnswer:
        def __init__(self, corpus: Path) -> None:
            self.answers = [SimpleNamespace(stated={}, tokens=(3, 0), cut=False, exact=True)]

        def __len__(self) -> int:
            return len(self.answers)

        def __iter__(self) -> Any:
            return iter(self.answers)

    monkeypatch.setattr(generate, "StoredAnswers", OneAnswer)
    settings: GenerationSettings = generation_settings(sampling=Sampling())
    task = GenerateTask(target=target, splits=("examination",))
    context: Any = SimpleNamespace(settings=SimpleNamespace(task=task), inputs={"corpus": Path()})
    pair: Any = SimpleNamespace(vocabulary=9, stop_tokens=[0])
    assert used == (generate._logged(context, pair, settings) is not None)
