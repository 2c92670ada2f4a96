"""llama.cpp's converter with an entry for the reference pair's tokenizer, which it does not know.

The converter recognises a BPE tokenizer by a hash of its output. Texts are not tokenised in these tests, so any known name will
do. LLAMA_CPP is the directory that `make llama-server` builds in; sentencepiece is taken from its environment.
"""

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(os.environ["LLAMA_CPP"])
SOURCE = ROOT / "source" / "llama.cpp"

sys.path[:0] = [str(SOURCE), str(SOURCE / "gguf-py")]
sys.path += [str(path) for path in (ROOT / "venv" / "lib").glob("python*/site-packages")]

from conversion.base import TextModel  # noqa: E402  (the paths are set above)

TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv[0] = str(SOURCE / "convert_hf_to_gguf.py")
runpy.run_path(sys.argv[0], run_name="__main__")
