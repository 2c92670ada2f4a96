"""What a manifest says of workers."""

from pipeline.running.environment import WorkerFacts, environment_of, highest_peak

H100, A100 = (
    WorkerFacts(f"cuda {name}", {"process": size, "gpu": 3 * size}) for name, size in (("H100", 5), ("A100", 7))
)


def test_workers_decide_what_is_said_of_the_device() -> None:
    """Each class once, and how many workers there were; without workers it is the driver's own."""
    assert {} == environment_of([])
    assert {"device": "cuda A100, cuda H100", "workers": "3"} == environment_of([H100, A100, H100])


def test_the_highest_peak_by_kind_of_memory() -> None:
    """The driver may hold more than any worker, and has no GPU."""
    assert {"process": 9, "gpu": 21} == highest_peak({"process": 9}, [H100, A100])
    assert {"process": 9} == highest_peak({"process": 9}, [])
