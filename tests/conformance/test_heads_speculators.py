"""EAGLE-3 heads against speculators' own model, which trains the heads that vLLM serves: files, logits, losses and gradients.

Its forward and ours have the same rows: row i pairs token i + 1 with the target's states at token i, and what it gives at step j
(its `ttt_steps`, our places), fed with the text's own tokens, is of token i + 2 + j. Both use only the rows for which that token
is in the text; on later rows they pad differently. Its positions begin at 1 and ours at 0, which rotary embeddings do not see.

`make test-heads` has an environment with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

pytest.importorskip("speculators")

from speculators.convert import convert_model
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig, shift_batch
from speculators.train.cli import create_transformer_layer_config

from pipeline.distillation.trained_head import TrainedHead
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.eagle3_model import load_eagle3
from pipeline.drafts.head_config import read_eagle3
from pipeline.drafts.made_heads import save_head
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.rules import ImposedAcceptance
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.heads import LAYERS, eagle3_draft, write_eagle3

VOCABULARY, KEPT, STEPS, TOKENS = 40, 25, 5, 24
CLOSE = 1e-5  # of the largest logit, in fp32
CLOSE_WITH_CACHE = 2e-5  # where the target's states too are of passes with a cache, which round otherwise
# Of the target alone, which its files name and do not hold.
OF_THE_TARGET = {"verifier_lm_head.weight", "verifier_norm.weight"}
NORMS: dict[str, dict[str, bool]] = {
    "norm after the residual": {},
    "norm before the residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "norm of each state": {"fc_norm": True, "norm_before_residual": True},
    "output norm fed back": {"norm_output": True},
}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{kind} x{layers}, {norm}": {"kind": kind, "layers": layers, **flags}
        for kind in ("llama", "qwen3")
        for layers in (1, 2)
        for norm, flags in NORMS.items()
    },
    "llama, part of the vocabulary": {"kept": KEPT},
    "qwen3 x2, part of the vocabulary": {"kind": "qwen3", "layers": 2, "kept": KEPT, "norm_output": True},
    "states of two layers": {"read": (1, 4)},
    "states of four layers": {"read": (0, 1, 2, 4), "fc_norm": True},
    "biases": {"layers": 2, "settings": {"attention_bias": True, "mlp_bias": True}},
    "scaled rotary embeddings": {
        "settings": {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        }
    },
}
WINDOWS: dict[str, dict[str, Any]] = {
    "llama x2 with a window": {"layers": 2, "window": 7},
    "qwen3 with a window": {"kind": "qwen3", "window": 7},
}
Text = torch.Tensor


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A random target, in the current directory under the name that files of heads give it."""
    model = tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4, dtype=torch.float32)
    model.requires_grad_(False)
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(tmp_path_factory.mktemp("models"))
        model.save_pretrained("target")
        yield model


@pytest.fixture(scope="module")
def text_T() -> Text:
    return torch.randint(VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(5))


@pytest.fixture
def made(target: Any, case: dict[str, Any]) -> Eagle3Draft:
    """A random head of a case."""
    return eagle3_draft(target, **case)


@pytest.fixture
def theirs(made: Eagle3Draft, tmp_path: Path) -> Any:
    """Their model of the files that we write of it."""
    save_head(made.model, tmp_path / "ours")
    return read_by_them(tmp_path / "ours")


def read_by_them(directory: Path) -> Any:
    config = Eagle3SpeculatorConfig.from_pretrained(directory)
    config.transformer_layer_config._attn_implementation = "eager"  # their default is compiled for a GPU
    return Eagle3DraftModel.from_pretrained(directory, config=config).eval()


def with_the_targets_own(theirs: Any) -> Any:
    """A model of files that hold neither embedding nor output layer. speculators 0.9.0 means to take the target's where it finds
    NaN, but transformers leaves what a file lacks as memory that nothing was written to."""
    for weight in (theirs.embed_tokens.weight, theirs.lm_head.weight):
        torch.nn.init.constant_(weight, torch.nan)
    theirs.load_verifier_weights()
    return theirs


def read_by_us(directory: Path, target: Any) -> Eagle3Draft:
    head = load_eagle3(directory, read_eagle3(directory), target, torch.float32, torch.device("cpu"))
    return Eagle3Draft(head, VOCABULARY, TargetStates(target))


@contextmanager
def outputs_of(layer: Any) -> Iterator[list[torch.Tensor]]:
    """What an output layer gives meanwhile, a call at a time."""
    found = list[torch.Tensor]()
    hook = layer.register_forward_hook(lambda module, arguments, output: found.append(output.flatten(0, -2)))
    yield found
    hook.remove()


