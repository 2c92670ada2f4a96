"""What is made out of a model is compared with it: logits of some tokens, before, and after the saved files are loaded again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import UnderstudyError
from pipeline.models.fixed_rope import fix_rope
from pipeline.models.loading import load_model
from pipeline.models.placement import input_device
from pipeline.models.saving import own_generation_config, save_model
from pipeline.store.atomic import temporary_directory

_TOKENS = 64
# Largest relative distance of logits where nothing but rounding may differ.
_EQUAL = {"float32": 1e-3}
_ROUNDED = 0.05
_MOST_BYTES = 2 << 30  # of a model that is written for a trial


@dataclass(frozen=True)
class Computed:
    """What a model computes: logits (T, V) of a row of T token ids, as fp32 in host memory."""

    ids: Sequence[int]
    logits_TV: torch.Tensor


@torch.inference_mode()
def computed(model: Any, ids: Sequence[int] = ()) -> Computed:
    """The expected logits of `ids`; without any, of 64 from the whole vocabulary, because the first ids of many are in no
    text."""
    fix_rope(model)  # of a model that was made and not loaded
    if not ids:
        count = model.get_input_embeddings().num_embeddings
        ids = torch.randint(count, (_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    ids_BT = torch.tensor([list(ids)], device=input_device(model))
    return Computed(ids, model(input_ids=ids_BT, use_cache=False).logits[0].float().cpu())


def distance(expected_TV: torch.Tensor, found_TV: torch.Tensor) -> float:
    """Root mean square of the difference over the spread of the expected logits, averaged over positions, in the columns that
    both have; some 1.4 for unrelated models."""
    tokens, width = (min(sizes) for sizes in zip(expected_TV.shape, found_TV.shape, strict=True))
    expected_TV, found_TV = expected_TV[:tokens, :width].double(), found_TV[:tokens, :width].double()
    difference_T = (found_TV - expected_TV).pow(2).mean(-1).sqrt()
    return float((difference_T / expected_TV.std(-1, correction=0).clamp_min(1e-12)).mean())


def check_derived(
    expected: Computed,
    out: Path,
    dtype: str,
    device: torch.device,
    trust_remote_code: bool,
    what: str,
    within: float | None = None,
    columns: int | None = None,
    remedy: str = "its config.json does not describe what it computes; use another model",
) -> None:
    """UnderstudyError where the model in `out`, loaded in `dtype`, does not have the logits of what it was made of.

    `what`: names it in the error; `within`: the largest `distance` that is its nature, None: only rounding; `columns`: of the
    logits that are compared, None: all that both have.
    """
    expected_TV = expected.logits_TV[:, :columns]
    if not bool(torch.isfinite(expected_TV).all()):  # whoever examines the model reports it
        return
    difference = distance(
        expected_TV, computed(load_model(out, dtype, device, trust_remote_code), expected.ids).logits_TV
    )
    allowed = _EQUAL.get(dtype, _ROUNDED) if within is None else within
    if not difference <= allowed:  # also NaN
        raise UnderstudyError(
            f"{what}: what was saved is another model than it was made of: logits differ by {difference:.2g} of their spread "
            f"({allowed:.2g} is allowed); {remedy}"
        )


def prove_saving(model: Any, dtype: str, trust_remote_code: bool, what: str, work: Path) -> None:
    """UnderstudyError where a model that is to be trained cannot be saved, or is another one once it is loaded again: found
    before anything is paid. Of a large model only what decides it without weights is written: its configs. `work`: the directory
    in which it is written, and removed."""
    own_generation_config(model)
    with temporary_directory(work / "saving") as out:
        try:
            if sum(weight.nbytes for weight in model.parameters()) > _MOST_BYTES:
                model.config.save_pretrained(out)
                model.generation_config.save_pretrained(out)
                return
            save_model(model, out)
        except Exception as error:  # of a stranger's model, transformers raises what it happens upon
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of this disk
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UnderstudyError(
                f"{what}: it is loaded and cannot be saved, so no trained draft could be: {reason}; correct its config.json, or "
                "use another draft"
            ) from error
        check_derived(computed(model), out, dtype, input_device(model), trust_remote_code, what)
