"""transformers' assisted generation with fair settings, as a peer.

It reads them from the assistant's generation config (given to `generate` they are ignored): exactly gamma tokens a round,
however unsure the draft is. End-of-text is off on all sides, so that every prompt yields as many tokens.
"""

from typing import Any

import torch

SETTINGS = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}


@torch.inference_mode()
def generate(target: Any, draft: Any | None, gamma: int, prompt: list[int], tokens: int, sample: bool) -> list[int]:
    """`tokens` tokens after `prompt`; plain generation without a draft."""
    options: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": sample, "eos_token_id": None, "pad_token_id": 0}
    if sample:
        options |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    if draft is not None:
        config = draft.generation_config
        config.num_assistant_tokens, config.eos_token_id = gamma, None
        config.num_assistant_tokens_schedule = SETTINGS["num_assistant_tokens_schedule"]
        config.assistant_confidence_threshold = SETTINGS["assistant_confidence_threshold"]
        options["assistant_model"] = draft
    ids = torch.tensor([prompt], device=target.device)
    output = target.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return [int(token) for token in output[0, len(prompt) :]]
