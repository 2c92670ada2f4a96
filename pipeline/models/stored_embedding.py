"""The input embedding of a model, read alone: nothing else of the model is loaded."""

from pathlib import Path

import torch
from safetensors import safe_open

from pipeline.models.built import read_only_empty_model
from pipeline.models.safetensors_header import FLOATS
from pipeline.models.tensor_ledger import stored_tensors
from pipeline.store.own_files import reads_own_files


@reads_own_files("a file whose header was read")
def stored_embedding(path: Path, trust_remote_code: bool = False) -> torch.Tensor | str:
    """(V, E) in fp32, of the model in `path`; or why it is not known, where its files have no such tensor of floats. A model may
    scale it. Raises as `read_only_empty_model` and `stored_tensors` do."""
    built = read_only_empty_model(path, trust_remote_code)
    embedding, stored = built.get_input_embeddings(), stored_tensors(path)
    name = next(name for name, module in built.named_modules() if module is embedding)
    leaf, shape = f"{name.rpartition('.')[2]}.weight", list(embedding.weight.shape)
    # A checkpoint may lack a prefix of the model, or have another one. Layers that predict several tokens have copies further in.
    candidates = [
        candidate for candidate in stored if f".{candidate}".endswith(f".{leaf}") and stored[candidate].shape == shape
    ]
    name = min(candidates, key=lambda candidate: (candidate.count("."), candidate), default="")
    if not name or stored[name].dtype not in FLOATS:
        return "the embedding in the target's files is no tensor of floats"
    with safe_open(stored.file(name), framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
    return tensor.float()
