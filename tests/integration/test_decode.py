"""`understudy decode` on the smoke pair: text, statistics, comparison, and one line for what cannot be done."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.fakes import full_logits, tiny_llama, tiny_tokenizer
from tests.integration.conftest import RUN, Ended, Place, Smoke, replace_bytes

PROMPT = "def main(argv):\n    "


def _decode(smoke: Smoke, *more: object, prompt: str = PROMPT, draft: object = None) -> Ended:
    place: Place = smoke.place
    target, own = place.artifact("pair"), draft or place.artifact("distill")
    return place.understudy("decode", "--target", target, "--draft", own, "--no-chat", prompt, *more)


def _number(ended: Ended, name: str) -> float:
    return float(re.search(rf"^│ {name} +│ +([0-9.]+)", ended.out, re.MULTILINE)[1])  # type: ignore[index]


def test_greedy_text_is_the_targets_own(smoke: Smoke) -> None:
    """Compared with the target alone: one text, fewer calls, every token accounted for."""
    ended = _decode(smoke, "--temperature", 0, "--max-new-tokens", 24, "--compare", "--dtype", "float32")

    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith(f"prompt:\n{PROMPT}\n\ncompletion:\n")
    kinds = re.search(r"tokens: (\d+) accepted \[(\d+) corrected\] \{(\d+) bonus\}(?: (\d+) without)?", ended.out)
    assert kinds is not None
    assert 24 == sum(int(number or 0) for number in kinds.groups())
    assert "the target alone gives the same text, token by token" in ended.out
    assert 24 == _number(ended, "tokens")
    calls, accepted = _number(ended, "target calls after the prefill"), re.search(r"(\d+) / (\d+)", ended.out)
    assert accepted is not None
    assert 24 == calls + int(accepted[2])
    assert kinds[1] == accepted[2]
    assert re.search(r"│ tokens per second +│ +[\d.,]+ \[[\d.,]+, [\d.,]+\] │ +[\d.,]+ \[", ended.out)
    assert "speedup does not follow from it" in ended.out
    assert "medians of 6 turns of each in alternation" in ended.out
    assert "target alone" in ended.out


@pytest.mark.parametrize(
    "options",
    [
        ("--verification", "block"),
        ("--draft-sampling", "greedy"),
        ("--stop-drafting", "confidence"),
        ("--stop-drafting", "entropy"),
        ("--top-k", 20, "--top-p", 0.9, "--min-p", 0.02, "--temperature", 0.8),
    ],
    ids=str,
)
def test_every_way_of_sampling_says_what_it_did(smoke: Smoke, options: tuple[object, ...]) -> None:
    """Twenty tokens, each an accepted one or the one after them."""
    ended = _decode(smoke, "--max-new-tokens", 20, *options)

    assert (0, "") == (ended.code, ended.err)
    assert 20 == _number(ended, "tokens")


def test_a_draft_is_named_as_everywhere(smoke: Smoke) -> None:
    """A run, or a version of the registry: the text of its artifact."""
    ended = [_decode(smoke, "--max-new-tokens", 20, draft=name) for name in (None, RUN, "reference-draft@champion")]
    texts = [one.out.partition("\ntokens: ")[0] for one in ended]

    assert [0, 0, 0] == [one.code for one in ended], ended[-1].err
    assert [texts[0]] * 3 == texts


def test_one_seed_is_one_text(smoke: Smoke) -> None:
    """Two calls with one seed print the same, a third with another something else."""
    ended = [_decode(smoke, "--max-new-tokens", 20, "--seed", seed) for seed in (3, 3, 4)]
    one, again, other = (each.out.partition("\ntokens: ")[0] for each in ended)

    assert one == again
    assert one != other


def test_the_prompt_may_come_from_standard_input(smoke: Smoke) -> None:
    """`-` reads it there; nothing there is one clear line."""
    ended = _decode(smoke, prompt="-")

    assert (2, "the prompt is empty; there is nothing to continue") == (ended.code, ended.complaint)


def test_a_bad_draft_falls_back(place: Place, tmp_path: Path) -> None:
    """`--fallback` with a random draft: half the draft length, then off, both printed; the text is the target's own."""
    target, draft = (tiny_llama(seed, dtype=torch.float32) for seed in (4, 6))
    for model, name in ((target, "target"), (draft, "draft")):
        model.config.max_position_embeddings = 1024
        model.save_pretrained(tmp_path / name)
        tiny_tokenizer().save_pretrained(tmp_path / name)
    pair = ("decode", "--target", tmp_path / "target", "--draft", tmp_path / "draft", "a b c")
    options = ("--temperature", 0, "--max-new-tokens", 460, "--gamma", 4, "--fallback", "--threshold", 0.6)
    ended = place.understudy(*pair, *options, store=False)

    assert (0, "") == (ended.code, ended.err)
    assert ["half the draft length", "speculation off, with a probe round every 16 rounds"] == re.findall(
        r"^fallback: ([^:]+):", ended.out, re.MULTILINE
    )
    expected = r"the acceptance rate of the last 200 verified draft tokens was 0\.\d\d, below the threshold of 0\.60"
    assert 2 == len(re.findall(expected, ended.out))
    words = re.search(r"\ncompletion:\n(.*)\n", ended.out)[1]  # type: ignore[index]
    tokens = [int(word) for word in re.findall(r"w(\d+)", words)]
    ids = [*tiny_tokenizer()("a b c")["input_ids"], *tokens]
    assert (460, tokens) == (len(tokens), full_logits(target, ids[:-1]).argmax(-1)[-460:].tolist())
    drafted = int(re.search(r"(\d+) / \d+", ended.out)[1])  # type: ignore[index]
    assert drafted < 4 * 210 + 2 * 220

    never = place.understudy(*pair, *options[:-1], 0, store=False)
    assert (0, []) == (never.code, re.findall("^fallback: .*", never.out, re.MULTILINE)), never.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--threshold", 0.4), "--threshold: works only with --fallback; add it"),
        (("--gamma", 0), "--gamma 0: draft at least 1 token per round; --compare shows the target alone"),
        (("--max-new-tokens", 5000), "exceed the pair's context of 128; lower --max-new-tokens or shorten the prompt"),
        (
            ("--target", "nowhere"),
            "--target nowhere: no such directory; a model of the hub is org/name, or org/name@revision",
        ),
    ],
    ids=str,
)
def test_bad_usage_is_one_line(smoke: Smoke, options: tuple[object, ...], complaint: str) -> None:
    """What cannot be decoded exits 2 with what, where and what to do."""
    ended = _decode(smoke, *options)

    assert 2 == ended.code, ended.err
    assert complaint in ended.complaint


