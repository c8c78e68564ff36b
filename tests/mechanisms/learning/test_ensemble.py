"""The ensemble engine: equal to one plain loop of autograd, deterministic, private in every case that could slip."""

import hashlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import DEVICE, flat, train_one
from scipy import stats

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.defects import CORRECT, DEFECTS, Defect
from dpaudit.mechanisms.learning import batches, ensemble, products
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.norms import lp_norm
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool

INPUTS, CLASSES, RECORDS = 20, 4, 40
LINEAR = Architecture("linear", INPUTS, CLASSES)
UNBIASED = Architecture("linear", INPUTS, CLASSES, {"bias": False})
TWO_CLASSES = Architecture("linear", INPUTS, 2)
WIDE = Architecture("linear", INPUTS, 2 * products.NARROW)
FNN = Architecture("fnn", INPUTS, CLASSES, {"hidden": 9})
MEDIAN_NORM = {1: 20.0, 1.5: 6.0, 2: 3.0, 4: 1.5, math.inf: 0.8}  # so that some records are clipped and some are not


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As workers train: with more threads the bits depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def records(seed: int, count: int = RECORDS, classes: int = CLASSES) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(rng.normal(size=(count, INPUTS)).astype(np.float32), rng.integers(0, classes, count))


def specification(architecture: Architecture = FNN, order: float = 2, **changes: object) -> DPSGDSpec:
    mechanism = Gaussian(0.05, clip=MEDIAN_NORM[order], clip_norm=order)
    spec = DPSGDSpec(
        architecture=architecture, mechanism=mechanism, steps=4, sampling_prob=0.3, expected_batch_size=10.0,
        learning_rate=0.5, momentum=0.5,
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def some(share: float, models: int = 3, seed: int = 1) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random((models, RECORDS)) < share


def assert_equals_plain_loop(spec: DPSGDSpec, pool: Pool, members: NDArray[np.bool_]) -> None:
    models = ensemble.train(spec, pool, members, range(5, 5 + len(members)))
    for model, row in enumerate(members):
        np.testing.assert_allclose(flat(models, model), train_one(spec, pool, row, 5 + model), atol=5e-6, rtol=1e-5)


# batches are copied out (q or the members few; of narrow layers read where they are), masked (many), or shared by all
@pytest.mark.parametrize(
    ("sampling_prob", "share"), [(0.1, 0.9), (0.3, 1.0), (0.9, 0.9), (1.0, 0.4), (1.0, 0.8), (1.0, 1.0)]
)
@pytest.mark.parametrize("order", MEDIAN_NORM)
@pytest.mark.parametrize(
    "architecture", [LINEAR, UNBIASED, TWO_CLASSES, WIDE, FNN], ids=["linear", "unbiased", "two classes", "wide", "fnn"]
)
def test_it_equals_the_plain_loop(architecture: Architecture, order: float, sampling_prob: float, share: float) -> None:
    spec = specification(architecture, order, sampling_prob=sampling_prob)
    assert_equals_plain_loop(spec, records(2, classes=architecture.classes), some(share))


@pytest.mark.parametrize(("order", "sampling_prob"), [(2, 0.3), (1.5, 1.0)])
def test_it_equals_the_plain_loop_with_several_hidden_layers(order: float, sampling_prob: float) -> None:
    deep = Architecture("fnn", INPUTS, CLASSES, {"hidden": [9, 6, 5]})
    assert [len(w) for w in build_module(deep).state_dict().values()] == [9, 9, 6, 6, 5, 5, CLASSES, CLASSES]
    assert_equals_plain_loop(specification(deep, order, sampling_prob=sampling_prob), records(2), some(0.8))


@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace(0.1, clip=20.0, clip_norm=1.0),
        GammaPLRV(5.0, 2.0, clip=2.0),
        GammaPLRVIID(5.0, 2.0, clip=2.0),
        Product(3.0, clip=2.0),
        GeneralizedGaussian(2.5, 0.2, clip=2.0, clip_norm=2.5),
    ],
    ids=lambda mechanism: str(mechanism.name),
)
def test_it_equals_the_plain_loop_with_every_mechanism(mechanism: Mechanism) -> None:
    spec = specification(mechanism=mechanism, init="zeros", momentum=0.0)
    assert_equals_plain_loop(spec, records(3), some(0.8))
    silent = ensemble.train(replace(spec, defect=Defect(noise_factor=0.0)), records(3), some(0.8), range(5, 8))
    noisy = ensemble.train(spec, records(3), some(0.8), range(5, 8))
    assert np.abs(flat(noisy, 0) - flat(silent, 0)).max() > 1e-3


