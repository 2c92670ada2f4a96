"""A head is held against its target before weights are loaded, in the words in which loading it refuses it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.config.pair import HeadShape
from pipeline.drafts import head_tensors
from pipeline.drafts.fitting_head import parameters_of_untrained, require_fitting
from pipeline.drafts.head_config import find_target, kind_of, require_target
from pipeline.drafts.head_tensors import read_tensors
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import new_head
from pipeline.errors import UnderstudyError, UsageError
from pipeline.speculation.target_states import TargetStates
from tests.fakes import tiny_llama
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa

_META = torch.device("meta")


def _target(**sizes: int) -> Any:
    return tiny_llama(0, **{"vocabulary": 32, "hidden": 32, "layers": 4, **sizes}, dtype=torch.float32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "target"
    _target().save_pretrained(directory)
    return directory


def _with_token(name: str, token: int) -> Callable[[Path], Path]:
    """A head whose last token is another."""

    def write(path: Path) -> Path:
        model = _target()
        head = write_eagle3(path, eagle3_draft(model, kept=20)) if name == "d2t" else _of_part(path, model)
        tensors = load_file(head / "model.safetensors")
        if name == "d2t":
            tensors["d2t"][-1] = token - 19
            del tensors["t2d"]
        else:
            tensors["token_map"][-1] = token
        save_file(tensors, head / "model.safetensors")
        return head

    return write


def _of_part(path: Path, model: Any) -> Path:
    """Medusa heads with one output layer a place of 20 tokens."""
    head = write_medusa(path, medusa_draft(model), truncated_vocab_size=20)
    tensors = load_file(head / "model.safetensors")
    tensors = {name: one[:20].clone() if name.count(".") == 3 else one for name, one in tensors.items()}
    save_file({**tensors, "token_map": torch.arange(20)}, head / "model.safetensors")
    return head


def _with(**sizes: Any) -> Callable[[Path], Path]:
    """A head whose config.json states other sizes of its layers."""

    def write(path: Path) -> Path:
        head = write_eagle3(path, eagle3_draft(_target()))
        config = json.loads((head / "config.json").read_text())
        config["transformer_layer_config"] |= sizes
        (head / "config.json").write_text(json.dumps(config))
        return head

    return write


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "deeper": (
        lambda path: write_eagle3(path, eagle3_draft(_target()), eagle_aux_hidden_state_layer_ids=[1, 3, 5]),
        "reads hidden states [1, 3, 5] of a target of 4 layers",
    ),
    "vocabulary": (
        lambda path: write_eagle3(path, eagle3_draft(_target(vocabulary=24))),
        "was made for a target of 24 tokens, and this one has 32",
    ),
    "width": (
        lambda path: write_eagle3(path, eagle3_draft(_target(hidden=48))),
        "fc.weight has the shape (48, 144), and the configs of head and target make it (48, 96)",
    ),
    "d2t": (_with_token("d2t", 32), "d2t and t2d do not name 20 different tokens of 32"),
    "no heads": (_with(num_attention_heads=0), "config.json: unsupported model: "),
    "a text": (_with(num_attention_heads="4"), "config.json: unsupported model: "),
    "an activation": (_with(hidden_act="foo"), "config.json: unsupported model: "),
    "medusa": (
        lambda path: write_medusa(path, medusa_draft(_target(hidden=48))),
        "were made for a target of hidden size 48 and 32 tokens, and this one has 32 and 32",
    ),
}


@pytest.mark.parametrize(("write", "line"), WRONG.values(), ids=WRONG)
def test_what_loading_refuses_is_refused_before(
    tmp_path: Path, target: Path, write: Callable[[Path], Path], line: str
) -> None:
    head, model = write(tmp_path / "head"), _target()
    with pytest.raises(UnderstudyError) as loading:
        load_head(kind_of(head), head, TargetStates(model), 32)
    with pytest.raises(UsageError) as before:
        require_fitting(head, target, False)

    assert line in str(before.value)
    assert f"pair.draft: {loading.value}" == str(before.value)


def test_a_head_with_a_larger_vocabulary_drafts_no_token_that_the_target_lacks(tmp_path: Path, target: Path) -> None:
    """Its columns may be padded; its map says what it drafts."""
    made = eagle3_draft(_target(vocabulary=40), kept=20)
    with pytest.raises(UsageError, match=r"the head drafts token \d+ \(d2t\), and the target has 32 tokens"):
        require_fitting(write_eagle3(tmp_path / "head", made), target, False)


def test_a_map_of_medusa_heads_names_tokens_of_the_target(tmp_path: Path) -> None:
    head, states = _with_token("token_map", 32)(tmp_path / "head"), TargetStates(_target())
    with pytest.raises(UnderstudyError, match="token_map does not name 20 of the target's 32 tokens"):
        load_head(kind_of(head), head, states, 32)
    assert 20 == len(load_head(kind_of(head), _of_part(tmp_path / "right", _target()), states, 32).models[0].targets_D)


def test_only_maps_are_read(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of gigabytes is checked in the time that its headers take."""
    heads = [
        write_eagle3(tmp_path / "speculators", eagle3_draft(_target(), kept=20)),
        write_eagle3(tmp_path / "eagle", eagle3_draft(_target()), "eagle"),
        write_medusa(tmp_path / "medusa", medusa_draft(_target())),
    ]
    read, opened = list[str](), head_tensors.safe_open

    def recorded(*arguments: Any) -> Any:
        found = opened(*arguments)
        enter = found.__enter__()

        class Recorder:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                found.__exit__(*_)

            def keys(self) -> Any:
                return enter.keys()

            def get_tensor(self, name: str) -> torch.Tensor:
                read.append(name)
                tensor: torch.Tensor = enter.get_tensor(name)
                return tensor

        return Recorder()

    monkeypatch.setattr(head_tensors, "safe_open", recorded)
    for head in heads:
        require_fitting(head, target, False)
        found = read_tensors(head, _META)
        assert {name: tuple(one.shape) for name, one in read_tensors(head).items()} == {
            name: tuple(one.shape) for name, one in found.items()
        }
        assert {"d2t", "t2d"} >= {name for name, one in found.items() if one.device != _META}
        read, before = list[str](), read
        assert {"d2t", "t2d"} & set(before) == ({"d2t", "t2d"} if head is heads[0] else set())


