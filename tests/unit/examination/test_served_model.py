"""A served target in the place of a model: logits that agree with the server, and the checks that are made with them."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pipeline.config.server import ServerConfig
from pipeline.examination.served_model import ServedLogits, served_model
from pipeline.examination.stored_log_p import compare_log_p
from pipeline.generation.completion_store import StoredCompletion
from pipeline.servers.connect import identify
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import quiet
from tests.standin_server import VOCABULARY, StandIn, log_p_of, running

LISTED = 20


@pytest.fixture
def model() -> Iterator[ServedLogits]:
    """Of a server that lists 20 tokens of 512."""
    with running(StandIn()) as server:
        config = ServerConfig.model_validate({"endpoints": [server.url], "logprobs": LISTED})
        identity = asyncio.run(identify(config, None, "float32", [], quiet()))
        with served_model(config, identity, VOCABULARY, quiet()) as found:
            yield found


def test_logits_are_those_of_the_server(model: ServedLogits) -> None:
    """Listed tokens and the tokens of the sequence have their log p; the others share the rest."""
    ids = [30, 31, 32, 33]
    logits = model(input_ids=torch.tensor([ids]), logits_to_keep=2).logits
    assert (1, 2, VOCABULARY) == logits.shape
    for place, row in zip((3, 4), logits[0].double(), strict=True):
        exact = torch.from_numpy(log_p_of(ids[:place]).copy())
        listed = exact.topk(LISTED).indices
        assert exact[listed].numpy() == pytest.approx(row[listed].numpy(), abs=1e-5)
        assert 1.0 == pytest.approx(float(row.exp().sum()), abs=0.02)
    assert float(log_p_of(ids[:3])[33]) == pytest.approx(float(logits[0, 0, 33]), abs=1e-5)


def test_rows_of_different_lengths_are_decoded(model: ServedLogits) -> None:
    """The decoder's greedy completions are the server's."""
    prompts = [[30, 31, 32], [40, 41, 42, 43, 44, 45], [50]]
    decoder = Decoder(model, None, sampling=GREEDY, vocabulary=VOCABULARY)
    for prompt, completion in zip(prompts, decoder.decode([Request(one, 5, 0) for one in prompts]), strict=True):
        ids = list(prompt)
        for token in completion.tokens:
            assert int(log_p_of(ids).argmax()) == token
            ids.append(token)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_stored_log_p_is_compared_for_every_token(model: ServedLogits, shift: float) -> None:
    """Also for a last token that the server does not list; wrong log p is found."""
    items = []
    rng = np.random.default_rng(0)
    for number in range(8):
        ids, log_p = [20 + number, 21, 22], []
        for _ in range(6):
            unlikely = np.argsort(log_p_of(ids))[rng.integers(0, 300)]  # far from the listed ones
            log_p.append(log_p_of(ids)[unlikely] + shift)
            ids.append(int(unlikely))
        items.append(
            StoredCompletion(
                id=str(number),
                text_id="t",
                conversation="t",
                split="examination",
                domain="d",
                sampling=Sampling(),
                prompt=np.array(ids[:3], dtype=np.int32),
                length=6,
                stopped=False,
                tokens=np.array(ids[3:], dtype=np.int32),
                log_p=np.array(log_p, dtype=np.float32),
                entries=np.zeros((6, 1, 3), dtype=np.uint8),
                certain=np.zeros(6, dtype=np.uint8),
                rest_log_p=np.zeros(6, dtype=np.float16),
                vocabulary=VOCABULARY,
            )
        )
    found = compare_log_p(model, items, VOCABULARY, exact_arithmetic=True)
    assert (shift == 0.0) == found.agrees
    assert abs(shift) == pytest.approx(found.largest_difference, abs=1e-3)
