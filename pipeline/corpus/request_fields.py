"""What each field of a request does to its prompt and to its answer, as servers have it: one table. Pure.

Read in vLLM 0.32.0 (`entrypoints/openai`, `renderers`) and SGLang 0.5.23 (`entrypoints/openai`). Where their prompts differ, the
row is refused with the field as its reason: nothing states which engine it was. A field that is in no table is counted by its
name.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.corpus.json_values import decoded
from pipeline.corpus.nested_settings import HOLDERS
from pipeline.corpus.other_requests import MEDIA
from pipeline.store.json_text import json_kind

PROMPTS = ("messages", "prompt", "input", "tools", "chat_template_kwargs")
SYSTEMS = ("system", "instructions")  # of Anthropic's API and of Responses: a system message before the others
STATED = ("temperature", "top_k", "top_p", "min_p")
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Settings of a request that change what is sampled, by the values that change nothing. The target is never asked with them.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "repeat_penalty": (None, 1),
    "logit_bias": (None, {}, []),
    "stop": (None, "", []),
    # Engines sample under a grammar, as they do where a tool must be called.
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_grammar": (None,),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "grammar": (None, ""),
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True),
    "stop_token_ids": (None, []),
    "stop_regex": (None, "", []),
    "stop_sequences": (None, []),
    "ignore_eos": (None, False),
    "min_tokens": (None, 0),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "thinking_token_budget": (None,),
    "use_beam_search": (None, False),
    "custom_logit_processor": (None,),
    "logits_processors": (None, []),
    "typical_p": (None, 1),
    "xtc_probability": (None, 0),
    "dry_multiplier": (None, 0),
    "dynatemp_range": (None, 0),
    "mirostat": (None, 0),
    # The answer has the prompt before it.
    "echo": (None, False),
    # The target has thought, and the answer does not show it.
    "include_reasoning": (None, True),
}
# What makes another prompt than messages and tools state, by the values that do not, with what it does.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "add_generation_prompt": ((None, True), "its prompt does not open an answer"),
    "continue_final_message": ((None, False), "its prompt ends within a message, where engines put different tokens"),
}
# The same of fields that only requests under a key of their own have: in rows, such names may be anything.
REFUSED_UNDER_KEY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "chat_template": ((None,), "it is rendered by a template of its own"),
    "input_ids": ((None, []), "its prompt is not in its messages"),
    "prompt_embeds": ((None, []), "its prompt is not in its messages"),
    "previous_response_id": ((None,), "what came before is not in it"),
    "conversation": ((None,), "what came before is not in it"),
    "suffix": ((None, ""), "its prompt has a text on both sides"),
    **{name: ((None, []), "images or sounds are a part of its prompt") for name in MEDIA},
}
NO_CHOICE = "request with tools and tool_choice none"
EFFORT, DOCUMENTS, CHOICE = "reasoning_effort", "documents", "tool_choice"
SPECIAL, LONGEST = "add_special_tokens", "truncate_prompt_tokens"
OF_ROWS = (EFFORT, CHOICE, SPECIAL, LONGEST, *REFUSED)
"""Fields that are read of every row, whether its request has a key of its own or not."""
TAKEN = tuple(dict.fromkeys((*PROMPTS, *LIMITS, *STATED, *NEUTRAL, *OF_ROWS)))
"""Of a request under a key of its own, as columns of its row."""
SETTINGS = frozenset(TAKEN) - {"messages", "prompt", "input"}
"""Fields that may stand in an object within the request."""
_WITHOUT_EFFECT = frozenset(
    """
    model stream stream_options stream_reasoning stream_interval n best_of seed user safety_identifier service_tier
    store metadata logprobs top_logprobs prompt_logprobs logprob_token_ids include_stop_str_in_output
    skip_special_tokens spaces_between_special_tokens separate_reasoning no_stop_trim detokenize request_id rid
    session_id session_params priority cache_salt cache_control cache_prompt prompt_cache_key prompt_cache_retention
    id_slot slot_id timings_per_token verbose kv_transfer_params ec_transfer_params vllm_xargs lora_path extra_key
    data_parallel_rank routed_dp_rank mm_processor_kwargs media_io_kwargs modalities prediction include background
    max_tool_calls truncation truncation_side timeout n_probs post_sampling_probs length_penalty n_predict n_keep
    min_keep samplers reasoning_format
    """.split()  # noqa: SIM905
)


def is_known(name: str) -> bool:
    """Whether the table states what a field does."""
    others = (*SYSTEMS, DOCUMENTS, *REFUSED_UNDER_KEY, *HOLDERS)
    return name in TAKEN or name in others or name in _WITHOUT_EFFECT or name.startswith("return_")


def refusal(fields: Mapping[str, Any], table: Mapping[str, tuple[tuple[Any, ...], str]]) -> tuple[str, str] | None:
    """The first field of `table` that makes another prompt, and what it does; None without one."""
    refused = ((name, why) for name, (neutral, why) in table.items() if fields.get(name) not in neutral)
    return next(refused, None)


class OtherPrompt(Exception):
    """A request whose prompt is another than its messages and tools state, or is not known. Rows are counted by `kind`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def effort_arguments(row: Mapping[str, Any], stated: Mapping[str, Any], reads: Callable[[str], bool]) -> dict[str, Any]:
    """Arguments of the chat template that a request's `reasoning_effort` stands for, of those that the template `reads`; `stated`
    are the request's own. OtherPrompt where engines differ."""
    effort = row.get(EFFORT)
    if effort is None:
        return {}
    if isinstance(effort, bool) or not isinstance(effort, str | int | float):
        raise OtherPrompt(f"request with {EFFORT}", f"it is {json_kind(effort)}")
    if reads("thinking") and "thinking" not in stated:
        raise OtherPrompt(f"request with {EFFORT}", "of the engines SGLang sets `thinking` of the chat template by it")
    if reads(EFFORT) and stated.get(EFFORT, effort) != effort:
        raise OtherPrompt(
            f"request with {EFFORT}", "chat_template_kwargs has another, and engines differ in which they take"
        )
    wanted = {EFFORT: effort, "enable_thinking": effort != "none"}
    return {name: value for name, value in wanted.items() if reads(name)}


