"""Which architectures the decoder serves right: tiny random models, speculative decoding of ragged prompts past every window.

Greedy completions are compared with those of single passes, and with `model.generate` one prompt at a time. log p of every
emitted token is compared with a teacher-forced pass.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UsageError
from pipeline.speculation.batch import Request, Round
from pipeline.speculation.choice import architecture, proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY
from tests.architectures import FAMILIES, VOCABULARY, tiny_model
from tests.benchmarks.figures import ROOT, write
from tests.fakes import full_logits, greedy_text

_LENGTHS, _NEW = (5, 20, 1, 13, 30, 25, 40, 18), 16
_SERVED = {
    "compiled": "correct, batched (our forward)",
    "llama": "correct, batched (our forward)",
    "batch": "correct, batched",
    "rows": "correct, one row at a time",
    "rows, cache rebuilt": "correct, one row at a time; cache rebuilt after a rejection",
    "rows, no cache": "correct, one row at a time; no cache",
}
_PAGE = f"""# Architectures

Understudy decodes a model with the fastest forward that it has proved. A forward is compared with the model's own single passes
when a model is loaded for decoding, and for both models at `pair`: on rows of different lengths, past every window that the
config names, with rejected tokens, in the model's dtype and on its device. The candidates, fastest first:

1. our own forward for Llama-shaped models (`pipeline/speculation/llama_forward.py`), compiled on a CPU where that is possible;
2. the model's own forward on a batch, with our KV cache and attention masks (`model_forward.py`);
3. the model's own forward and cache, one row at a time (`row_forward.py`). The cache is cropped after a rejection, or rebuilt
   where it cannot be cropped (recurrent states). Where the library's cached pass differs from its plain pass, no cache is used:
   then each pass processes the whole text, and generation is quadratic in its length.

An architecture that fails all of them is refused at `pair`, in one line with the reason. `pair.json` names the forward of each
model (`forward`). In fp32 logits may differ by 0.01% of their spread, in lower precision by 5%, or by three times the difference
that the model's own passes show between batch sizes and text lengths.

A proof costs about 20 passes over at most 32 tokens. A window longer than 8 tokens is set to 8 in the loaded config during the
proof. If the model does not read its window from the config, rows reach past the real window, up to 512 tokens. For a longer one
only the third candidate is left, in which the model applies its windows itself.

Other numbers at which a model changes with length are shortened too, and short rows stand on both sides of each; such a model
is decoded one row at a time (Llama 4 scales attention from 8,192 tokens on), or refused where its logits depend on the rows
beside it. RoPE with two sets of factors (longrope: Phi 3 and 4) is fixed when a model is loaded, to the long factors where
the context exceeds the original one, as vLLM fixes it, or to those that `pair.rope_factors` names; `pair` says which. Short ones
bound a text to the original context. The choice is in the draft's config.json; `probe` and `decode` use it for its target too.

A model is loaded from the files that are in its digest, and every tensor of them must be used: as the parameter that it is,
or by the quantizer of its `quant_method`. A checkpoint with scales that transformers does not apply (modelopt,
`hf_quant_config.json`, INT8 with scales) is refused with the tensor's name; serve such a target. Adapters beside a whole
model (`adapter_config.json`) are not applied, and `pair` says so. An attention package that config.json names is not used, nor
the dtype that it was saved in, a padding token that is none, or a `quantization_config` that names nothing; one that says GPTQ,
AWQ or bitsandbytes where all weights are floats, as merges leave it, is refused. So are shards beside a `model.safetensors` with
other weights (engines read the shards), and layers with a window of 0 tokens (engines see all tokens). The chat template of a
multimodal model may be in its processor's `chat_template.json`.

