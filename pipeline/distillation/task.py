"""A training as its task describes it: what it reads of the completions of `generate`, and the training itself, in one process or
as one of several."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.pair import DeviceMap
from pipeline.distillation.mixing import mix
from pipeline.distillation.processes import is_first, join, leave
from pipeline.distillation.segments import segment_weights
from pipeline.distillation.settings import TrainingSettings, TrainingTask
from pipeline.distillation.training import Training
from pipeline.distillation.weighted_completions import ScoredPrompts
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import StoredCompletions, chosen, column
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.progress import Progress
from pipeline.speculation.settings import Sampling
from pipeline.store.parsing import format_of


@dataclass(frozen=True)
class TrainingData:
    """Completions of a training."""

    train: Sequence[StoredCompletion]  # once each
    rows: Sequence[StoredCompletion]  # as often as they are trained on
    prompts: ScoredPrompts | None  # positions of prompts that are trained on too
    weights: Mapping[str, float]  # of a token in the loss, by its segment
    dev: Sequence[StoredCompletion]  # at the deployment's sampling


def training_data(
    completions: Path, settings: TrainingSettings, share: float | None = None, prompts: Path | None = None
) -> TrainingData:
    """What is trained on of all train completions, or of a `share` of them. A token weighs what it does in the whole: a part may
    lack a segment. `prompts`: where the target's distributions over prompts are."""
    distill = settings.distill
    train: Sequence[StoredCompletion] = StoredCompletions.open(completions, {"train"})
    dev = StoredCompletions.open(completions, {"dev"}, Sampling.from_config(settings.sampling))
    rows = mix(train, distill.domain_shares, settings.seed)
    weights = segment_weights(rows, distill.segment_shares)
    if share is not None:
        train = subset(train, share)
        rows = mix(train, distill.domain_shares, settings.seed)
    return TrainingData(train, rows, ScoredPrompts.read(prompts, distill.prompt_weight), weights, dev)


def subset(completions: Sequence[StoredCompletion], share: float) -> Sequence[StoredCompletion]:
    """The completions of a share of each domain's prompts. The subset of a smaller share is contained in that of a larger one."""
    id_N, domain_N = column(completions, "id"), column(completions, "domain")
    is_chosen_N = np.zeros(len(id_N), dtype=bool)
    for domain in np.unique(domain_N):
        prompts = np.unique(id_N[domain_N == domain])
        is_chosen_N |= np.isin(id_N, _by_digest(prompts)[: max(1, round(share * len(prompts)))])
    return chosen(completions, np.flatnonzero(is_chosen_N))


def _by_digest(prompts: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """Prompts sorted by a digest of each, so that the order of two does not depend on the others."""
    digests = b"".join(hashlib.sha256(b"learning curve " + prompt).digest() for prompt in prompts.tolist())
    words_PW = np.frombuffer(digests, dtype=">u8").reshape(len(prompts), -1)
    return prompts[np.lexsort(words_PW.T[::-1])]


def training_of(
    task: TrainingTask,
    pair: Pair,
    device: str,
    progress: Progress,
    *,
    target_device_map: DeviceMap | None = None,
    shard: bool = False,
) -> tuple[Training, TrainingData]:
    """The training of `task` in this process, and its data. `shard`: among other processes, which divide the draft."""
    data = training_data(task.completions, task.settings, task.share, task.prompts)
    training = Training(
        task.settings,
        pair,
        data.dev,
        progress,
        device,
        task.trust_remote_code,
        target_device_map,
        shard=shard,
        prompts=data.prompts,
    )
    return training, data


class _Sent(Progress):
    """Lines for the process that started this one; of the first worker only."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(terminal=False)
        self._send = send

    def line(self, text: str) -> None:
        if is_first():
            self._send(text)


def work(path: Path, send: Callable[[str], None]) -> None:
    """What one of several processes does: train, with the others of the launch. Files and lines, which it sends, are the first
    process's."""
    task = format_of(TrainingTask).read(path)
    device = str(join(task.device))
    training, data = training_of(task, read_pair(task.pair, task.places), device, _Sent(send), shard=task.shard)
    training.require_memory()
    training.run_phases(data.rows, data.weights, task.work)
    leave()