def chosen_tools(
    row: Mapping[str, Any], tools: tuple[Mapping[str, Any], ...], if_none: bool | None
) -> tuple[Mapping[str, Any], ...]:
    """The tools that are in the prompt, by the request's `tool_choice`. `if_none`: whether `none` leaves them there; None: not
    known, since engines differ, so OtherPrompt."""
    choice = decoded(row.get(CHOICE))
    if choice == "none" and tools:
        if if_none is None:
            raise OtherPrompt(NO_CHOICE, "vLLM writes the tools into the prompt, and SGLang does not")
        return tools if if_none else ()
    if isinstance(choice, Mapping) and len(tools) > 1:
        raise OtherPrompt(f"request with {CHOICE}", "SGLang writes only the chosen tool into the prompt, and vLLM all")
    return tools


def longest_prompt(row: Mapping[str, Any], plain: bool) -> int | None:
    """Tokens to which the server cuts the prompt; None for no such limit. `plain`: of a text and no chat. OtherPrompt for a
    request that opens no answer, or adds special tokens otherwise than its route does."""
    if (refused := refusal(row, REFUSED)) is not None:
        raise OtherPrompt(f"request with {refused[0]}", refused[1])
    if row.get(SPECIAL) not in (None, plain):
        raise OtherPrompt(f"request with {SPECIAL}", "not the default, which is true for a text and false for a chat")
    longest = row.get(LONGEST)
    if longest is None or longest == -1:  # -1: to what the model can read
        return None
    if type(longest) is not int or longest < 1:
        raise OtherPrompt(f"request with {LONGEST}", "it is no number of tokens")
    return longest
