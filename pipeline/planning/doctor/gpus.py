"""GPUs: what torch sees of them, what follows from it, and why it sees none. Imports torch, if it is installed."""

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from pipeline.planning.doctor.check import GIB, Check, first_line, installed

_SECONDS = 10.0  # for the driver's program
_BF16, _FP8 = (8, 0), (8, 9)  # the least compute capabilities with such matmuls


@dataclass(frozen=True)
class Card:
    """One GPU, as torch names it. `capability`: major and minor."""

    name: str
    total: int  # bytes
    free: int | None  # not known of a card that is full, or that another process has to itself
    capability: tuple[int, int]

    @property
    def family(self) -> str:
        """The name of the compute capability, as torch lists what it is built for, such as `sm_90`."""
        return "sm_{}{}".format(*self.capability)

    def check(self, number: int, built_for: tuple[str, ...]) -> Check:
        """The result for this GPU: what it is, and what follows."""
        capability = ".".join(map(str, self.capability))
        free = "free memory unknown" if self.free is None else f"{self.free / GIB:.0f} free"
        card = f"{self.name}, {self.total / GIB:.0f} GiB ({free}), compute capability {capability}: "
        if not _has_kernels(self.capability, built_for):
            remedy = (
                f"take a build of torch for {self.family} (this one is for {', '.join(built_for)}), or set device: cpu"
            )
            return Check(f"gpu {number}", "note", f"{card}this torch has no kernels for it", remedy)
        if self.capability < _BF16:
            remedy = "set dtype: float32 (or float16) for target and draft"
            return Check(f"gpu {number}", "note", f"{card}no bfloat16, no flash attention", remedy)
        fp8 = "FP8" if self.capability >= _FP8 else "no FP8 (the variant is written, and served on newer cards)"
        return Check(f"gpu {number}", "ok", f"{card}bfloat16, flash attention by torch, {fp8}")


def gpus() -> list[Check]:
    """A line for torch and the driver, and one for each card; without a GPU, a note why."""
    if not installed("torch"):
        return [Check("gpu", "note", "unknown: torch is not installed")]
    try:
        import torch
    except Exception as error:  # a broken install fails in many ways: OSError, ImportError, RuntimeError
        remedy = "install torch again (constraints.txt names the tested version)"
        return [Check("gpu", "missing", f"torch cannot be imported: {first_line(error)}", remedy)]
    if not torch.cuda.is_available():
        return [_without(torch)]
    cards = [_card(torch, number) for number in range(torch.cuda.device_count())]
    built_for = tuple(torch.cuda.get_arch_list())
    build = f"torch {torch.__version__}, built for CUDA {torch.version.cuda}"
    return [
        Check("gpu driver", "ok", f"{_driver() or 'version unknown'}; {build}"),
        *(card.check(number, built_for) for number, card in enumerate(cards)),
    ]


def _card(torch: Any, number: int) -> Card:
    known = torch.cuda.get_device_properties(number)
    try:
        free = int(torch.cuda.mem_get_info(number)[0])
    except RuntimeError:
        free = None
    return Card(known.name, int(known.total_memory), free, (int(known.major), int(known.minor)))


def _without(torch: Any) -> Check:
    """A CPU will do; a GPU that is there and not used is worth a line."""
    if torch.backends.mps.is_available():
        return Check("gpu", "note", "none: CPU only; Apple's GPU (mps) has no float64, which decoding computes in")
    driver = _driver()
    if driver is None:
        return Check("gpu", "note", "none: CPU only")
    if torch.version.cuda is None:
        remedy = f"install a CUDA build of torch: {torch.__version__} is one for CPUs (docs/gpu.md)"
        return Check("gpu", "note", f"none: CPU only, but there is a driver ({driver})", remedy)
    build = f"torch {torch.__version__}, built for CUDA {torch.version.cuda}"
    none = f"none: {build}, cannot use the driver ({driver}): {_reason(torch)}"
    return Check(
        "gpu", "note", none, "update the driver, or install a build of torch for the CUDA that `nvidia-smi` names"
    )


def _reason(torch: Any) -> str:
    """Why CUDA cannot be used, in torch's words."""
    try:
        torch.cuda.init()
    except Exception as error:
        return first_line(error)
    return "it shows no GPU (CUDA_VISIBLE_DEVICES?)"


def _driver() -> str | None:
    """`driver 580.159.03`, as its program reports; None without one."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return "nvidia-smi does not answer"
    said = (done.stdout or done.stderr).strip().partition("\n")[0][:120]
    return f"driver {said}" if done.returncode == 0 else f"nvidia-smi: {said}"


def _has_kernels(capability: tuple[int, int], built_for: tuple[str, ...]) -> bool:
    """A build for a capability runs on cards of the same major number and the same or a higher minor one; code for a virtual
    architecture (`compute_90`) is compiled for later cards too."""
    major, minor = capability
    for name in built_for:
        kind, _, digits = name.rstrip("af").partition("_")
        if kind not in ("sm", "compute") or not digits.isdecimal():
            return True  # another maker's names
        own = (int(digits[:-1]), int(digits[-1]))
        if (kind == "sm" and own[0] == major and own[1] <= minor) or (kind == "compute" and own <= capability):
            return True
    return not built_for
