"""Networks of token ids: what they compute, and that Opacus trains them as one plain loop does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import flat, train_one
from torch import Tensor, nn

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning import opacus_path
from dpaudit.mechanisms.learning.architectures import build_module, parameter_count
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train

LENGTH, CLASSES, ROWS = 6, 3, 11
NETWORKS = {
    "bag-of-embeddings": {"vocabulary": ROWS, "width": 4},
    "transformer": {"vocabulary": ROWS, "width": 4, "heads": 2, "layers": 2},
}


def records(count: int, seed: int) -> Pool:
    """Sentences of 1 to 6 ids, with padding behind them."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 2**24, (count, LENGTH))
    return Pool(
        np.where(np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (count, 1)), ids, 0).astype(np.float32),
        rng.integers(0, CLASSES, count),
    )


def specification(name: str, *, build: Callable[..., nn.Module] | None = None) -> DPSGDSpec:
    kwargs = {} if build else NETWORKS[name]
    return DPSGDSpec(
        architecture=Architecture(name, LENGTH, CLASSES, kwargs, build), mechanism=Gaussian(0.1, clip=0.5), steps=4,
        sampling_prob=0.5, expected_batch_size=10.0, learning_rate=0.5,
    )  # fmt: skip


def rows_of(ids: NDArray[np.float32]) -> NDArray[np.int64]:
    """The fold of ids into rows of a table, in integers."""
    whole = ids.astype(np.int64)
    return np.where(whole > 0, 1 + (whole - 1) % (ROWS - 1), 0)


def test_a_bag_of_embeddings_is_two_matrices_on_the_shares_of_words() -> None:
    module, pool = (
        build_module(Architecture("bag-of-embeddings", LENGTH, CLASSES, NETWORKS["bag-of-embeddings"])),
        records(9, 1),
    )
    shares = np.stack([np.bincount(row[row > 0], minlength=ROWS) for row in rows_of(pool.x)]).astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    table, weight = (tensor.double().numpy() for tensor in module.state_dict().values())
    found = module(torch.from_numpy(pool.x)).detach().numpy()
    np.testing.assert_allclose(found, shares @ table @ weight.T, atol=1e-5)


def test_a_transformer_sees_words_and_their_places_and_no_padding() -> None:
    torch.manual_seed(2)
    kwargs, pool = NETWORKS["transformer"], records(9, 2)
    module = build_module(Architecture("transformer", LENGTH, CLASSES, kwargs))
    x = torch.from_numpy(pool.x)
    outputs = module(x)
    for row, output in zip(x, outputs, strict=True):
        # the same sentence alone, cut at its end: a shorter network with the same weights
        words = int((row > 0).sum())
        short = build_module(Architecture("transformer", words, CLASSES, kwargs))
        state = {**module.state_dict(), "positions.weight": module.state_dict()["positions.weight"][:words]}
        short.load_state_dict(state)
        torch.testing.assert_close(short(row[None, :words])[0], output, atol=1e-5, rtol=1e-4)
    long = x[(x > 0).all(1)]
    assert len(long)
    assert not torch.allclose(module(long), module(long.flip(1)), atol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_sentence_without_a_word_has_finite_outputs_and_gradients(name: str) -> None:
    module = build_module(Architecture(name, LENGTH, CLASSES, NETWORKS[name]))
    module(torch.zeros(2, LENGTH)).sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", NETWORKS)
def test_opacus_trains_them_as_one_plain_loop_does(name: str) -> None:
    spec, pool = specification(name), records(20, 3)
    members = np.random.default_rng(4).random((2, 20)) < 0.8
    models = train(spec, pool, members, [5, 6])
    assert sum(tensor[0].numel() for tensor in models.parameters.values()) == parameter_count(spec.architecture)
    for model, seed in enumerate((5, 6)):
        np.testing.assert_allclose(flat(models, model), train_one(spec, pool, members[model], seed), atol=5e-6)


class OneTableOfPlaces(nn.Module):
    """Positions looked up once for all records of a batch: Opacus then sums their gradients over the batch."""

    largest_id = ROWS - 1

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(ROWS, 4), nn.Embedding(inputs, 4)
        self.last = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1])[None])
        logits: Tensor = self.last((self.words(x.long()) + places).tanh().mean(1))
        return logits


class Unused(nn.Module):
    """A layer that no output depends on."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(inputs, classes), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.used(x)
        return logits


@pytest.mark.parametrize(
    ("build", "names"), [(OneTableOfPlaces, r"places\.weight"), (Unused, r"spare\.weight, spare\.bias")]
)
def test_gradients_that_opacus_gets_wrong_are_refused_by_name(build: Callable[..., nn.Module], names: str) -> None:
    spec = specification("mine", build=build)
    with pytest.raises(ValueError, match=rf"for each parameter, as autograd's: {names}\.$") as error:
        opacus_path.train(spec, records(6, 7), np.ones((1, 6), dtype=bool), [1])
    assert "\n" not in str(error.value)
