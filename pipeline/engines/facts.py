"""What each engine takes, counts and cannot do: one table for export, configs and docs/engines.md. Imports nothing heavy.

`checked` is the version whose source or behaviour was read. A fact of another version is a guess: read the source again before
you change an entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline.drafts.kinds import EAGLE3, MEDUSA, PLAIN, TLI, KindName, Trait

Engine = Literal["transformers", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "openvino"]
ExportEngine = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "tgi"]
WatchedEngine = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp"]
# Which attention layers a target and a draft have together, where they are not all of one kind: of full attention and with
# windows; with windows of several sizes only; all of the target's with one window and all of the draft's of full attention; the
# reverse, by one number of the draft's config for all its layers; and layers with a recurrent state.
Mixture = Literal["full_and_windows", "several_windows", "window_of_target", "window_of_draft", "states"]

# The files of a head that an engine reads: as they are stored; in the layout of EAGLE's authors (`LlamaForCausalLMEagle3`); in
# that of Medusa's, with the name of the target (`export/head_files.py`).
HeadLayout = Literal["stored", "eagle", "medusa"]

BITSANDBYTES = "bitsandbytes"


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Names of the counters, as a scrape of `path` shows them; empty where the engine has none. Every watched engine has
    `tokens`, and `accepted` or what it is computed from."""

    drafts: str = ""  # target calls that verify
    draft_tokens: str = ""
    accepted: str = ""
    per_position: str = ""  # accepted tokens, one series for each draft position
    drafted_per_position: str = ""
    position: str = ""  # label of these two: the draft position, from 0
    tokens: str = ""  # generated, the target's own and those of prefill included
    requests: str = ""  # that have ended, where `accepted` has to be computed: each has a token of its prefill
    running: str = ""  # a gauge: requests that run now
    model: str = ""  # label with the name of the served model
    rank: str = ""  # label by which engines behind one endpoint are distinguished (data parallelism)
    digits: int | None = None  # significant digits that are written; None: all
    path: str = "/metrics"
    needs: str = ""  # what the engine has to be started with, to show them
    by_request: str = ""  # what gives the counts of each request in its answer
    note: str = ""

    @property
    def by_position(self) -> str:
        """`per_position` with its label; empty where there is none."""
        return f"{self.per_position}{{{self.position}}}" if self.position else self.per_position


@dataclass(frozen=True, kw_only=True)
class Issue:
    """A known problem. `number` is its issue or pull request in the engine's repository."""

    number: int
    effect: str
    of_schedules: bool = False  # of draft lengths by batch size
    of_cpu_sampling: bool = False  # of the build for CPUs at a temperature above 0


@dataclass(frozen=True, kw_only=True)
class AttentionFact:
    """What the engine does with a target and a draft whose attention layers are of several kinds.

    `option`: of the start command, with which it is right; empty where there is none. `keeps_all`: with it, layers with a window
    keep the keys and values of all tokens. `advice`: where it serves no such pair, what to do instead. `seen`: on which build and
    runner, and what.
    """

    effect: str
    option: str = ""
    keeps_all: bool = False
    advice: str = ""
    seen: str


