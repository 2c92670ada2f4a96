"""The bytes of tokens, however a tokenizer writes them."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.errors import UsageError
from pipeline.models.token_bytes import changed_text, read_token_bytes
from tests.fakes import tiny_tokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def _fast(tokenizer: Tokenizer, **special: str) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(*more: str) -> Any:
    """All bytes, and some tokens that no merge makes."""
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate([*LETTERS, *more, "</s>"])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return _fast(tokenizer, eos_token="</s>")


def sentencepiece(*more: str, single: bool = True, normalizer: Any = None) -> Any:
    """Tokens with the mark of a space, with a dummy prefix and, if `single`, with a token for each byte."""
    tokens = ["<unk>", "</s>", *([f"<0x{byte:02X}>" for byte in range(256)] if single else []), "\u2581", *more]
    tokenizer = Tokenizer(models.Unigram([(token, -float(place)) for place, token in enumerate(tokens)], 0, single))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [decoders.ByteFallback()] if single else []
    tokenizer.decoder = decoders.Sequence([*fallback, decoders.Metaspace(), decoders.Fuse()])
    return _fast(tokenizer, eos_token="</s>")


def word_piece(*more: str) -> Any:
    """Parts of words with `##`, and lower case."""
    tokens = ["[UNK]", "[SEP]", *more]
    tokenizer = Tokenizer(models.WordPiece({token: place for place, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _fast(tokenizer, unk_token="[UNK]", eos_token="[SEP]")


def _read(tokenizer: Any) -> dict[str, bytes]:
    found = read_token_bytes(tokenizer, None, "pair.draft").ordinary
    return {tokenizer.convert_ids_to_tokens(place): text for place, text in found.items()}


def test_byte_level_tokens_are_bytes() -> None:
    """Spaces, and parts of a character."""
    found = _read(byte_level("\u0120the", "\u00c3"))
    assert (b" the", b"\xc3", b"\n") == (found["\u0120the"], found["\u00c3"], found["\u010a"])
    assert {bytes([byte]) for byte in range(256)} <= set(found.values())


def test_tokens_of_sentencepiece_have_spaces_and_single_bytes() -> None:
    """`<0x67>` is a byte only where the tokenizer falls back to bytes."""
    found = _read(sentencepiece("\u2581the", "g"))
    assert (b" the", b"g", b"g", b" ") == (found["\u2581the"], found["g"], found["<0x67>"], found["\u2581"])
    assert b"<0x67>" == _read(sentencepiece("<0x67>", single=False))["<0x67>"]


def test_tokens_of_word_piece_begin_words_or_continue_them() -> None:
    """A word begins behind a space; a mark or a Chinese character stands alone."""
    found = _read(word_piece("the", "##ing", ".", "\u4e2d"))
    assert {"the": b" the", "##ing": b"ing", ".": b".", "\u4e2d": "\u4e2d".encode()} == found


def test_special_tokens_have_no_bytes() -> None:
    """Nor those that the tokenizer does not call so, as `<think>`; added runs of spaces are text."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("    ")])
    found = read_token_bytes(tokenizer, None, "pair.draft")

    assert {"</s>", "<think>"} == set(found.special.values())
    assert b"    " == found.ordinary[tokenizer.convert_tokens_to_ids("    ")]
    assert 0 == next(
        place for place, name in read_token_bytes(sentencepiece(), None, "").special.items() if name == "<unk>"
    )


def test_tokens_beyond_the_logits_do_not_count() -> None:
    """As elsewhere, no text has them."""
    assert set(range(10)) == set(read_token_bytes(byte_level(), 10, "pair.draft").ordinary)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (_fast(Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))), "its tokens mark where words end"),
        (object(), "its tokenizer is no tokenizer.json"),
    ],
    ids=["ends of words", "not fast"],
)
def test_tokens_without_known_bytes_are_refused(tokenizer: Any, reason: str) -> None:
    """One line that names whose they are."""
    with pytest.raises(UsageError, match=f"^pair.draft: .*{reason}"):
        read_token_bytes(tokenizer, None, "pair.draft")


@pytest.mark.parametrize(
    ("tokenizer", "lost"),
    [
        (byte_level(), []),
        (sentencepiece(), []),
        (sentencepiece("a", "e", "f", "i", normalizer=normalizers.NFKC()), ["compatibility characters"]),
        (sentencepiece("a", "e", "f", "i", normalizer=normalizers.Lowercase()), ["capital letters"]),
        (word_piece("a", "b", "e", "##b"), ["capital letters", "accents", "line breaks", "several spaces in a row"]),
    ],
    ids=["byte level", "sentencepiece", "nfkc", "lower case", "word piece"],
)
def test_what_a_tokenizer_loses_is_found(tokenizer: Any, lost: list[str]) -> None:
    """By what it does, whatever its normalizer is called."""
    found = changed_text(tokenizer, read_token_bytes(tokenizer, None, "pair.draft"))
    assert [name.split(" (")[0] for name in found] == lost


def test_tokens_of_words_are_their_text() -> None:
    """A tokenizer that says nothing else."""
    assert b"w7" == _read(tiny_tokenizer())["w7"]
