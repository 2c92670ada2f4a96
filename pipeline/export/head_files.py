"""The files of a head in the layout that an engine reads: no path of this machine is in them, and no code."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.drafts.other_layouts import HeadFiles, eagle_layout, medusa_layout
from pipeline.engines.facts import HeadLayout
from pipeline.export.checks import NUMBERS
from pipeline.export.for_tgi import WEIGHTS as MEDUSA_WEIGHTS
from pipeline.export.for_tgi import base_model
from pipeline.export.plan import ExportPlan
from pipeline.models.built import read_only_empty_model
from pipeline.models.files import WEIGHTS, copy_files, model_files, tokenizer_files, weight_files
from pipeline.models.loading import load_model
from pipeline.models.model_json import CONFIG
from pipeline.registry.named import Draft
from pipeline.store.files import write_json
from pipeline.store.own_files import reads_own_files


def write_head(plan: ExportPlan, out: Path) -> None:
    """Into `out`, which is an empty directory. UsageError for a head that the layout cannot hold."""
    _WRITERS[plan.facts.heads[plan.draft.kind.name].layout](plan, out)


def _as_stored(plan: ExportPlan, out: Path) -> None:
    copy_files(model_files(plan.draft.directory), plan.draft.directory, out)


def _eagle(plan: ExportPlan, out: Path) -> None:
    draft = plan.draft
    files = eagle_layout(draft.directory, plan.states, _embedding(draft))
    dtype = draft.pair.dtype("target")  # in which engines compute a head, whatever it is stored in
    _write(files, out, WEIGHTS, {"torch_dtype": dtype} if dtype in NUMBERS else {})


def _medusa(plan: ExportPlan, out: Path) -> None:
    files = medusa_layout(plan.draft.directory)
    _write(files, out, MEDUSA_WEIGHTS, {"base_model_name_or_path": base_model(plan.draft)})
    tokenizer = plan.draft.pair.tokenizer  # the router reads it beside the heads
    copy_files(tokenizer_files(tokenizer), tokenizer, out)


def _write(files: HeadFiles, out: Path, name: str, more: dict[str, Any]) -> None:
    save_file({key: tensor.contiguous() for key, tensor in files.tensors.items()}, out / name, {"format": "pt"})
    write_json(out / CONFIG, files.config | more)


@reads_own_files("a model directory that the pair stage has read")
def _embedding(draft: Draft) -> torch.Tensor:
    """The embedding of the target, (V, H). The rest of the target is loaded only where its files have another name for it than
    its model."""
    path, trusted = draft.pair.path("target"), draft.config.pair.trust_remote_code
    built = read_only_empty_model(path, trusted)
    wanted = {f"{name}.weight" for name, module in built.named_modules() if module is built.get_input_embeddings()}
    for file in weight_files(path):
        with safe_open(file, framework="pt") as stored:
            for name in wanted.intersection(stored.keys()):
                tensor: torch.Tensor = stored.get_tensor(name)
                return tensor
    loaded = load_model(path, draft.pair.dtype("target"), torch.device("cpu"), trusted)
    weight: torch.Tensor = loaded.get_input_embeddings().weight.detach()
    return weight


_WRITERS: Mapping[HeadLayout, Callable[[ExportPlan, Path], None]] = {
    "stored": _as_stored,
    "eagle": _eagle,
    "medusa": _medusa,
}
