"""What stands in the place of a prompt or an answer and is something else: a chat in one text, a stream, base64, a cut text."""

import base64
import json
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.foreign_texts import encoded, is_cut, transcript
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, parse_row

SOURCE = PromptSource(path="p", use_answers=True, answer_field="response", finish_reason="stop")
_BODY = json.dumps({"choices": [{"message": {"content": "It is four."}, "finish_reason": "stop"}]})
_ASKED = json.dumps({"messages": [{"role": "user", "content": "What is 2+2?"}]})
_CHUNK = 'data: {"choices": [{"delta": {"content": "It"}}]}\n\ndata: [DONE]\n\n'
_SIXTY_FOURS = [base64.b64encode(text.encode()).decode() for text in (_ASKED, _BODY)]
TRANSCRIPTS = [
    "### Human: What is 2+2?### Assistant: Four.### Human: And 3+3?### Assistant: Six.",
    "\n\nHuman: What is 2+2?\n\nAssistant: Four.",
    "USER: What is 2+2? ASSISTANT: Four.</s>",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<bos><start_of_turn>user\nWhat?<end_of_turn>\n<start_of_turn>model\nFour.",
    "<s>[INST] What is 2+2? [/INST] Four.</s>",
    "Below is an instruction that describes a task.\n\n### Instruction:\nAdd 2 and 2.\n\n### Response:\nFour.",
    "Instruct: Add 2 and 2.\nOutput: Four.",
    "<|user|>\nWhat?</s>\n<|assistant|>\nFour.",
]
ORDINARY = [
    "What does ### Assistant: mean in a training file?",
    "Rewrite this dialogue.\nHuman: hi\nAssistant: hello",
    "### Instructions\nWrite a poem.\n### Answer format\nJSON",
    "User: I cannot log in. What should support say?",
    "Explain [INST] and [/INST].",
    "Human: The Story of Us is a film. Who made it?",
    "User: what does AI: a guide say?",
    "data: a list of numbers follows",
    "eyJhbGciOiJIUzI1NiJ9",
    "a" * 400,
    "The log says (truncated). Why?",
]


class _Tokenizer:
    """Has a template, and renders by adding brackets."""

    chat_template = "{{ messages }}"
    eos_token_id = None

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return "".join(f"[{message['content']}]" for message in messages)


@pytest.mark.parametrize("text", TRANSCRIPTS)
def test_a_chat_with_its_roles_in_one_text_is_no_prompt(text: str) -> None:
    """Rendered as one message, the target would be asked its own answers. Without a chat template it is what the target gets, and
    within a chat somebody wrote it."""
    prompt = parse_row({"prompt": text}, SOURCE)
    with pytest.raises(BadRow, match="chat with its roles in one text"):
        Renderer(_Tokenizer(), True, {}).text(prompt)  # type: ignore[arg-type]
    assert (text, True) == Renderer(_Tokenizer(), False, {}).text(prompt)  # type: ignore[arg-type]
    said = parse_row({"messages": [{"role": "user", "content": text}]}, SOURCE)
    assert f"[{text}]" == Renderer(_Tokenizer(), True, {}).text(said)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ORDINARY)
def test_a_text_about_such_a_thing_is_ordinary(text: str) -> None:
    assert text == parse_row({"prompt": text}, SOURCE).messages[0]["content"]
    assert (None, None, False) == (transcript(text), encoded(text), is_cut(text))
    assert text == parse_answer({"prompt": "q", "response": text}, SOURCE).text


@pytest.mark.parametrize("text", [_CHUNK, "event: message_start\n" + _CHUNK, *_SIXTY_FOURS])
def test_an_encoded_text_is_neither_a_prompt_nor_an_answer(text: str) -> None:
    with pytest.raises(BadRow, match="encoded text"):
        parse_row({"prompt": text}, SOURCE)
    with pytest.raises(UnusableAnswer, match="an answer that is"):
        parse_answer({"prompt": "q", "response": text}, SOURCE)


@pytest.mark.parametrize(
    "text",
    [
        "What is the w... (litellm_truncated 135 chars) ...eather?",
        "What is the w... (truncated 135 chars)",
        "What <truncated due to size exceeding limit>",
        "What is the w... [truncated]",
    ],
)
def test_a_text_that_a_logger_cut_is_not_used(text: str) -> None:
    """Whoever said it: the target answered the whole text, and the answer that is left is not what it said."""
    for role in ("system", "user", "assistant"):
        chat = [{"role": role, "content": text}, {"role": "user", "content": "And?"}]
        with pytest.raises(BadRow, match="text cut by a logger"):
            parse_row({"messages": chat}, SOURCE)
    with pytest.raises(BadRow, match="text cut by a logger"):
        parse_row({"prompt": text}, SOURCE)
    for answer in (text, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}):
        with pytest.raises(UnusableAnswer, match="cut"):
            parse_answer({"prompt": "q", "response": answer}, SOURCE)