def test_the_draft_length_has_a_limit(smoke: Smoke) -> None:
    """A slip of a digit would reserve a cache for it."""
    ended = _decode(smoke, "--gamma", 65)

    assert 2 == ended.code
    assert "Invalid value for '--gamma'" in ended.err


def test_an_empty_prompt_is_bad_usage(smoke: Smoke) -> None:
    """Nothing to continue is one line."""
    ended = _decode(smoke, prompt="")

    assert (2, "the prompt is empty; there is nothing to continue") == (ended.code, ended.complaint)


def test_a_prompt_that_is_no_text_is_bad_usage(smoke: Smoke) -> None:
    """Bytes that are no UTF-8, as a shell may hand over, are one line."""
    ended = _decode(smoke, prompt=os.fsdecode(b"caf\xe9"))

    assert (2, "the prompt is not UTF-8 text; convert it") == (ended.code, ended.complaint)


def test_a_draft_of_another_vocabulary_is_refused(smoke: Smoke, tmp_path: Path) -> None:
    """One line that names a token."""
    tiny_llama(dtype=torch.float32).save_pretrained(tmp_path / "other")
    tiny_tokenizer().save_pretrained(tmp_path / "other")
    ended = _decode(smoke, draft=tmp_path / "other")

    assert 2 == ended.code
    assert "draft and target have different tokenizers: token" in ended.complaint


def test_damaged_weights_are_one_line(smoke: Smoke, tmp_path: Path) -> None:
    """A draft of NaN stops the decode with a cause and a remedy."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "nan")
    replace_bytes(tmp_path / "nan" / "model.safetensors", lambda data: data[:-4096] + b"\xff" * 4096)
    ended = _decode(smoke, "--max-new-tokens", 20, draft=tmp_path / "nan")

    assert 1 == ended.code
    assert "the model returned NaN or infinite logits; check its weights and dtype" in ended.complaint


def test_a_short_text_says_that_the_fallback_had_nothing_to_judge(smoke: Smoke) -> None:
    """In 40 tokens no window of 200 examined tokens can fill; the user learns why nothing changed. The warm-up of a
    comparison is not in the window."""
    told = r"fallback: nothing changed; (\d+) draft tokens were verified and 200 are needed"
    ended, compared = (_decode(smoke, "--fallback", "--max-new-tokens", 40, *more) for more in ((), ("--compare",)))

    assert (0, 0) == (ended.code, compared.code), ended.err
    assert 1 == len(re.findall(told, ended.out))
    assert re.findall(told, ended.out) == re.findall(told, compared.out)


def test_the_deployments_sampling_is_used(place: Place, tmp_path: Path) -> None:
    """That of the target's generation config, as servers use it, and it is said; an option goes before it."""
    tiny_llama(dtype=torch.float32).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "draft")
    settings = '{"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}'
    (tmp_path / "model" / "generation_config.json").write_text(settings)
    command = ("decode", "--target", tmp_path / "model", "--draft", tmp_path / "draft", "--max-new-tokens", 4, "a b")
    found, greedy = place.understudy(*command), place.understudy(*command, "--temperature", 0)

    assert (0, "") == (found.code, found.err)
    text = " ".join(found.out.split())
    assert (
        "sampling: temperature 0.7, top_k 20 from the target's generation_config.json; top_p 1, min_p 0 by default"
        in text
    )
    assert "also sets repetition_penalty 1.1, which is not applied here" in text
    assert "sampling: temperature 0 from --temperature" in " ".join(greedy.out.split())