def their_batch(text_T: Text, states: TargetStates, layers: Any) -> dict[str, torch.Tensor]:
    """A text as their trainer gives it to their model."""
    count = len(text_T)
    found: Features = states.states_at(text_T[None], {*layers, states.target.config.num_hidden_layers})
    batch = shift_batch(
        {
            "input_ids": text_T,
            "hidden_states": torch.cat([found[layer][0] for layer in layers], dim=-1),
            "verifier_last_hidden_states": found[states.target.config.num_hidden_layers][0],
            "loss_mask": torch.ones(count, dtype=torch.bool),
            "lengths": torch.tensor([count]),
            "position_ids": torch.arange(count),
        }
    )
    del batch["lengths"]
    return {name: one[None] for name, one in batch.items()} | {"document_ids": torch.zeros(1, count - 1).long()}


@torch.no_grad()
def their_logits(model: Any, text_T: Text, states: TargetStates, steps: int = STEPS) -> list[torch.Tensor]:
    """By step, of all rows (T - 1, D)."""
    batch = their_batch(text_T, states, model.config.eagle_aux_hidden_state_layer_ids)
    with outputs_of(model.lm_head) as found:
        model(**{name: batch[name] for name in ("hidden_states", "input_ids", "document_ids")}, ttt_steps=steps)
    return found


def our_logits(draft: Eagle3Draft, text_T: Text) -> list[torch.Tensor]:
    """By place, of the rows of all rounds that an examination counts: (T - 2, D)."""
    batch = PaddedBatch([stored_completion(text_T[:2].tolist(), text_T[2:].tolist())])
    with outputs_of(draft.model.lm_head) as found:
        draft.examine(batch, GREEDY, STEPS, draft.states.features(batch, draft.layers))
    return found


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a part of the largest logit."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def largest_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Of all steps, over the rows whose token is in the text."""
    assert STEPS == len(ours) == len(theirs)
    rows = range(TOKENS - 2, 0, -1)
    return max(relative(own[:end], other[:end]) for own, other, end in zip(ours, theirs, rows, strict=False))


def by_case(cases: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases.items()])


@by_case(CASES | WINDOWS)
def test_what_we_write_is_whole(made: Eagle3Draft, theirs: Any, tmp_path: Path) -> None:
    """Every tensor of their model is in our file but for those of the target, and no other, with our values."""
    stored, state = load_file(tmp_path / "ours/model.safetensors"), theirs.state_dict()
    assert stored.keys() == state.keys() - OF_THE_TARGET
    assert [] == [name for name, tensor in stored.items() if not torch.equal(tensor, state[name])]


@by_case(CASES)
def test_an_examination_computes_their_logits(made: Eagle3Draft, theirs: Any, text_T: Text) -> None:
    found = their_logits(theirs, text_T, made.states)
    assert largest_difference(our_logits(made, text_T), found) < CLOSE


@by_case(CASES)
def test_rounds_of_a_decode_compute_their_logits(made: Eagle3Draft, theirs: Any, text_T: Text) -> None:
    """Each round with our cache, fed with its own drafts, against their forward over what was known and those drafts.

    Which of them are accepted is imposed: of such heads hardly any would be, and what the cache holds then would not matter.
    """
    prompt, gamma, rounds = text_T[:6].tolist(), 4, list[tuple[int, int]]()
    decoder = Decoder(
        made.states.target,
        made,
        sampling=Sampling(),
        draft_sampling=GREEDY,
        vocabulary=VOCABULARY,
        gamma=gamma,
        verification=ImposedAcceptance([0.7] * gamma),
        llama_forward=False,
    )
    with outputs_of(made.model.lm_head) as found:
        (decoded,) = decoder.decode(
            [Request(prompt, 24, 0)], lambda round_: rounds.append((round_.drafted[0], round_.accepted[0]))
        )
    known, place, targets_D = [*prompt, *decoded.tokens], 0, made.model.targets_D
    length = len(prompt)
    for drafted, accepted in rounds:
        ours, place = found[place : place + drafted], place + drafted
        tokens = [int(logits_1D.argmax()) for logits_1D in ours]
        if targets_D is not None:
            tokens = [int(targets_D[token]) for token in tokens]
        text = torch.tensor([*known[:length], *tokens])
        if drafted:
            steps = [logits_TD[length - 2] for logits_TD in their_logits(theirs, text, made.states, drafted)]
            assert relative(torch.cat(ours), torch.stack(steps)) < CLOSE_WITH_CACHE
        length += accepted + 1
    assert place == len(found)
    assert {0, gamma} < {accepted for _, accepted in rounds}


