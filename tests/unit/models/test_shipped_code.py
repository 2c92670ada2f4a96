"""Models and tokenizers whose code ships with them: what is allowed to run is in a digest, is saved with what is made of it, and
is allowed everywhere or nowhere."""

import json
from pathlib import Path

import pytest
import torch

from pipeline.errors import UsageError
from pipeline.models.files import model_digest, tokenizer_digest
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.memory_plan import require_training_memory
from pipeline.models.saving import save_tokenizer
from pipeline.models.shape import measure_weights
from pipeline.planning.starting_config import starting_config
from tests.fakes import change_json, tiny_llama, tiny_tokenizer

CPU = torch.device("cpu")
_TOKENIZER = (
    "from transformers import PreTrainedTokenizerFast\n\n\nclass XTokenizer(PreTrainedTokenizerFast):\n    mark = 1\n"
)
_MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM


class XConfig(LlamaConfig):
    model_type = "x"


class XModel(LlamaForCausalLM):
    config_class = XConfig
"""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer"
    tiny_tokenizer().save_pretrained(path)
    names = {"AutoTokenizer": [None, "tokenization_x.XTokenizer"]}
    change_json(path / "tokenizer_config.json", auto_map=names, tokenizer_class="XTokenizer")
    (path / "tokenization_x.py").write_text(_TOKENIZER)
    return path


@pytest.fixture
def model(tmp_path: Path, tokenizer: Path) -> Path:
    path = tmp_path / "model"
    tiny_llama(1, vocabulary=64, dtype=torch.float32).save_pretrained(path)
    names = {"AutoConfig": "modeling_x.XConfig", "AutoModelForCausalLM": "modeling_x.XModel"}
    change_json(path / "config.json", model_type="x", architectures=["XModel"], auto_map=names)
    (path / "modeling_x.py").write_text(_MODEL)
    for file in tokenizer.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_code_of_a_tokenizer_is_in_its_digest(tokenizer: Path) -> None:
    """It decides the token ids. Code of a model beside an ordinary tokenizer does not."""
    before = tokenizer_digest(tokenizer)
    (tokenizer / "tokenization_x.py").write_text(_TOKENIZER + "    extra = 1\n")
    assert before != tokenizer_digest(tokenizer)
    (tokenizer / "tokenizer_config.json").write_text("{}")
    before = tokenizer_digest(tokenizer)
    (tokenizer / "modeling_x.py").write_text("")
    assert before == tokenizer_digest(tokenizer)


def test_a_tokenizer_with_code_is_saved_so_that_it_loads(tokenizer: Path, tmp_path: Path) -> None:
    """transformers 5 writes the name of its class in a form that it does not read."""
    out = tmp_path / "out"
    save_tokenizer(load_tokenizer(tokenizer, trust_remote_code=True), out)
    assert 1 == load_tokenizer(out, trust_remote_code=True).mark
    assert (out / "tokenization_x.py").is_file()


def test_code_of_another_repository_is_refused_for_tokenizers_too(tokenizer: Path) -> None:
    """No digest covers it, in whichever file and form it is named."""
    names = ["org/x--tokenization_x.X", None]
    for file, form in (("tokenizer_config.json", names), ("config.json", {"AutoTokenizer": names[0]})):
        (tokenizer / file).write_text(json.dumps({"auto_map": form}))
        with pytest.raises(
            UsageError, match=rf"{file}: auto_map names code of another repository \(org/x--tokenization_x"
        ):
            load_tokenizer(tokenizer, trust_remote_code=True)
        (tokenizer / file).unlink()


def test_a_tokenizer_that_needs_its_code_names_the_key_that_allows_it(tokenizer: Path) -> None:
    """And not a download of the same files."""
    with pytest.raises(
        UsageError, match=r"the tokenizer is code that ships with it .* set pair\.trust_remote_code to true"
    ):
        load_tokenizer(tokenizer)


def test_what_is_allowed_to_run_runs_wherever_the_model_is_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its memory is planned with its code, and `init` takes the option that its message names."""
    loaded = load_model(model, "float32", CPU, trust_remote_code=True)
    assert sum(weight.numel() for weight in loaded.parameters()) == measure_weights(model, True).parameters
    require_training_memory(model, CPU, "adamw", 1, trusted=True)
    prompts, draft = tmp_path / "prompts.jsonl", tmp_path / "draft"
    prompts.write_text("".join(json.dumps({"prompt": f"w1 {n}"}) + "\n" for n in range(20)))
    draft.mkdir()
    for file in model.iterdir():
        (draft / file.name).write_bytes(file.read_bytes())
    change_json(draft / "config.json", max_position_embeddings=200)
    assert model_digest(draft) != model_digest(model)
    with pytest.raises(UsageError, match="--trust-remote-code"):
        starting_config(str(model), str(draft), prompts)
    text = starting_config(str(model), str(draft), prompts, trust_remote_code=True)
    assert "\n  trust_remote_code: true  #" in text