def test_a_head_that_is_to_be_made(target: Path) -> None:
    """Its layer ids are held against the depth of the target, and its size is that of the head that is made."""
    with pytest.raises(
        UsageError, match=r"pair\.draft: the head of head\.layer_ids reads hidden states \[1, 9\] of a target"
    ):
        require_fitting(HeadShape(kind="eagle3", layer_ids=(1, 9)), target, False)
    for shape in (HeadShape(kind="eagle3"), HeadShape(kind="medusa", places=2)):
        require_fitting(shape, target, False)
        made: Any = new_head(_target(), shape, 0)
        assert sum(one.numel() for one in made.parameters()) == parameters_of_untrained(shape, target, False)


def test_a_head_in_the_place_of_its_target_is_named(tmp_path: Path, target: Path) -> None:
    """On the command line and in a config, also of a kind that is not examined here."""
    head = write_eagle3(tmp_path / "head", eagle3_draft(_target()))
    other = write_eagle3(tmp_path / "other", eagle3_draft(_target()), speculators_model_type="dflash")
    assert target == find_target(str(target))
    with pytest.raises(
        UsageError, match=r"--target .*head: this is a draft \(kind eagle3\), not a target.*; swap target"
    ):
        find_target(str(head))
    with pytest.raises(UsageError, match=r"pair\.target: this is a draft \(kind dflash\), not a target"):
        require_target(other, "pair.target")


def test_a_map_may_have_the_prefix_of_a_model(tmp_path: Path, target: Path) -> None:
    """As other tensors; its numbers are read either way."""
    head = write_eagle3(tmp_path / "head", eagle3_draft(_target(), kept=20))
    tensors = load_file(head / "model.safetensors")
    save_file({f"model.{name}": one for name, one in tensors.items()}, head / "model.safetensors")
    require_fitting(head, target, False)
