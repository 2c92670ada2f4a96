"""What a worker says of itself with each part that it has made, and what a manifest says of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.running.environment import device_class
from pipeline.running.peak_memory import peak_so_far


@dataclass(frozen=True)
class WorkerFacts:
    """The class of its device, and its peak memory until now in bytes, of the process and of its GPU."""

    device: str
    peak: Mapping[str, int]


def own_facts(device: str) -> WorkerFacts:
    """Of this process, which computes on the device called `device`."""
    return WorkerFacts(device_class(device), peak_so_far())


def environment_of(workers: Sequence[WorkerFacts]) -> dict[str, str]:
    """In place of the driver's own device, on which nothing was computed; empty without workers."""
    if not workers:
        return {}
    return {"device": ", ".join(sorted({one.device for one in workers})), "workers": str(len(workers))}


def highest_peak(own: Mapping[str, int], workers: Sequence[WorkerFacts]) -> dict[str, int]:
    """Of the driver and each worker, the highest by kind of memory."""
    peaks = [own, *(one.peak for one in workers)]
    return {
        kind: max(peak.get(kind, 0) for peak in peaks) for kind in sorted({kind for peak in peaks for kind in peak})
    }
