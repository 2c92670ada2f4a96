"""A draft with another tokenizer than the target's, through the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.integration.conftest import NOBODY, Place, Smoke
from tests.integration.test_base_drafts import _config


def _other_tokenizer(prompts: Path) -> Any:
    """One with bytes, a dummy prefix and other merges than the target's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = ["<unk>", "<s>", "</s>"]
    first = [*names, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=first, show_progress=False)
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    tokenizer.train_from_iterator(texts, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [one for one in spec["added_tokens"] if one["content"] in names]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def _other_draft(smoke: Smoke, out: Path) -> None:
    """The smoke pair's base draft as if it had been trained with another tokenizer: the row of each token is the mean of those of
    the base draft's tokens for its text."""
    pair = smoke.place.artifact("pair")
    own, tokenizer = AutoTokenizer.from_pretrained(pair / "draft"), _other_tokenizer(pair / "prompts.jsonl")
    model = AutoModelForCausalLM.from_pretrained(pair / "draft")
    table = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for token, place in tokenizer.get_vocab().items():
            text = own.eos_token if token == "</s>" else token.replace("\u2581", " ")
            ids = own(text, add_special_tokens=False)["input_ids"]
            model.get_input_embeddings().weight[place] = table[ids].mean(0)
    model.config.pad_token_id, model.config.eos_token_id = None, tokenizer.eos_token_id
    model.generation_config.pad_token_id = None
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def test_a_draft_with_another_tokenizer(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Refused with the key that makes it a draft; with it, trained and examined as any other, and made again where only its own
    tokenizer has changed."""
    _other_draft(smoke, tmp_path / "other")
    source = {"source": str(tmp_path / "other")}
    target = smoke.place.artifact("pair") / "target"
    refused = place.understudy("run", _config(smoke, tmp_path, target, source), "--until", "pair")
    assert 2 == refused.code
    assert refused.complaint.startswith("draft and target have different tokenizers: token ")
    said = re.search(
        r"set pair.draft.vocabulary to target: (\d+) of 512 tokens are shared, (\S+)% of your", refused.complaint
    )
    assert said is not None

    config = _config(smoke, tmp_path, target, {**source, "vocabulary": "target"})
    ended = place.understudy("run", config, "--until", "gate", "--run", "other", "--even-if-refused")
    assert ended.code in (0, 3), ended.err
    made = place.artifact("pair", "other")
    facts, draft = json.loads((made / "pair.json").read_text()), place.artifact("distill", "other") / "draft"
    rows = facts["transplant"]
    profiles = [
        json.loads((where.artifact("evaluate/base", run) / "acceptance.json").read_text())
        for where, run in ((place, "other"), (smoke.place, "first"))
    ]
    rates = [profile["headline"]["acceptance_rate"]["value"] for profile in profiles]

    assert 512 == facts["vocabulary"] == json.loads((draft / "config.json").read_text())["vocab_size"]
    assert AutoTokenizer.from_pretrained(target).get_vocab() == AutoTokenizer.from_pretrained(draft).get_vocab()
    assert 512 == sum(rows[name] for name in ("copied", "special", "mapped", "pieces", "mean", "padded"))
    assert rows["copied"] > 300
    assert rows["mapped"] > 0
    assert 0 < rows["map_error"] < 1
    note = f"the draft has the target's tokenizer now: of 512 tokens, {rows['copied']} of the draft's rows are copied"
    assert (True, True) == (facts["differences"][0].startswith(note), f"pair: {note}" in ended.err)
    assert rates[1] / 2 < rates[0] < rates[1] + 0.05

    found = json.loads((place.artifact("gate", "other") / "decision.json").read_text())["new_vocabulary"]
    parts = {way: one["share"] for way, one in found["rows"].items()}
    assert 1 == pytest.approx(sum(parts.values()))
    assert 0.1 > abs(parts["copied"] + parts.get("special", 0.0) - float(said[2]) / 100)
    assert rates[0] == pytest.approx(found["base"]["value"])
    assert int(said[1]) == rows["copied"] + rows["special"]
    assert 0 == place.understudy("show", "other", "--html", tmp_path / "page.html").code
    assert "Leave-one-out error of the map: " in (tmp_path / "page.html").read_text()

    again = ("run", config, "--until", "distill")
    assert {"skipped"} == set(place.understudy(*again, "--run", "again", MLFLOW_TRACKING_URI=NOBODY).states.values())
    settings = json.loads((tmp_path / "other" / "tokenizer_config.json").read_text())
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 77}))
    changed = place.understudy(*again, "--run", "changed", MLFLOW_TRACKING_URI=NOBODY).states
    assert ("done", "skipped") == (
        changed["pair"],
        changed["distill"],
    )  # the rows are the same: nothing else is paid again
