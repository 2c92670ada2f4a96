"""What transformers has no place for in a model, all of it. Its report leaves out the names that a class of models lists as
ignored, and a weight may have such a name: whether it matters is decided by the ledger of tensors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedModel

from pipeline.errors import UnderstudyError

_SHORTENS = "_adjust_missing_and_unexpected_keys"  # a method of every model, which leaves names out of a report
_lock = threading.RLock()


@contextmanager
def reported_in_full() -> Iterator[set[str]]:
    """The names without a place of the model that is loaded within this context, filled in when it is loaded. UnderstudyError
    for a version of transformers that does not say."""
    with _lock:
        own, found = getattr(PreTrainedModel, _SHORTENS, None), set[str]()
        if own is None:
            raise UnderstudyError(
                f"transformers {version('transformers')} does not report which tensors it left out of a model; install one that "
                "is known to (pip install transformers==5.23.0)"
            )

        def shorten(model: Any, info: Any, *others: Any, **named: Any) -> Any:
            found.update(info.unexpected_keys)
            return own(model, info, *others, **named)

        setattr(PreTrainedModel, _SHORTENS, shorten)
        try:
            yield found
        finally:
            setattr(PreTrainedModel, _SHORTENS, own)
