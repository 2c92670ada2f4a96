"""Which weights a server serves: rounding is told from other weights by log p of fixed sequences."""

import asyncio
from dataclasses import replace

import pytest

from pipeline.config.pair import NumberFormat
from pipeline.progress import Progress
from pipeline.servers.connect import identify
from pipeline.servers.identity import Golden, Identity, difference, golden_prompts, is_rounding, new_identity
from pipeline.servers.target import ServedModel
from tests.fakes import quiet
from tests.served import config_of, identity_of
from tests.standin_server import StandIn, running


@pytest.mark.parametrize(
    ("difference", "dtype", "same"),
    [
        (5e-4, "float32", True),
        (2e-3, "float32", False),
        (0.01, "bfloat16", True),
        (0.01, "float16", True),
        (0.1, "bfloat16", False),
    ],
)
def test_rounding_depends_on_the_number_format(difference: float, dtype: NumberFormat, same: bool) -> None:
    """Two bfloat16 batches of different shape differ by up to 0.01; a fine-tuned target by 0.1 or more."""
    assert same == is_rounding(difference, dtype)


def test_fixed_prompts_are_those_of_the_first_version() -> None:
    """Known identities are found again only by the same sequences; their ids are in every vocabulary."""
    prompts = golden_prompts()
    assert (4, {32}) == (len(prompts), {len(one) for one in prompts})
    assert [330, 10, 224, 322] == [one[0] for one in prompts]
    assert all(10 <= token < 500 for one in prompts for token in one)


def test_a_server_that_rounds_is_the_same_target() -> None:
    """Each answer is a little different; retrained weights behind the same name are another target."""
    with running(StandIn(rounding=0.01)) as server:

        def ask(known: list[Identity]) -> Identity:
            return asyncio.run(identify(config_of(server), "v1", "bfloat16", known, quiet()))

        first = ask([])
        again = ask([first])
        server.weights = 1
        other = ask([first])
        both = ask([first, other])
    assert first == again
    assert (True, other) == (first.digest != other.digest, both)


def test_what_is_declared_and_said_is_in_the_digest() -> None:
    """Revision, number format, engine version, context length, name, root, greedy tokens, and log p to the last digit."""
    golden = Golden([[1, 2]], [[-1.0]])
    model = ServedModel("m", "/m", 4096, "0.32.0")
    first = new_identity(model, golden, "v1", "float32")
    changed = [
        new_identity(model, golden, "v2", "float32"),
        new_identity(model, golden, "v1", "bfloat16"),
        new_identity(ServedModel("n", "/m", 4096, "0.32.0"), golden, "v1", "float32"),
        new_identity(ServedModel("m", "/n", 4096, "0.32.0"), golden, "v1", "float32"),
        new_identity(ServedModel("m", "/m", 2048, "0.32.0"), golden, "v1", "float32"),
        new_identity(ServedModel("m", "/m", 4096, "0.33.0"), golden, "v1", "float32"),
        new_identity(model, Golden([[1, 3]], [[-1.0]]), "v1", "float32"),
        new_identity(model, Golden([[1, 2]], [[-1.000000000000001]]), "v1", "float32"),
    ]
    assert 9 == len({one.digest for one in [first, *changed]})
    assert first.digest == new_identity(model, Golden([[1, 2]], [[-1.0]]), "v1", "float32").digest
    assert first == Identity.from_facts(first.facts())


@pytest.mark.parametrize(("scale", "is_new"), [(0.6, True), (0.99, True), (0.9995, True), (0.9999, False)])
def test_weights_with_the_same_greedy_tokens_are_told_apart(scale: float, is_new: bool) -> None:
    """Scaled logits give every greedy token as before. A mean difference of log p above 0.001 is a new target, with a digest of
    its own; below that it is rounding (float32)."""
    with running(StandIn()) as server:
        first = identity_of(config_of(server))
        server.scale = scale
        again = asyncio.run(identify(config_of(server), "v1", "float32", [first], quiet()))
        now = identity_of(config_of(server))

    assert first.golden.sequences == now.golden.sequences
    assert (is_new, is_new) == (difference(first.golden, now.golden) > 1e-3, first.digest != again.digest)


def test_differences_do_not_cancel() -> None:
    """Their mean is of absolute values. Sequences that were scored from other places are not comparable."""
    one = Golden([[1, 2, 3]], [[-1.0, -2.0]])
    assert 1.0 == difference(one, Golden([[1, 2, 3]], [[-2.0, -1.0]]))
    assert float("inf") == difference(one, Golden([[1, 2, 3]], [[-1.0]]))


def test_equal_weights_under_another_revision_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    """One of the two declarations is wrong. An identity that another engine was asked for is not compared. Another revision or
    version of the engine is another identity."""
    with running(StandIn()) as server:
        first = identity_of(config_of(server))
        of_llama = replace(first, golden=replace(first.golden, log_p=[one[31:] for one in first.golden.log_p]))
        asyncio.run(identify(config_of(server), "v2", "float32", [of_llama], Progress()))
        assert "" == capsys.readouterr().err
        declared = asyncio.run(identify(config_of(server), "v2", "float32", [first], Progress()))
        server.version = "0.33.0"
        upgraded = asyncio.run(identify(config_of(server), "v1", "float32", [first], quiet()))
    assert "check which is right" in capsys.readouterr().err
    assert 3 == len({first.digest, declared.digest, upgraded.digest})