def weighted_kl(first_row: int, steps: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss for their forward: KL(p || q) of the rows from `first_row` on, as part of a mean over steps."""

    def loss(logits_1TV: torch.Tensor, targets_1TV: torch.Tensor) -> torch.Tensor:
        loss_1T = functional.kl_div(
            logits_1TV.log_softmax(-1), targets_1TV.log_softmax(-1), reduction="none", log_target=True
        ).sum(-1)
        return loss_1T * (torch.arange(loss_1T.shape[1]) >= first_row) / steps

    return loss


@by_case({name: case for name, case in CASES.items() if "kept" not in case})
def test_a_training_has_their_loss_and_gradients(made: Eagle3Draft, theirs: Any, text_T: Text) -> None:
    """On the tokens after a prompt: the same rows of each step, the same mean, and equal gradients of every weight.

    What step j is trained on differs. Theirs is masked by the token that a row answers, so at step j rounds that began up to j
    tokens within the prompt count; ours begin in the completion, as an engine's do. Both divide by the tokens of the completion.
    Here theirs loses those rows. Over a part of the vocabulary the losses differ too: theirs renormalises p, and ours has no term
    for what the head cannot draft.
    """
    prompt, steps = 8, 3
    first = prompt - 2  # the row of the first round
    batch = their_batch(text_T, made.states, made.layers)
    # Of the token before the one that is answered: those of the completion without its last one, and the prompt's last one.
    batch["loss_mask"] = torch.zeros(1, TOKENS - 1, dtype=torch.bool)
    batch["loss_mask"][0, first:-1] = True
    theirs.lm_head.weight.requires_grad_(True)  # frozen in theirs
    _, their_loss, _ = theirs(**batch, ttt_steps=steps, loss_config={"kl": (weighted_kl(first, steps), 1.0)})
    their_loss.backward()

    log_p_TV = made.states.target(text_T[None]).logits[0].log_softmax(-1)
    columns_N = torch.arange(prompt - 1, TOKENS - 1)

    def loss_of(logits_nV: torch.Tensor, where: slice, counts_n: torch.Tensor) -> torch.Tensor:
        log_p_nV = log_p_TV[columns_N[where]]
        return functional.kl_div(logits_nV.log_softmax(-1), log_p_nV, reduction="none", log_target=True).sum(-1)

    made.model.requires_grad_(True)
    loss = TrainedHead(made.model, made.states, steps).loss(
        {"input_ids": text_T[None], "predicts": columns_N}, VOCABULARY, loss_of
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert their_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    gradients = {
        name.replace("layers.0.layer.", "layers.0."): weight.grad
        for name, weight in made.model.named_parameters()
        if weight.grad is not None
    }
    assert gradients.keys() == {name for name, weight in theirs.named_parameters() if weight.grad is not None}
    for name, weight in theirs.named_parameters():
        if name in gradients:
            largest = float(weight.grad.abs().max())
            assert largest > 0
            assert float((gradients[name] - weight.grad).abs().max()) < 1e-4 * largest, name


@by_case(CASES)
def test_a_training_computes_their_logits(made: Eagle3Draft, theirs: Any, text_T: Text) -> None:
    """Over the target's tokens, minus infinity for those that the head does not have."""
    recorded, kept = list[torch.Tensor](), made.model.targets_D

    def loss_of(logits_nV: torch.Tensor, where: slice, counts_n: torch.Tensor) -> torch.Tensor:
        recorded.append(logits_nV.detach())
        return 0 * logits_nV.nan_to_num().sum(-1)

    # The loss position of the token after column c is answered at place j by row c - 1 - j.
    inputs = {"input_ids": text_T[None], "predicts": torch.arange(1, TOKENS - 1)}
    TrainedHead(made.model, made.states, STEPS).loss(inputs, VOCABULARY, loss_of)
    lacking = 0 if kept is None else VOCABULARY - len(kept)
    assert all(bool((logits_NV.isneginf().sum(-1) == lacking).all()) for logits_NV in recorded)
    ours = [logits_NV[place:, slice(None) if kept is None else kept] for place, logits_NV in enumerate(recorded)]
    assert largest_difference(ours, their_logits(theirs, text_T, made.states)) < CLOSE


@by_case(WINDOWS)
def test_a_window_moves_with_the_drafted_token(
    made: Eagle3Draft, theirs: Any, text_T: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM's does, by its counters (`test_heads_vllm.py`). speculators leaves it where the round began, so that step j is
    trained on j tokens more than it is served with. With windows that grow so, ours has their logits."""
    found, ours = their_logits(theirs, text_T, made.states), our_logits(made, text_T)
    assert relative(ours[0], found[0][:-1]) < CLOSE
    assert largest_difference(ours, found) > 1e-2

    forward, window, place = made.model.forward, made.model.windows[0], 0
    assert window is not None

    def grown(ids_BT: torch.Tensor, hidden_BTH: torch.Tensor, positions_BT: torch.Tensor, masks: Any) -> torch.Tensor:
        nonlocal place
        masks[0].windows = [window + place] * len(masks)
        place += 1
        return forward(ids_BT, hidden_BTH, positions_BT, masks)

    monkeypatch.setattr(made.model, "forward", grown)
    assert largest_difference(our_logits(made, text_T), found) < CLOSE


def randomise(model: Any) -> None:
    """Norms of ones and small matrices hide mistakes."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name not in OF_THE_TARGET:
                spread = 1.2 / weight.shape[1] ** 0.5 if weight.dim() == 2 else 0.2
                weight.copy_(torch.randn(weight.shape, generator=generator) * spread + (weight.dim() == 1) * 0.9)


@pytest.mark.parametrize("window", [None, 2048])
@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("kind", "layers"), [("llama", 1), ("qwen3", 2)])
def test_what_they_write_is_read(
    target: Any, text_T: Text, tmp_path: Path, kind: str, layers: int, norm: str, kept: int | None, window: int | None
) -> None:
    """A head of their training's own making, saved by their model, with its own embedding."""
    layer = create_transformer_layer_config(
        verifier_name_or_path="target",
        num_layers=layers,
        draft_arch=kind,
        hidden_act=None,
        sliding_window=window or 2048,
        full_attention_indices=[] if window else list(range(layers)),
    )
    tokens = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2))[:kept].sort().values
    has_V = torch.zeros(VOCABULARY, dtype=torch.bool).scatter(0, tokens, True)
    flags = {"norm_before_residual": False} | NORMS[norm]
    theirs = Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        t2d=None if kept is None else has_V,
        d2t=None if kept is None else tokens - torch.arange(kept),
        verifier_name_or_path="target",
        draft_vocab_size=kept or VOCABULARY,
        ttt_steps=3,
        target_layer_ids=list(LAYERS),
        draft_attn_impl="eager",
        **flags,
    ).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = read_by_us(tmp_path / "theirs", target)

    assert [window] * layers == ours.model.windows
    assert largest_difference(our_logits(ours, text_T), their_logits(theirs, text_T, ours.states)) < CLOSE


