"""Python, the system, cores, memory and processor. Standard library only."""

import os
import platform
import re
import sys

from pipeline.models.memory import cgroup_files, read_text
from pipeline.planning.doctor.check import GIB, Check
from pipeline.store.own_files import reads_own_files

_MEMORY_WANTED_GIB = 4.0
_FAST_BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # the last is ARM's
_CPU_FLAGS = (*_FAST_BF16, "amx_int8", "avx512_vnni", "i8mm")


def machine() -> list[Check]:
    """Python, system, cores, memory and processor."""
    python = Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    system = Check("system", "ok", platform.platform())
    if os.name != "posix":
        system = Check("system", "missing", platform.platform(), "the store's locks need Linux or macOS; use WSL")
    return [python, system, _cores(), _memory(), _cpu_flags()]


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = f"{usable} usable of {os.cpu_count()}"
    quotas = [text.split() for text in _cgroup("cpu", "cpu.max")]
    limits = [int(quota) / int(period) for quota, period in quotas if quota != "max"]
    return Check("cores", "ok", cores + (f", cgroup limit {min(limits):.1f}" if limits else ""))


def _memory() -> Check:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    texts = [*_cgroup("memory", "memory.max"), *_cgroup("memory", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text != "max"]
    limits = [limit for limit in limits if limit < total]  # "no limit" is spelt as a huge number in version 1
    memory = f"{total / GIB:.1f} GiB" + (f", cgroup limit {min(limits) / GIB:.1f} GiB" if limits else "")
    if min([total, *limits]) < _MEMORY_WANTED_GIB * GIB:
        return Check(
            "memory",
            "note",
            memory,
            f"below {_MEMORY_WANTED_GIB:.0f} GiB only the reference pair fits; see `understudy plan CONFIG`",
        )
    return Check("memory", "ok", memory)


def _cgroup(controller: str, name: str) -> list[str]:
    """The limits of this process's control groups, each once."""
    return [text for text in dict.fromkeys(cgroup_files(controller, name)) if text]


@reads_own_files("of the kernel")
def _cpu_flags() -> Check:
    if platform.system() != "Linux":
        return Check("cpu bf16", "note", f"not checked on {platform.system()}")
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    have = set(line[1].split()) if line else set()
    flags = ", ".join(flag for flag in _CPU_FLAGS if flag in have) or "none of AVX512-BF16, AMX, BF16"
    if not have.intersection(_FAST_BF16):
        return Check("cpu bf16", "note", flags, "this CPU emulates bfloat16: use float32, which is faster")
    return Check("cpu bf16", "ok", flags)