@pytest.mark.parametrize("sampling_prob", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
@pytest.mark.parametrize("architecture", [TWO_CLASSES, FNN], ids=["two classes", "fnn"])
def test_a_planted_fault_does_what_it_says_and_changes_the_model(
    architecture: Architecture, defect: Defect, sampling_prob: float
) -> None:
    mechanism = Gaussian(0.5, clip=1.0)
    spec = specification(architecture, mechanism=mechanism, sampling_prob=sampling_prob, defect=defect)
    pool = records(4, classes=architecture.classes)
    assert_equals_plain_loop(spec, pool, some(0.9))
    faulty = flat(ensemble.train(spec, pool, some(0.9), [5, 6, 7]), 1)
    correct = flat(ensemble.train(replace(spec, defect=CORRECT), pool, some(0.9), [5, 6, 7]), 1)
    assert np.abs(faulty - correct).max() > 1e-3


@pytest.mark.parametrize(
    ("architecture", "sampling_prob"), [(FNN, 0.3), (FNN, 0.9), (FNN, 1.0), (TWO_CLASSES, 0.4), (LINEAR, 0.4)]
)
def test_neither_groups_nor_chunks_show(
    architecture: Architecture, sampling_prob: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, members = specification(architecture, sampling_prob=sampling_prob), some(0.9, models=7)
    pool = records(5, classes=architecture.classes)
    monkeypatch.setattr(batches, "NARROW_SHARE", 0.5)
    whole = ensemble.train(spec, pool, members, range(7))
    monkeypatch.setattr(batches, "CHUNK_RECORDS", {DEVICE.type: 16})
    monkeypatch.setattr(batches, "LAYER_NUMBERS", {DEVICE.type: 16 * 9 * 2})  # two models at a time
    parts = ensemble.train(spec, pool, members, range(7))
    for model in range(7):
        np.testing.assert_allclose(flat(parts, model), flat(whole, model), atol=2e-6)
    assert parts.ledger == whole.ledger


@pytest.mark.skipif(products.ONE_DNN is None, reason="needs a torch that was built with oneDNN")
def test_products_agree_with_and_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, pool, members = specification(), records(6), some(0.9)
    monkeypatch.setattr(products, "_LINEAR", products.ONE_DNN)
    fast = [flat(ensemble.train(replace(spec, sampling_prob=q), pool, members, range(3)), 2) for q in (0.3, 1.0)]
    monkeypatch.setattr(products, "_LINEAR", None)
    plain = [flat(ensemble.train(replace(spec, sampling_prob=q), pool, members, range(3)), 2) for q in (0.3, 1.0)]
    np.testing.assert_allclose(fast, plain, atol=2e-6)


@pytest.mark.skipif(products.ONE_DNN is None, reason="needs a torch that was built with oneDNN")
def test_a_batch_of_nobody_has_a_gradient_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_LINEAR", products.ONE_DNN)
    out = torch.full((3, 6), torch.nan)
    products.times_transposed(torch.empty(3, 0), torch.empty(6, 0), out)
    assert torch.equal(out, torch.zeros(3, 6))


def test_the_callers_low_precision_is_neither_used_nor_lost() -> None:
    spec, pool, members = specification(sampling_prob=1.0), records(7), some(0.9)
    full = flat(ensemble.train(spec, pool, members, range(3)), 0)
    torch.set_float32_matmul_precision("medium")
    try:
        assert np.array_equal(flat(ensemble.train(spec, pool, members, range(3)), 0), full)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_same_seed_gives_the_same_model_in_any_company() -> None:
    spec, pool, members = specification(), records(8), some(0.8, models=6)
    together = ensemble.train(spec, pool, members, range(6))
    again = ensemble.train(spec, pool, members, range(6))
    for name, tensor in together.parameters.items():
        assert tensor.equal(again.parameters[name])
    alone = ensemble.train(spec, pool, members[4:5], [4])
    np.testing.assert_allclose(flat(alone, 0), flat(together, 4), atol=2e-6)
    assert np.abs(flat(together, 4) - flat(together, 5)).max() > 1e-2


IN_A_PROCESS_OF_ITS_OWN = """
import hashlib, sys
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import conftest, test_ensemble as t
models = t.ensemble.train(t.specification(), t.records(9), t.some(0.8), range(3))
print(hashlib.sha256(np.stack([t.flat(models, i) for i in range(3)]).tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_worker_process_gives_the_same_bits() -> None:
    models = ensemble.train(specification(), records(9), some(0.8), range(3))
    here = hashlib.sha256(np.stack([flat(models, i) for i in range(3)]).tobytes()).hexdigest()
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, __file__.rpartition("/")[0]]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == here


@pytest.mark.parametrize(("sampling_prob", "share"), [(0.3, 0.8), (0.9, 0.9), (1.0, 0.3), (1.0, 0.9), (1.0, 1.0)])
def test_who_is_no_member_has_no_influence(sampling_prob: float, share: float) -> None:
    spec, pool, members = specification(sampling_prob=sampling_prob, steps=8), records(10), some(share)
    members[1, 7] = False
    x, y = pool.x.copy(), pool.y.copy()
    x[7], y[7] = 1e6, (y[7] + 1) % CLASSES
    before, after = (ensemble.train(spec, data, members, range(3)) for data in (pool, Pool(x, y)))
    assert np.array_equal(flat(before, 1), flat(after, 1))
    members[1, 7] = True
    before, after = (ensemble.train(spec, data, members, range(3)) for data in (pool, Pool(x, y)))
    assert not np.array_equal(flat(before, 1), flat(after, 1))


def test_a_record_too_large_to_be_removed_by_a_zero_is_refused() -> None:
    pool = records(11)
    pool.x[3] = 1e30
    with pytest.raises(ValueError, match="Expected the l_2 norm of every record to be finite"):
        ensemble.train(specification(), pool, some(1.0), range(3))


@pytest.mark.parametrize("order", MEDIAN_NORM)
@pytest.mark.parametrize("architecture", [LINEAR, TWO_CLASSES, FNN], ids=["linear", "two classes", "fnn"])
def test_one_record_moves_the_sum_by_its_clip_and_no_more(architecture: Architecture, order: float) -> None:
    clip = 0.3 * MEDIAN_NORM[order]
    spec = specification(
        architecture, order, mechanism=Gaussian(1e-9, clip=clip, clip_norm=order), steps=1, sampling_prob=1.0,
        init_seed=3, expected_batch_size=1.0, learning_rate=1.0,
    )  # fmt: skip
    pool = records(12, classes=architecture.classes)
    pool.x[:5] *= 1000
    alone = ensemble.train(spec, pool, np.eye(RECORDS, dtype=bool), range(RECORDS))
    nobody = flat(ensemble.train(spec, pool, np.zeros((1, RECORDS), dtype=bool), [0]), 0).astype(np.float64)
    moves = [np.linalg.norm(flat(alone, i) - nobody, ord=order) for i in range(RECORDS)]
    assert max(moves) <= clip * (1 + 2e-5)
    assert sum(move >= clip * (1 - 2e-5) for move in moves) >= 10


@pytest.mark.parametrize("order", [1, 1.5, 2, 4, 50, 300, math.inf])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_norms_neither_underflow_nor_overflow(order: float, size: float) -> None:
    values = np.random.default_rng(13).normal(scale=size, size=(2, 300, 5))
    values[:, :, 4] = 0
    expected = np.linalg.norm(values / size, ord=order, axis=1) * size
    computed = lp_norm(torch.from_numpy(values).float(), order, 1)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=2e-5)


def test_poisson_batches_are_binomial_and_fresh_at_every_step() -> None:
    q, count, steps = 0.3, 200, 600
    spec = specification(LINEAR, sampling_prob=q, steps=steps, init="zeros")
    members = np.ones((1, count), dtype=bool)
    members[0, 150:] = False
    sizes = np.array(ensemble.train(spec, records(14, count), members, [1]).ledger.batch_sizes)
    # chi-square over bins of at least 20 expected batches, error probability 1e-6
    law = stats.binom(150, q)
    edges = np.array([-1, 39, 41, 43, 44, 45, 46, 48, 50, 150])
    expected = np.diff(law.cdf(edges)) * steps
    observed = np.histogram(sizes, bins=edges + 0.5)[0]
    assert expected.min() > 20
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    wrong = np.diff(stats.binom(150, q * 1.1).cdf(edges)) * steps
    assert stats.chisquare(observed, wrong * observed.sum() / wrong.sum()).pvalue < 1e-6
    centred = sizes - 150 * q
    assert abs(np.mean(centred[1:] * centred[:-1])) < 5 * law.var() / math.sqrt(steps)  # P < 6e-7


def test_every_record_is_drawn_independently() -> None:
    spec = specification(FNN, sampling_prob=0.3, steps=100)
    streams = [batches.Streams(seed, DEVICE) for seed in range(50)]
    plan = batches.make_plan(spec, records(15), np.ones((50, RECORDS), dtype=bool), DEVICE)
    coins = np.zeros((5000, RECORDS))
    for step, batch in enumerate(batches.step_batches(plan, None, streams)):
        assert batch.index is not None
        assert batch.keep is not None
        rows, at = batch.keep.nonzero(as_tuple=True)
        coins[50 * step + rows.cpu(), batch.index[rows, at].cpu()] += 1
    correlation = np.corrcoef(coins.T) - np.eye(RECORDS)
    # 780 pairs of standard error 1/sqrt(5000): the largest beyond 6 of them has P < 2e-6
    assert np.abs(correlation).max() < 6 / math.sqrt(5000)
    assert np.abs(coins.mean(axis=0) - 0.3).max() < 6 * math.sqrt(0.21 / 5000)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_on_the_weights_has_the_stated_size(momentum: float) -> None:
    architecture, steps = Architecture("fnn", INPUTS, CLASSES, {"hidden": 50}), 5
    spec = specification(
        architecture, mechanism=Gaussian(1.5, clip=2.0), steps=steps, momentum=momentum, init="zeros",
        learning_rate=0.3,
    )  # fmt: skip
    models = ensemble.train(spec, records(16), np.zeros((40, RECORDS), dtype=bool), range(40))
    assert models.ledger.batch_sizes == (0,) * steps
    # a step's noise is applied (1 - momentum^r)/(1 - momentum) times over the r steps that remain
    gains = [sum(momentum**i for i in range(remaining)) for remaining in range(1, steps + 1)]
    std = 0.3 * 1.5 * 2.0 / 10.0 * math.sqrt(sum(gain**2 for gain in gains))
    for tensor in models.parameters.values():
        # the observed standard deviation of n normal numbers has relative error 1/sqrt(2n); 5 of them: P < 6e-7
        assert tensor.double().std() == pytest.approx(std, rel=5 / math.sqrt(2 * tensor.numel()))
    values = np.stack([flat(models, i) for i in range(40)])
    correlation = np.corrcoef(values) - np.eye(40)
    assert np.abs(correlation).max() < 6 / math.sqrt(values.shape[1])  # 780 pairs: P < 2e-6


def test_first_weights_are_glorot_normal_and_shared_where_the_spec_says_so() -> None:
    architecture = Architecture("fnn", 200, CLASSES, {"hidden": 100})
    pool = Pool(np.zeros((RECORDS, 200), dtype=np.float32), np.zeros(RECORDS, dtype=np.int64))
    spec = specification(architecture, mechanism=Gaussian(1e-12), steps=1)
    nobody = np.zeros((2, RECORDS), dtype=bool)
    own = ensemble.train(spec, pool, nobody, [1, 2])
    weight = own.parameters["0.weight"].double()
    # 40,000 numbers: relative error of the standard deviation 0.35%; 5 of them: P < 6e-7
    assert weight.std() == pytest.approx(math.sqrt(2 / 300), rel=0.018)
    assert own.parameters["0.bias"].abs().max() < 1e-9
    assert np.abs(flat(own, 0) - flat(own, 1)).max() > 0.1
    shared = ensemble.train(replace(spec, init_seed=3), pool, nobody, [1, 2])
    np.testing.assert_allclose(flat(shared, 0), flat(shared, 1), atol=1e-9)


def test_the_ledger_says_what_happened_and_progress_counts_every_step() -> None:
    done: list[int] = []
    models = ensemble.train(specification(order=1), records(17), some(1.0), range(3), progress=done.append)
    ledger = models.ledger
    assert (ledger.noise_draws, len(ledger.batch_sizes), sum(done)) == (4, 4, 12)
    assert (ledger.engine, ledger.device, ledger.divisor) == ("ensemble", DEVICE.type, 10.0)
    assert (ledger.clip, ledger.clip_norm, ledger.sampling_prob) == (20.0, 1.0, 0.3)
    faulty = replace(specification(order=1), defect=Defect(clip_norm=math.inf))
    assert ensemble.train(faulty, records(17), some(1.0), range(3)).ledger.clip_norm == math.inf


@pytest.mark.parametrize("architecture", [LINEAR, UNBIASED, FNN], ids=["linear", "unbiased", "fnn"])
def test_the_state_dict_fits_the_module(architecture: Architecture) -> None:
    models = ensemble.train(specification(architecture), records(18), some(1.0), range(3))
    module = build_module(architecture)
    module.load_state_dict(models.state_dict(1))
    assert list(models.parameters) == list(module.state_dict())
    assert torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy() == pytest.approx(flat(models, 1))


def test_it_learns() -> None:
    rng = np.random.default_rng(19)
    y = rng.integers(0, CLASSES, 400)
    x = (rng.normal(size=(400, INPUTS)) + 3 * np.eye(CLASSES, INPUTS)[y]).astype(np.float32)
    spec = specification(FNN, mechanism=Gaussian(1.0), steps=60, expected_batch_size=120.0)
    models = ensemble.train(spec, Pool(x, y), np.ones((2, 400), dtype=bool), [1, 2])
    module = build_module(FNN)
    module.load_state_dict(models.state_dict(0))
    assert (module(torch.from_numpy(x)).argmax(1).numpy() == y).mean() > 0.9