def test_the_targets_embedding_and_output_layer_are_the_same(target: Any, text_T: Text, tmp_path: Path) -> None:
    """Of files that hold neither."""
    draft = eagle3_draft(target)
    for weight in (draft.model.embed_tokens.weight, draft.model.lm_head.weight):
        torch.nn.init.normal_(weight)  # what is left out
    save_head(draft.model, tmp_path / "head")
    file = tmp_path / "head/model.safetensors"
    left = {name: one for name, one in load_file(file).items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    save_file(left, file, metadata={"format": "pt"})
    ours, theirs = read_by_us(tmp_path / "head", target), with_the_targets_own(read_by_them(tmp_path / "head"))
    assert torch.equal(theirs.embed_tokens.weight, target.get_input_embeddings().weight)
    assert torch.equal(theirs.lm_head.weight, target.get_output_embeddings().weight)
    assert largest_difference(our_logits(ours, text_T), their_logits(theirs, text_T, ours.states)) < CLOSE


@pytest.mark.parametrize("kept", [None, KEPT])
def test_eagles_own_layout_is_read_as_their_converter_reads_it(
    target: Any, text_T: Text, tmp_path: Path, kept: int | None
) -> None:
    made = eagle3_draft(target, kept=kept)
    write_eagle3(tmp_path / "eagle", made, "eagle")
    ids = list(made.layers)
    convert_model(
        str(tmp_path / "eagle"), "target", "eagle3", str(tmp_path / "theirs"), eagle_aux_hidden_state_layer_ids=ids
    )
    ours, theirs = read_by_us(tmp_path / "eagle", target), with_the_targets_own(read_by_them(tmp_path / "theirs"))
    assert largest_difference(our_logits(ours, text_T), their_logits(theirs, text_T, ours.states)) < CLOSE
