"""The JSON files of a model directory, which strangers write: config.json, generation_config.json, tokenizer_config.json, the
index of the weights.

Checked here before transformers reads them: it takes some values as they are and fails far from the file, or never ends. Only
the fields that Understudy or every decoder reads have types; all others are as they come. Torch-free.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.store.parsing import Count, Format, Number, Text

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
PROCESSOR_TEMPLATE = "chat_template.json"  # of a multimodal model, whose tokenizer may have none
# Of a file beside the weights: the largest tokenizer.json that is known has 35 MB, and reading takes eight times as much.
MOST_BYTES = 1 << 27
_MOST_LAYERS = 10_000  # the deepest decoders have a few hundred
_MOST_LABELS = 100_000  # of a classifier; transformers names each of them
_MOST_SIZE = 1 << 31
# What transformers makes as many objects of, in any section of a config; by architecture.
LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
WIDTHS = (
    "hidden_size",
    "vocab_size",
    "intermediate_size",
    "n_embd",
    "d_model",
    "ffn_dim",
    "n_inner",
    "word_embed_proj_dim",
)
_MOST = dict.fromkeys(LAYERS, _MOST_LAYERS) | {"num_labels": _MOST_LABELS}

Size = Annotated[int, Field(strict=True, gt=0, lt=_MOST_SIZE)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=_MOST_SIZE)]
_StopToken = Annotated[int, Field(strict=True, ge=-1, lt=_MOST_SIZE)]  # of config.json, where some have -1 for none
_Dtype = Annotated[Text, Field(pattern=r"^(bfloat16|float\w*|half|double|u?int\d+|bool)$")]  # names of torch


class _Foreign(BaseModel):
    """A file of another program: fields without a type here are not looked at."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class QuantizationConfig(_Foreign):
    """How the weights are quantized."""

    quant_method: Text | None = None
    modules_to_not_convert: list[Text] | None = None
    load_in_4bit: bool | None = None  # of bitsandbytes, in place of a method
    load_in_8bit: bool | None = None

    @property
    def method(self) -> str | None:
        return "bitsandbytes" if self.load_in_4bit or self.load_in_8bit else self.quant_method


def names_nothing(quantization_config: dict[str, Any]) -> bool:
    """Whether an entry of config.json names no way in which weights are quantized."""
    return all(value is None for value in quantization_config.values())


class DecoderConfig(_Foreign):
    """The sizes of a decoder. Some architectures have a list of sizes, one for each layer."""

    eos_token_id: _StopToken | list[_StopToken] | None = None
    vocab_size: Size | None = None
    hidden_size: Size | None = None
    num_hidden_layers: Annotated[int, Field(strict=True, gt=0, le=_MOST_LAYERS)] | None = None
    num_attention_heads: Size | list[Size] | None = None
    num_key_value_heads: Size | list[Size | None] | None = None
    head_dim: Size | None = None
    intermediate_size: Size | list[Size] | None = None
    max_position_embeddings: Size | None = None
    quantization_config: QuantizationConfig | None = None


class ModelConfig(DecoderConfig):
    """`config.json`. A multimodal model has its decoder in `text_config`."""

    model_type: Text | None = None
    dtype: _Dtype | None = None
    torch_dtype: _Dtype | None = None
    text_config: DecoderConfig | None = None
    architectures: list[Text] | None = None
    auto_map: dict[Text, Any] | None = None  # classes of code that ships with the model

    @property
    def quantization(self) -> QuantizationConfig | None:
        """The quantization of the model, or else of its decoder, as transformers looks for it; one that names nothing is none."""
        for quantization in (self.quantization_config, self.decoder.quantization_config):
            if quantization is not None and not names_nothing(quantization.model_dump(exclude_unset=True)):
                return quantization
        return None

    @property
    def is_quantized(self) -> bool:
        return self.quantization is not None

    @property
    def decoder(self) -> DecoderConfig:
        return self.text_config or self

    @property
    def stop_tokens(self) -> list[int]:
        own = self.eos_token_id if self.eos_token_id is not None else self.decoder.eos_token_id
        return [token for token in _as_list(own) if token >= 0]


class GenerationConfig(_Foreign):
    """`generation_config.json`: what servers take over as defaults of requests, and the stop tokens."""

    eos_token_id: TokenId | list[TokenId] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=_MOST_SIZE)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    max_new_tokens: Count | None = None

    @property
    def stop_tokens(self) -> list[int]:
        return _as_list(self.eos_token_id)


class ProcessorTemplate(_Foreign):
    """`chat_template.json`."""

    chat_template: Text | None = None


class TokenizerConfig(_Foreign):
    """`tokenizer_config.json`."""

    auto_map: Any = None  # classes of code that ships with the tokenizer: names, by kind or alone