Tried with tiny random models, {len(_LENGTHS)} prompts of {min(_LENGTHS)} to {max(_LENGTHS)} tokens, windows of 12:
"""


def main() -> None:
    rows = [_row(name) for name in FAMILIES]
    figure = {"prompts": len(_LENGTHS), "new_tokens": _NEW, "families": rows}
    write("architectures", "python -m tests.benchmarks architectures", figure)
    (ROOT / "docs" / "architectures.md").write_text(page(figure))


def _row(name: str) -> dict[str, Any]:
    target = tiny_model(name)
    row: dict[str, Any] = {"family": name, "model_type": architecture(target), "attention": FAMILIES[name].attention}
    try:
        row["way"] = proved_way(target, VOCABULARY)
    except UsageError as error:
        return row | {"refused": str(error).partition("cannot be decoded: ")[2].rpartition(";")[0]}
    row["way_bf16"] = proved_way(tiny_model(name, torch.bfloat16), VOCABULARY)
    return row | _decoded(target, tiny_model(name))


def _decoded(target: Any, draft: Any) -> dict[str, Any]:
    with torch.no_grad():
        weight = draft.get_output_embeddings().weight
        weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in _LENGTHS]
    log_p: list[list[float]] = [[] for _ in prompts]

    def observe(round_: Round) -> None:
        for at, (number, tokens) in enumerate(zip(round_.numbers, round_.emitted, strict=True)):
            log_p_TV = round_.logits_BTV[at].log_softmax(-1)
            log_p[number] += [float(log_p_TV[place, token]) for place, token in enumerate(tokens)]

    decoder = Decoder(target, PlainDraft(draft, VOCABULARY), sampling=GREEDY, vocabulary=VOCABULARY, gamma=3)
    texts = [item.tokens for item in decoder.decode([Request(prompt, _NEW, 0) for prompt in prompts], observe)]
    gaps = []
    for prompt, text, stored in zip(prompts, texts, log_p, strict=True):
        own_TV = full_logits(target, [*prompt, *text])[len(prompt) - 1 : -1, :VOCABULARY].log_softmax(-1)
        gaps += [abs(float(own_TV[place, token]) - stored[place]) for place, token in enumerate(text)]
    return {
        "equal": sum(
            greedy_text(target, prompt, _NEW, VOCABULARY) == text for prompt, text in zip(prompts, texts, strict=True)
        ),
        "equal_to_generate": sum(
            _generated(target, prompt) == text for prompt, text in zip(prompts, texts, strict=True)
        ),
        "largest_log_p_difference": max(gaps),
    }


@torch.inference_mode()
def _generated(model: Any, prompt: list[int]) -> list[int]:
    ids_1T = torch.tensor([prompt])
    out_1S = model.generate(
        input_ids=ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        max_new_tokens=_NEW,
        do_sample=False,
        eos_token_id=None,
    )
    found: list[int] = out_1S[0, len(prompt) :].tolist()
    return found


def page(figure: dict[str, Any]) -> str:
    """docs/architectures.md."""
    return "\n".join([_PAGE, *_table(figure), ""])


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    rows = figure["families"]
    counts = Counter("refused" if "refused" in row else _SERVED[row["way"]].partition(";")[0] for row in rows)
    yield "## Architectures\n"
    yield (
        f"Tiny random models of {len(rows)} families, {figure['prompts']} prompts of different lengths and past every window, "
        "speculative and greedy. "
        + "; ".join(f"{name}: {count}" for name, count in counts.most_common())
        + ". How a forward is chosen: [docs/architectures.md](../architectures.md).\n"
    )
    yield from _table(figure)


def _table(figure: dict[str, Any]) -> Iterator[str]:
    yield "| family | `model_type` | attention | decoded | as single passes | as `generate` | largest difference of log p |"
    yield "|---|---|---|---|---|---|---|"
    for row in figure["families"]:
        names = f"| {row['family']} | `{row['model_type']}` | {row['attention']}"
        if "refused" in row:
            yield f"{names} | refused: {row['refused']} | - | - | - |"
            continue
        other = "" if row["way"] == row["way_bf16"] else f" (bf16: {_SERVED[row['way_bf16']].removeprefix('right, ')})"
        equal = f"{row['equal']} of {figure['prompts']} | {row['equal_to_generate']} of {figure['prompts']}"
        yield f"{names} | {_SERVED[row['way']]}{other} | {equal} | {row['largest_log_p_difference']:.0e} |"
