"""One step of a training before anything is paid, with the run's own settings: its loss, optimizer and adapters, a checkpoint,
and what is merged at the end. On made-up completions, whose text does not matter."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config.distill import DistillConfig
from pipeline.distillation.launchers import current
from pipeline.distillation.settings import TrainingSettings
from pipeline.drafts.head_config import kind_of
from pipeline.drafts.head_tensors import measure_draft
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import pack, sparsify
from pipeline.models.built import empty_model
from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.stored_pair import Pair
from pipeline.progress import Progress
from pipeline.speculation.settings import GREEDY
from pipeline.store.atomic import temporary_directory

_PROMPT, _TOKENS = 4, 8  # of a made-up completion
_KEPT = 4  # entries of its distributions
_MOST_PARAMETERS = 500_000_000  # of a draft that is trained and written for a trial
_ONE_STEP = {"max_steps": 1, "batch": 1, "accumulation": 1, "evaluate_every": 1, "save_every": 1, "warmup_share": 0.0}
_RATE = 1e-3  # of a step, where the rate is to be found


def prove_training(pair: Pair, settings: TrainingSettings, device: str, trust_remote_code: bool, work: Path) -> None:
    """UnderstudyError where a step of training of the base draft of `pair` fails, or leaves numbers that are not finite. `work`:
    the directory in which the draft is written, and removed.

    A large draft, and one that processes of a launcher train together, only makes a step without numbers.
    """
    path = pair.path("draft")
    try:
        if current() is not None or measure_draft(path, trust_remote_code).parameters > _MOST_PARAMETERS:
            _step_without_numbers(path, trust_remote_code)
            return
        with temporary_directory(work / "trial") as place:
            _step(pair, settings, device, trust_remote_code, place)
    except Exception as error:  # a model's own code may raise anything
        if is_out_of_memory(error):  # not known: batches of a training are made smaller where they do not fit
            return
        if isinstance(error, UnderstudyError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # in one line already, or of this disk
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnderstudyError(
            f"{path}: a step of training fails: {type(error).__name__}: {reason}; use another draft, or other settings of "
            f"distill ({_chosen(settings)})"
        ) from error
    finally:
        if torch.cuda.is_available():  # other processes compute there next
            gc.collect()
            torch.cuda.empty_cache()


def _step(pair: Pair, settings: TrainingSettings, device: str, trust_remote_code: bool, place: Path) -> None:
    # Imported here because the trainer's library takes seconds to load.
    from pipeline.distillation.adapters import merge_adapters
    from pipeline.distillation.trainer import distill
    from pipeline.distillation.training import Training
    from pipeline.distillation.weighted_completions import WeightedCompletions
    from pipeline.models.loading import load_tokenizer

    training = Training(settings, pair, (), Progress(terminal=False), device, trust_remote_code)
    model: Any = training.draft()
    distill(
        model,
        load_tokenizer(pair.tokenizer, trust_remote_code),
        WeightedCompletions(_completions(pair.vocabulary), pair.vocabulary),
        _one_step(settings.distill),
        seed=settings.seed,
        work=place,
        examine=_better(),
        progress=training.progress,
    )
    trained = model if settings.distill.lora is None else merge_adapters(model)
    if not all(bool(torch.isfinite(weight).all()) for weight in trained.parameters()):
        raise UnderstudyError(
            f"{pair.path('draft')}: a step of training leaves weights that are NaN or infinite; lower distill.learning_rate, or "
            "use another draft"
        )


def _one_step(settings: DistillConfig) -> DistillConfig:
    rate = {} if settings.learning_rate != "auto" else {"learning_rate": _RATE}
    return settings.model_copy(update=_ONE_STEP | rate)


def _better() -> Any:
    """An examination that finds a better draft each time, so that the trained weights are kept."""
    asked = iter(range(1, 100))
    return lambda _: AcceptanceSummary(0.5, float(next(asked)))


def _completions(vocabulary: int) -> list[StoredCompletion]:
    """Two completions of random tokens."""
    generator, count, kept = np.random.default_rng(0), _TOKENS, min(_KEPT, vocabulary - 1)
    completions = []
    for number in range(2):
        logits_NV = torch.from_numpy(generator.normal(size=(count, vocabulary)))
        stored = sparsify(logits_NV.log_softmax(-1), kept, "sampled", generator.random(count))
        name = f"trial {number}"
        completions.append(
            StoredCompletion(
                id=name, text_id=name, conversation=name, split="train", domain="trial", sampling=GREEDY,
                prompt=generator.integers(vocabulary, size=_PROMPT, dtype=np.int32), length=count, stopped=False,
                tokens=generator.integers(vocabulary, size=count, dtype=np.int32), log_p=np.zeros(count, np.float32),
                entries=pack(stored, vocabulary), certain=stored.certain_N, rest_log_p=stored.rest_log_p_N,
                vocabulary=vocabulary,
            )
        )  # fmt: skip
    return completions


def _step_without_numbers(path: Path, trust_remote_code: bool) -> None:
    """A loss with its gradients, of the model without memory for its weights. What fails for lack of numbers means nothing: some
    models decide by them."""
    if kind_of(path).reads_states:
        return
    model = empty_model(path, trust_remote_code).train()
    ids_BT = torch.zeros(1, _TOKENS, dtype=torch.long, device="meta")
    try:
        logits_TV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
        torch.nn.functional.cross_entropy(logits_TV[:-1], ids_BT[0, 1:]).backward()  # type: ignore[no-untyped-call]
    except Exception:
        return
    if all(weight.grad is None for weight in model.parameters()):
        raise UnderstudyError(f"{path}: its loss has no gradient, so it cannot be trained; use another draft")


def _chosen(settings: TrainingSettings) -> str:
    distill = settings.distill
    return f"loss {distill.loss}, optimizer {distill.optimizer}, lora {'on' if distill.lora else 'off'}"