def _as_list(tokens: int | list[int] | None) -> list[int]:
    return [] if tokens is None else tokens if isinstance(tokens, list) else [tokens]


def _in_the_directory(name: str) -> str:
    if "/" in name or "\0" in name or not name.endswith(".safetensors"):
        raise ValueError("not the name of a .safetensors file in the same directory")
    return name


class WeightIndex(_Foreign):
    """The file of each tensor."""

    weight_map: dict[Text, Annotated[Text, AfterValidator(_in_the_directory)]] = Field(min_length=1)
    metadata: dict[Text, Any] | None = None


def _check_counts(config: ModelConfig) -> None:
    """ValueError for a number in any section for which transformers would fill the memory, or make a model without layers."""
    sections: list[tuple[str, Any]] = [("", config.model_dump(exclude_unset=True))]
    while sections:
        place, section = sections.pop()
        for key, value in section.items():
            if key in _MOST and isinstance(value, int) and value > _MOST[key]:
                raise ValueError(f"{place}{key}: at most {_MOST[key]:,}")
            if key in LAYERS and isinstance(value, int) and value < 0:  # sections without layers have 0
                raise ValueError(f"{place}{key}: should be greater than 0")
            if isinstance(value, dict):
                sections.append((f"{place}{printable(str(key)[:80])}.", value))


_REMEDY = "correct it, or take it again from where the model was published"
CONFIG_FORMAT = Format(
    name="config of a model",
    content=ModelConfig,
    remedy=_REMEDY,
    foreign=True,
    check=_check_counts,
    error=UsageError,
    most_bytes=MOST_BYTES,
)
GENERATION_FORMAT = Format(
    name="generation config",
    content=GenerationConfig,
    remedy=_REMEDY,
    foreign=True,
    error=UsageError,
    most_bytes=MOST_BYTES,
)
TOKENIZER_FORMAT = Format(
    name="config of a tokenizer",
    content=TokenizerConfig,
    remedy=_REMEDY,
    foreign=True,
    error=UsageError,
    most_bytes=MOST_BYTES,
)
TEMPLATE_FORMAT = Format(
    name="chat template of a processor",
    content=ProcessorTemplate,
    remedy=_REMEDY,
    foreign=True,
    error=UsageError,
    most_bytes=MOST_BYTES,
)
INDEX_FORMAT = Format(
    name="index of weights, which lists the file of each tensor in `weight_map`",
    content=WeightIndex,
    remedy="download the model again",
    foreign=True,
    error=UsageError,
    most_bytes=MOST_BYTES,
)


def read_config(directory: Path) -> ModelConfig:
    """The config of the model in `directory`. UnderstudyError naming file and field."""
    if (directory / ADAPTER).is_file() and not (directory / CONFIG).exists():
        raise UsageError(
            f"{directory}: an adapter without its model ({ADAPTER}, and no {CONFIG}); merge it into the model that it was "
            "trained on (peft: merge_and_unload, then save_pretrained), and name that directory"
        )
    return CONFIG_FORMAT.read(directory / CONFIG)


def code_named_in(directory: Path) -> dict[Path, list[str]]:
    """The classes of code, by file, that it names (`auto_map`): `module.Class`, or `org/name--module.Class` of another
    repository. UnderstudyError as `read_config`."""
    config, tokenizer = directory / CONFIG, directory / TOKENIZER_CONFIG
    by_file = {config: CONFIG_FORMAT.find(config), tokenizer: TOKENIZER_FORMAT.find(tokenizer)}
    return {file: sorted(_texts(own.auto_map)) for file, own in by_file.items() if own is not None and own.auto_map}


def template_of_processor(directory: Path) -> str | None:
    """The chat template that engines take from the processor of a multimodal model. UnderstudyError as `read_config`."""
    template = TEMPLATE_FORMAT.find(directory / PROCESSOR_TEMPLATE)
    return None if template is None else template.chat_template


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def config_values(directory: Path) -> dict[str, Any]:
    """The config as it stands in the file."""
    return read_config(directory).model_dump(exclude_unset=True)


def stop_tokens_of(directory: Path) -> list[int]:
    """The stop tokens of its generation config; without that file, as transformers and vLLM do, those of its config.
    UnderstudyError as for both."""
    generation = GENERATION_FORMAT.find(directory / GENERATION_CONFIG)
    config = generation if generation is not None else CONFIG_FORMAT.find(directory / CONFIG)
    return [] if config is None else config.stop_tokens


def find_generation_config(directory: Path) -> GenerationConfig:
    """Its generation config, which is empty where the file is missing. UnderstudyError naming file and field."""
    return GENERATION_FORMAT.find(directory / GENERATION_CONFIG) or GenerationConfig()