@dataclass(frozen=True, kw_only=True)
class HeadFact:
    """How an engine takes heads of one kind. `lacks`: what heads may have and it does not compute. `samples`: whether it can
    sample the draft tokens of a head with the whole vocabulary, whatever it does with other drafts."""

    layout: HeadLayout
    lacks: tuple[Trait, ...] = ()
    samples: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What one engine takes, counts and cannot do."""

    title: str
    checked: str  # the version that these facts were read in
    repository: str  # on GitHub, for the links to issues
    serving: Mapping[KindName, str] = field(default_factory=dict)  # how a draft is served, by its kind
    methods: Mapping[KindName, str] = field(default_factory=dict)  # its name of them, where the start command has one
    heads: Mapping[KindName, HeadFact] = field(default_factory=dict)  # by kind that is a head on hidden states
    unserved: Mapping[KindName, str] = field(default_factory=dict)  # by kind that is not served: why, if it is known
    loads: Mapping[str, str]  # by variant that is loaded: in which layout
    loads_quantized_head: bool = False
    # By variant: the dtypes in which its layers compute; the engine refuses a draft that has to run in another. Other variants
    # run in any.
    computes_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_target_dtype: bool = False  # the draft runs in the target's dtype, which the start command states
    # By way of drafting (greedy, probabilistic): the setting. The first one is the engine's default.
    drafting: Mapping[str, str]
    drafts_as_sampled: bool = (
        False  # draft tokens are sampled exactly where the target's are; there is no setting of its own
    )
    attention: Mapping[Mixture, AttentionFact] = field(default_factory=dict)  # others were not run, unless `own_caches`
    own_caches: bool = False  # target and draft have each a cache of its own, whatever their layers
    equal_widths: bool = False  # the engine refuses a draft whose logits have another width than the target's
    only_main: bool = False  # of a target on the hub it loads the revision main, whatever is pinned
    widths: str = ""
    parallel: str = ""  # tensor parallelism of the draft
    convention: str = "user"  # by which its counters count (docs/examination.md)
    proven: bool = False  # whether a test compares target calls or counters of this engine with the examination
    counters: Counters = Counters()
    model_query: str = (
        ""  # parameter of a request for the page that names the model: without a label the page is of one model
    )
    issues: tuple[Issue, ...] = ()
    notes: tuple[str, ...] = ()
    instead: str = ""  # why there is no export; two lines

    @property
    def schedule_issues(self) -> tuple[str, ...]:
        """Known problems with draft-length schedules, for people: whatever prints a schedule prints them."""
        return tuple(self._text(issue) for issue in self.issues if issue.of_schedules)

    def cpu_sampling_issues(self, temperature: float) -> tuple[str, ...]:
        """Known problems of the build for CPUs where the deployment samples."""
        return tuple(self._text(issue) for issue in self.issues if issue.of_cpu_sampling and temperature > 0)

    def _text(self, issue: Issue) -> str:
        return f"{self.title} issue {issue.number}: {issue.effect}"


_HF = "Hugging Face checkpoint (safetensors)"
# Of EAGLE's own layer, as SGLang and TensorRT-LLM compute it. They number the states that a head reads by the layer that they
# leave: SGLang captures none after the last layer, and TensorRT-LLM takes -1, which would be the embedding, for the final
# norm's output.
_EAGLE = HeadFact(
    layout="eagle",
    lacks=(
        "norm_before_residual",
        "qk_norm",
        "windows",
        "biases",
        "activation",
        "embedding",
        "last_layer",
        "own_embedding",
    ),
)
_FP8 = "`quant_method: fp8`, e4m3 with a scale for each 128 x 128 block"

FACTS: Mapping[str, EngineFacts] = {
    "vllm": EngineFacts(
        title="vLLM",
        checked="0.32.0",
        repository="vllm-project/vllm",
        serving={
            PLAIN.name: "`--speculative-config` with `method: draft_model`, `model`, `num_speculative_tokens`",
            TLI.name: "the same with `use_heterogeneous_vocab: true`; greedy, on runner V1",
            EAGLE3.name: "`method: eagle3`; one length, unquantized",
            MEDUSA.name: "`method: medusa`; one length up to its heads, greedy, unquantized",
        },
        heads={EAGLE3.name: HeadFact(layout="stored"), MEDUSA.name: HeadFact(layout="stored")},
        loads={
            "unquantized": _HF,
            "int8": "bitsandbytes, with the package vllm-bnb-plugin (in vLLM itself until 0.27), on CUDA GPUs",
            "int4": "bitsandbytes, with the package vllm-bnb-plugin (in vLLM itself until 0.27), on CUDA GPUs",
            "fp8": f"{_FP8}, on GPUs",
        },
        computes_in={"fp8": ("bfloat16", "float16")},
        in_target_dtype=True,
        attention={
            "full_and_windows": AttentionFact(
                effect="groups layers by their windows and lets the draft write into the cache of another group: the text is "
                'wrong, or it does not start ("All drafting layers should belong to the same kv cache group")',
                option="--disable-hybrid-kv-cache-manager",
                keeps_all=True,
                seen="the CPU build 0.32.0, runner V1: 21 to 48 of 48 greedy texts wrong without the option, none with it; the "
                "source of runner V2 gives each group its own cache, and was not run",
            ),
            "several_windows": AttentionFact(
                effect="groups layers by their windows and lets the draft write into the cache of another group: the text is "
                "wrong, and with --disable-hybrid-kv-cache-manager it does not start",
                advice="take a draft with full attention, or with the target's window",
                seen="the CPU build 0.32.0, runner V1: 48 of 48 greedy texts wrong",
            ),
            "window_of_target": AttentionFact(
                effect="computes the draft with the target's window: the text is right, and beyond the window the counts are "
                "not those of the examined draft",
                seen="the CPU build 0.32.0, runner V1: 48 of 48 greedy texts right, other counts in 32 of them",
            ),
            "window_of_draft": AttentionFact(
                effect="computes the draft without its window: the text is right, and beyond the window the counts are not "
                "those of the examined draft",
                seen="the CPU build 0.32.0, runner V1: 48 of 48 greedy texts right, other counts in all of them",
            ),
        },
        drafting={"greedy": "`draft_sample_method: greedy`", "probabilistic": "`draft_sample_method: probabilistic`"},
        equal_widths=True,
        widths="`vocab_size` of both configs must be equal",
        parallel="the target's size (`draft_tensor_parallel_size` 1 passes the config and is refused when the draft is loaded); "
        "attention heads must divide by it",
        convention="vllm",
        proven=True,
        counters=Counters(
            drafts="vllm:spec_decode_num_drafts_total",
            draft_tokens="vllm:spec_decode_num_draft_tokens_total",
            accepted="vllm:spec_decode_num_accepted_tokens_total",
            per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
            position="position",
            tokens="vllm:generation_tokens_total",
            running="vllm:num_requests_running",
            model="model_name",
            rank="engine",
            needs="`--disable-log-stats` must not be set",
            by_request="`--per-request-spec-decode-metrics summary`; not for `n` above 1",
            note="draft tokens by position are not shown, so with a changing draft length only position 0 has a denominator "
            "(drafts); no label names an adapter or a draft",
        ),
        issues=(
            Issue(number=42744, effect="`min_p` and `logit_bias` have no effect or are refused while speculating"),
            Issue(number=49548, of_schedules=True, effect="throughput falls at boundaries of a draft-length schedule"),
            Issue(
                number=51510,
                of_schedules=True,
                effect="the newer model runner (V2) reads no draft-length schedule (`num_speculative_tokens_per_batch_size`) "
                "for a plain draft",
            ),
            Issue(
                number=47014,
                of_schedules=True,
                effect="a change of the draft length crashed the CPU build before 0.32.0",
            ),
            Issue(
                number=55005,
                of_cpu_sampling=True,
                effect="the CPU build does not sample from the target while it speculates at a temperature above 0",
            ),
            Issue(
                number=54780,
                effect="with `use_heterogeneous_vocab` both tokenizers are those of the default revision, whatever is pinned",
            ),
            Issue(number=34497, effect="log-probabilities are wrong while speculating"),
        ),
        notes=(
            "The draft runs in the target's dtype.",
            "top-k and top-p are applied to the target only; the draft is sampled at the temperature alone.",
            "`rejection_sample_method: synthetic` accepts draft tokens at given rates, for load tests; the CPU build refuses it.",
            "A path of the draft with `[`, `*` or `?` is not found: it is searched as a pattern.",
            "A draft-length schedule is ignored with data parallelism.",
            "There are two model runners. V2 is the default; `parallel_drafting` of plain drafts (PARD) and of EAGLE, Medusa, "
            "MLP speculators, `suffix` and `use_heterogeneous_vocab` run on V1, which is deprecated (pull request 52487). The "
            "log names the one that runs; `VLLM_USE_V2_MODEL_RUNNER` chooses it. Without Triton it is V1.",
            "`use_heterogeneous_vocab` (pull request 38174) compares how tokens are written, not their bytes: a line break of "
            "byte-level BPE is not one of SentencePiece. A token that is not shared is fed as the draft's unknown token, or else "
            "EOS, and no text is split anew. Of two tokens with one spelling either is taken, by the order of a hash table. "
            "Acceptance 61% where 99.8% of the tokens are in both, about 25% at 80% (by that pull request).",
            "`enable_adaptive_verification` (pull request 52228), which verifies fewer tokens where the draft is unsure, is "
            "for `dspark` only.",
            "Speculation with a draft model, and an unquantized draft, were run on the CPU build; the rest was only read.",
        ),
    ),
    "sglang": EngineFacts(
        title="SGLang",
        checked="0.5.23",
        repository="sgl-project/sglang",
        serving={
            PLAIN.name: "`--speculative-algorithm STANDALONE`, `--speculative-draft-model-path`, "
            "`--speculative-num-steps` (draft tokens), `--speculative-num-draft-tokens` (steps + 1), "
            "`--speculative-eagle-topk 1`",
            EAGLE3.name: "`--speculative-algorithm EAGLE3`, the other options as of a plain draft; EAGLE's own layout and layer "
            "(`LlamaForCausalLMEagle3`), to which export converts; one length, unquantized",
        },
        methods={PLAIN.name: "STANDALONE", EAGLE3.name: "EAGLE3"},
        unserved={TLI.name: "pull request 22883, which would, is open"},
        heads={EAGLE3.name: replace(_EAGLE, samples=True)},
        loads={
            "unquantized": f"{_HF}; `--speculative-draft-model-quantization unquant`, else the target's is inherited",
            "int8": BITSANDBYTES,
            "int4": BITSANDBYTES,
            "fp8": f"{_FP8}, on GPUs",
        },
        drafting={
            "greedy": "`--speculative-eagle-topk 1`; `--speculative-use-rejection-sampling`, which samples the draft at the "
            "temperature alone, is refused with `STANDALONE` and with a part of the vocabulary, and exported for other EAGLE-3 "
            "heads"
        },
        equal_widths=True,
        widths="`vocab_size` of both configs, and the tokens of both tokenizers, must be equal (pull request 23838)",
        parallel="the target's size; attention heads must divide by it",
        counters=Counters(
            drafts="sglang:spec_verify_calls_total",
            tokens="sglang:generation_tokens_total",
            requests="sglang:num_requests_total",
            running="sglang:num_running_reqs",
            model="model_name",
            rank="dp_rank",
            needs="`--enable-metrics`",
            by_request="`return_meta_info: true` or `return_spec_tokens_details: true` in requests",
            note="no counter of accepted tokens: they are generated tokens less verify calls less requests (the token of each "
            "prefill), all counted when a request ends; a retracted request has a second prefill, and one that was aborted may "
            "have none. No counter of draft tokens or positions; the gauges `sglang:spec_accept_length` and "
            "`sglang:spec_accept_rate` cannot be added up",
        ),
        issues=(
            Issue(number=24215, effect="a target and a draft of different hidden sizes crashed the server"),
            Issue(number=24051, effect="before the check of pull request 23838, other vocabularies gave wrong text"),
        ),
        notes=(
            "While it speculates, at most 48 requests run at a time unless `--max-running-requests` is set.",
            "`STANDALONE` is refused with data-parallel attention, and with LoRA adapters of the target.",
            "`/update_weights_from_disk` writes one path into target and draft.",
            "Of an EAGLE-3 head with the target's hidden size it replaces the embedding by the target's. "
            "`eagle_aux_hidden_state_layer_ids` are counted by the layer that the states leave, so export writes them one "
            "lower than vLLM reads them.",
            "Counts of a request (`spec_verify_ct`, `spec_num_correct_drafts`) add up: accepted tokens of a verification that "
            "goes past the end are in them. Proposed tokens are verifications times draft length, by arithmetic.",
            "Options and requests are compared with its source by `make conformance`; it was not run.",
        ),
    ),
    "tensorrt-llm": EngineFacts(
        title="TensorRT-LLM",
        checked="1.3.0rc29",
        repository="NVIDIA/TensorRT-LLM",
        serving={
            PLAIN.name: "`speculative_config` with `decoding_type: Draft_Target`, `max_draft_len`, `speculative_model`; "
            "`disable_overlap_scheduler: true`",
            EAGLE3.name: "`decoding_type: Eagle3`, `max_draft_len`, `speculative_model`, `eagle3_layers_to_capture`; EAGLE's own "
            "layout and layer, to which export converts; one length, unquantized",
        },
        methods={PLAIN.name: "Draft_Target", EAGLE3.name: "Eagle3"},
        heads={EAGLE3.name: replace(_EAGLE, lacks=(*_EAGLE.lacks, "one_state"))},  # its `fc` and norms are of several
        unserved={
            MEDUSA.name: "its TensorRT backend, which had it, was removed (pull request 15918), and its PyTorch backend has none"
        },
        loads={"unquantized": _HF},
        drafting={"greedy": "default (`use_rejection_sampling: false`)"},
        widths="the same tokenizer; widths are not documented, so the draft is padded as for vLLM",
        equal_widths=True,
        parallel="the target's size; attention heads must divide by it",
        counters=Counters(
            draft_tokens="trtllm_spec_decode_num_draft_tokens_total",
            accepted="trtllm_spec_decode_num_accepted_tokens_total",
            per_position="trtllm_spec_decode_accepted_tokens_total",
            drafted_per_position="trtllm_spec_decode_drafted_tokens_total",
            position="token_position",
            tokens="trtllm_generation_tokens_total",
            running="trtllm_num_requests_running",
            model="model_name",
            path="/prometheus/metrics",
            needs="`return_perf_metrics: true` for the counters by position, of requests that have ended; "
            "`enable_iter_perf_stats: true` for the others",
            note="drafts are the tokens drafted at position 0; `/metrics` is JSON, and reading it empties a queue",
        ),
        notes=(
            "`draft_len_schedule`: releases differ in whether a key is the first or the last batch size of its range.",
            "`acceptance_rate_threshold` turns speculation off for good.",
            "Of an EAGLE-3 head with the target's hidden size it takes the embedding of the target. `eagle3_layers_to_capture` "
            "are counted by the layer that the states leave, from 0. The model and the names of its tensors were read in a "
            "commit of 2026 that is not of a release.",
            "Counters by position were read in the repository of 2026-11, and so was `trtllm_num_requests_running`.",
            "The package index has no source of it. Keys were read in the source, and `make conformance` compares them if "
            "`TENSORRT_LLM_SOURCE` names a checkout's `tensorrt_llm`; it was not run.",
        ),
    ),
    "llama.cpp": EngineFacts(
        title="llama.cpp",
        checked="b11434",
        repository="ggml-org/llama.cpp",
        serving={
            PLAIN.name: "`-md draft.gguf --spec-type draft-simple --spec-draft-n-max N --spec-draft-n-min 0 --spec-draft-p-min 0`"
        },
        unserved={TLI.name: "it refuses another vocabulary"},
        loads={"unquantized": "GGUF, made by `convert_hf_to_gguf.py` of llama.cpp"},
        drafting={
            "greedy": "`--spec-draft-sampling greedy`",
            "probabilistic": "`--spec-draft-sampling probabilistic`; it samples from the draft's 10 likeliest tokens",
        },
        widths="vocabularies may differ by at most 128 tokens",
        parallel="layers or rows are split by llama.cpp; no limit by heads",
        proven=True,
        counters=Counters(
            drafts="llamacpp:spec_decode_num_drafts_total",
            draft_tokens="llamacpp:spec_decode_num_draft_tokens_total",
            accepted="llamacpp:spec_decode_num_accepted_tokens_total",
            per_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
            position="position",
            tokens="llamacpp:tokens_predicted_total",
            running="llamacpp:requests_processing",
            digits=6,
            needs="`--metrics`",
            by_request="on whenever it speculates: `timings.draft_n` and `timings.draft_n_accepted`",
            note="a request is counted when it ends; values are written with 6 digits, so a counter above a million grows in "
            "steps",
        ),
        model_query="model",
        notes=(
            "In router mode `/metrics` is of one model, which `watch.model` names; asking for it loads the model (issue 19346).",
            "The target must be a GGUF file too.",
            "The converter recognises BPE tokenizers by a hash of their output; a custom tokenizer needs an entry in it.",
            "A round drafts at most one token less than the request has left; an end of sequence limits nothing. "
            "A round without draft tokens is not counted.",
            "Keys and values are cached in float16 by default (`--cache-type-k`, `--cache-type-v`; of the draft "
            "`--spec-draft-type-k`, `--spec-draft-type-v`).",
            "With a draft model, answers have no log-probabilities of accepted tokens.",
            "Greedy drafting was run with the CPU build of llama-server; probabilistic drafting was only read in the source.",
        ),
    ),
    "transformers": EngineFacts(
        title="transformers",
        checked="5.23.0",
        repository="huggingface/transformers",
        serving={
            PLAIN.name: "`generate(assistant_model=...)`; the draft length is read from the assistant's `generation_config.json`"
        },
        unserved={
            TLI.name: "its assistant with another tokenizer drafts text, or samples: its counts are not predicted"
        },
        loads={"unquantized": _HF, "int8": BITSANDBYTES, "int4": BITSANDBYTES, "fp8": f"{_FP8}, on GPUs"},
        loads_quantized_head=True,
        own_caches=True,
        drafting={
            "probabilistic": "with `do_sample=True`",
            "greedy": "with `do_sample=False`",
        },
        drafts_as_sampled=True,
        widths="may differ",
        parallel="`device_map`; no limit by heads",
        convention="transformers",
        proven=True,
        counters=Counters(note="none"),
        notes=("Batch size 1 only.",),
    ),
    "openvino": EngineFacts(
        title="openvino-genai",
        checked="2026.4",
        repository="openvinotoolkit/openvino.genai",
        serving={PLAIN.name: "`LLMPipeline(target, device, draft_model=...)`"},
        loads={"unquantized": "OpenVINO IR, made by `optimum-cli export openvino`"},
        drafting={"greedy": "default"},
        widths="may differ",
        convention="openvino",
        proven=True,
        counters=Counters(note="`extended_perf_metrics` of a result; add up the counters, not the means"),
        notes=("Sampling while speculating crashed the process; temperature 0 is exact.",),
        instead="openvino-genai loads OpenVINO IR, which optimum-intel makes of a Hugging Face checkpoint.\n"
        "Use --engine transformers, then `optimum-cli export openvino --model DIR/draft OUT`.",
    ),
    "tgi": EngineFacts(
        title="TGI",
        checked="3.3",
        repository="huggingface/text-generation-inference",
        serving={
            MEDUSA.name: "`--model-id HEADS`, `--speculate N`: `medusa_lm_head.safetensors`, and a config.json with "
            "`base_model_name_or_path`, `medusa_num_heads`, `medusa_num_layers` and without `architectures`, to which export "
            "converts; one length up to its heads, greedy, unquantized"
        },
        heads={MEDUSA.name: HeadFact(layout="medusa", lacks=("part_of_vocabulary",))},
        unserved={
            PLAIN.name: "it serves no draft model, only n-grams and Medusa heads",
            EAGLE3.name: "it serves no EAGLE-3 head, only n-grams and Medusa heads",
        },
        loads={"unquantized": "`medusa_lm_head.safetensors`"},
        drafting={"greedy": "the heads' likeliest tokens; accepted where the sampled token is the same"},
        only_main=True,
        widths="those of the heads must be the target's",
        parallel="`--num-shard`; the heads are computed on every shard",
        counters=Counters(
            accepted="tgi_request_skipped_tokens",
            note="`tgi_request_skipped_tokens` is a histogram over requests, and `watch` does not read it",
        ),
        notes=(
            "It loads the revision `main` of the target that `base_model_name_or_path` names.",
            "A block of a head always has a bias there: export writes zeros where heads have none. A tensor that is missing is "
            "no error: all heads then take the target's output layer.",
            "Beyond 128 rows in a pass (requests times draft length + 1) nothing is drafted.",
            "Of a local directory with heads it downloads no target: the start script calls `text-generation-server "
            "download-weights` before.",
            "Read in the repository, not run.",
        ),
    ),
    "specinfer": EngineFacts(
        title="SpecInfer (FlexFlow Serve)",
        checked="repository of 2026-11",
        repository="flexflow/flexflow-serve",
        loads={},
        drafting={},
        notes=("It converts weights into its own format when it loads a model from its list of architectures.",),
        instead="SpecInfer converts weights into a format of its own when it loads a model, for a list of architectures.\n"
        "There is no stable format to export to; load the output of --engine transformers with `ff.SSM(DIR/draft)`.",
    ),
}


def loads(engine: str, variant: str) -> bool:
    """Whether the engine loads a draft of this variant."""
    return variant in FACTS[engine].loads
