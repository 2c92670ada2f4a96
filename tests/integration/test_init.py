"""`understudy init`: what it prints is a config that a run accepts."""

import json
from pathlib import Path

import torch

from tests.fakes import tiny_llama, tiny_tokenizer
from tests.integration.conftest import Place


def test_what_it_prints_is_accepted_by_a_dry_run(place: Place, tmp_path: Path) -> None:
    """Printed to a file, and checked by `run --dry-run`; a prompt file that is not there is one line."""
    tiny_llama(dtype=torch.float32).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a b c"}) + "\n")
    options = ("init", "--target", tmp_path / "model", "--draft", "target", "--prompts")
    written = place.understudy(*options, tmp_path / "prompts.jsonl", store=False)
    (tmp_path / "my.yaml").write_text(written.out)
    checked = place.understudy("run", tmp_path / "my.yaml", "--dry-run", "--even-if-refused")
    missing = place.understudy(*options, "none.jsonl", store=False)

    out = tmp_path / "new.yaml"
    saved, again, nowhere = (
        place.understudy(*options, tmp_path / "prompts.jsonl", "--out", one, store=False)
        for one in (out, out, tmp_path / "none" / "new.yaml")
    )

    assert (0, f"written to {out}; next: understudy plan {out} --measure\n") == (saved.code, saved.out)
    assert written.out == out.read_text()
    assert (2, f"--out {out}: it is there already; remove it, or name another file") == (again.code, again.complaint)
    assert (2, True) == (nowhere.code, "is not a directory; make it first" in nowhere.complaint)
    assert (0, "") == (written.code, written.err)
    assert (0, "") == (checked.code, checked.err)
    assert (2, "--prompts none.jsonl: no such file or directory") == (missing.code, missing.complaint)
