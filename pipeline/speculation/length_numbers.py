"""Numbers in a model at which it changes with the length of a text, other than windows: shortened while the model is proved, so
that short rows stand on both sides of each. Does not depend on how a model is computed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.placement import input_device
from pipeline.speculation.proof import changes, plain_pass

# The context before RoPE was scaled (in code that ships with a model), how many tokens sparse attention chooses, and the length
# from which attention is scaled.
_NAMES = ("original_max_position_embeddings", "index_topk", "seq_length", "floor_scale")
_LONGER = 24
_LATER = 64 * 16  # tokens; attention by relative positions does not change with it
_CLEAR = 3.0  # times the rounding
SHORT = 16  # of rows with 14, 18 and 32 tokens one stays within it
Place = tuple[Any, str]  # an object or a dictionary, and the name in it


@contextmanager
def short_lengths(model: Any, vocabulary: int) -> Iterator[list[str]]:
    """Shorten the numbers that change the logits of a row longer than `SHORT`; the names of those that are not compared with the
    positions that the model is told. Those are right in a batch of ragged rows too; the others, of lower precision, are not told
    from rounding there."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    row = torch.randint(vocabulary, (_LONGER,), generator=torch.Generator().manual_seed(0)).tolist()

    @torch.inference_mode()
    def logits(offset: int = 0) -> torch.Tensor:
        if not offset:
            return plain_pass(model, [row], vocabulary)[0]
        places_1T = torch.arange(offset, offset + len(row), device=input_device(model))[None]
        ids_1T = torch.tensor([row], device=input_device(model))
        logits_1TV: torch.Tensor = model(input_ids=ids_1T, position_ids=places_1T, use_cache=False).logits
        return logits_1TV[0, :, :vocabulary]

    with ExitStack() as stack:
        names = []
        for name in _NAMES:
            places = [place for place in _places(model, text, name) if _get(place) > SHORT]
            if places and _changes(places, logits):
                later = _later_position(model, text)
                follows = later is not None and _follows(places, logits, later)
                stack.enter_context(_set(places))
                names += [] if follows else [name]
        yield names


def _places(model: Any, config: Any, name: str) -> list[Place]:
    """The places where a number of this name stands: in the config, in sections of it, and in modules that took it from there."""
    sections: list[Any] = [config]
    for section in ("rope_parameters", "rope_scaling"):
        if isinstance(outer := getattr(config, section, None), dict):
            sections += [outer, *(inner for inner in outer.values() if isinstance(inner, dict))]
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    places = [(place, name) for place in (*sections, *modules)]
    return [place for place in places if type(_get(place)) is int]


def _get(place: Place) -> Any:
    owner, name = place
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, "__dict__", {}).get(name)


def _changes(places: list[Place], logits: Callable[[], torch.Tensor]) -> bool:
    try:
        return changes(logits, _set(places))
    except Exception as error:  # a number that tensors were sized by; or a model that computes nothing
        if is_out_of_memory(error):
            raise
        return False


def _later_position(model: Any, config: Any) -> int | None:
    """A position far behind the first, at which the model can begin a row. None where that is not known: a table that is read
    behind its end leaves a GPU unusable, and a model's own code may have tables of any size."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or type(model).__module__.partition(".")[0] != "transformers":
        return None
    later = min(_LATER, context - _LONGER)
    return later if later > SHORT else None


def _follows(places: list[Place], logits: Callable[[int], torch.Tensor], later: int) -> bool:
    """Whether a row that begins at a later position has other logits because of the number, and not because of rounding."""
    try:
        rounding = (logits(0) - logits(later)).float().abs().mean()
        with _set(places):
            moved = (logits(0) - logits(later)).float().abs().mean()
    except Exception:  # a model that takes no positions
        return False
    return bool(moved > _CLEAR * rounding)


@contextmanager
def _set(places: list[Place]) -> Iterator[None]:
    sizes = [_get(place) for place in places]

    def put(values: list[int]) -> None:
        for (owner, name), value in zip(places, values, strict=True):
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)

    try:
        put([SHORT] * len(places))
        yield
    finally:
        put(sizes)
