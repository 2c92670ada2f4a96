"""Hidden states of the target, which some kinds of drafts read: recorded while the target computes a pass.

A layer has the number of engines and of EAGLE-3 checkpoints: state i is what enters layer i, and state n, of a model of n layers,
is what leaves the last one, before the final norm. NORMED is that state after the final norm, which the output layer reads.
Shapes: B rows, T tokens of a pass, H hidden size.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pipeline.errors import UsageError
from pipeline.models.built import decoder_layers

NORMED = -1
# By the number of the layer: (B, T, H) at the positions of a pass.
Features = dict[int, torch.Tensor]


class StateRecorder:
    """Records states of `layers` of `model`. UsageError for layers that the model does not have, and for a model whose layers
    cannot be found."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        named = decoder_layers(model) if hasattr(model, "get_decoder") else None
        if named is None:
            raise UsageError(
                f"the layers of a {type(model).__name__} cannot be found, so no draft that reads its hidden states can be used "
                "with it; use a draft that reads tokens alone"
            )
        self._layers, self._decoder, self.wanted = named[1], model.get_decoder(), tuple(layers)
        if wrong := [layer for layer in layers if not NORMED <= layer <= len(self._layers)]:
            raise UsageError(
                f"the draft reads the hidden state of layer {wrong[0]} of the target, which has layers 0 to {len(self._layers)}: "
                "it was made for another target"
            )

    @contextmanager
    def recording(self) -> Iterator[list[Features]]:
        """The states of each pass that the model computes meanwhile, in order."""
        passes = list[Features]()

        def keep(layer: int, state: Any) -> None:
            if not passes or layer in passes[-1]:
                passes.append({})
            passes[-1][layer] = state[0] if isinstance(state, tuple) else state

        with ExitStack() as hooks:
            for layer in self.wanted:
                hooks.callback(self._hook(layer, keep).remove)
            yield passes

    def _hook(self, layer: int, keep: Any) -> Any:
        if layer == NORMED:
            return self._decoder.register_forward_hook(
                lambda module, args, output: keep(layer, output.last_hidden_state)
            )
        if layer == len(self._layers):
            return self._layers[-1].register_forward_hook(lambda module, args, output: keep(layer, output))
        return self._layers[layer].register_forward_pre_hook(
            lambda module, args, named: keep(layer, args[0] if args else named["hidden_states"]), with_kwargs=True
        )
