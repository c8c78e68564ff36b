"""Scripts that account truly for what they do: whatever else they call epsilon, steps or delta, nothing is found."""

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from dpaudit.audit.lint.findings import Finding
from dpaudit.audit.lint.linting import lint_paths
from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, check

# each is told epsilon of 15 or more by its accountant, and none states another
OPACUS = """
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from torchvision import datasets
EPOCHS, BATCH_SIZE, SIGMA, DELTA = 60, 512, 0.5, 1e-6
train = datasets.MNIST(".", train=True)
loader = DataLoader(train, batch_size=BATCH_SIZE)
engine = PrivacyEngine(secure_mode=True)
model, optimizer, private_loader = engine.make_private(
    module=net, optimizer=sgd, data_loader=loader, noise_multiplier=SIGMA, max_grad_norm=1.0
)
for epoch in range(EPOCHS):
    for x, y in private_loader:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
print("epsilon", engine.get_epsilon(delta=DELTA))
"""
ACCOUNTED = """
from opacus.accountants import RDPAccountant
noise_multiplier, sample_rate, steps, delta = 0.6, 0.01, 10000, 1e-5
accountant = RDPAccountant()
for step in range(steps):
    train_step(model)
    accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
print(accountant.get_epsilon(delta))
"""
TENSORFLOW = """
import tensorflow as tf
from tensorflow_privacy import VectorizedDPKerasSGDOptimizer, compute_dp_sgd_privacy
(x, y), _ = tf.keras.datasets.cifar10.load_data()
noise_multiplier, batch_size, epochs, delta = 0.7, 500, 100, 1e-6
optimizer = VectorizedDPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=noise_multiplier)
for step in range(epochs * 50000 // batch_size):
    mask = rng.random(50000) < batch_size / 50000
    optimizer.minimize(losses_of(x[mask], y[mask]), model.trainable_variables, tape=tape)
print(compute_dp_sgd_privacy(50000, batch_size, noise_multiplier, epochs, delta))
"""
JAX = """
import secrets
import dp_accounting
import jax
from jax_privacy import batch_selection, clipping, noise_addition
clip, noise_multiplier, sampling_prob, steps = 0.5, 0.6, 0.01, 10000
key = jax.random.key(secrets.randbits(63))
privatizer = noise_addition.gaussian_privatizer(stddev=noise_multiplier * clip, prng_key=key)
strategy = batch_selection.CyclicPoissonSampling(sampling_prob=sampling_prob, iterations=steps)
for batch in strategy.batch_iterator(60000):
    noisy, state = privatizer.update(clipping.clipped_grad(loss, l2_clip_norm=clip)(params, x[batch]), state)
accountant = dp_accounting.pld.PLDAccountant()
event = dp_accounting.PoissonSampledDpEvent(sampling_prob, dp_accounting.GaussianDpEvent(noise_multiplier))
accountant.compose(event, steps)
print(accountant.get_epsilon(1e-5))
"""
PLAIN_JAX = """
import secrets
import dp_accounting
import jax
def private_grad(params, batch, key, l2_norm_clip, noise_multiplier):
    key, noise_key = jax.random.split(key)
    total = jax.tree.map(lambda g: clipped(g, l2_norm_clip).sum(0), grads(params, batch))
    noise = l2_norm_clip * noise_multiplier * jax.random.normal(noise_key, total.shape)
    return (total + noise) / 256, key
params = init(jax.random.PRNGKey(0))
key = jax.random.PRNGKey(secrets.randbits(31))
for step in range(1000):
    grad, key = private_grad(params, poisson_batch(), key, 1.5, 1.1)
"""
RADIUS = """
epsilon = 0.3  # of the attack
def adversarial(x, gradient):
    return torch.clamp(x + epsilon * gradient.sign(), 0, 1)
"""
EXPLORATION = """
epsilon = 0.05
def act(state):
    return env.sample() if random.random() < epsilon else policy(state).argmax()
"""
STOPPING = """
from opacus.accountants import RDPAccountant
epsilon, delta, steps = 2.0, 1e-5, 10000
accountant = RDPAccountant()
for step in range(steps):
    if accountant.get_epsilon(delta=delta) > epsilon:
        break
    train_step(model)
    accountant.step(noise_multiplier=0.6, sample_rate=0.01)
"""
RUN_ENDS_ELSEWHERE = """
class Budget:
    def after(self, run):
        if accountant.get_epsilon(delta) >= target_epsilon:
            run.done = True
target_epsilon = 2.0
"""
PUBLIC_PASSES = """
epochs, target_epsilon = 2000, 8.0
for epoch in range(epochs):
    pretrain_on(public)
"""
ENVIRONMENT = """
from opacus.accountants import RDPAccountant
steps, updates, target_epsilon, delta = 1000000, 100, 1.0, 1e-5
for t in range(steps):
    observe(environment)
accountant = RDPAccountant()
for update in range(updates):
    accountant.step(noise_multiplier=1.1, sample_rate=0.01)
"""
SOLVED = """
import dp_accounting
steps, sampling_prob, target_epsilon, delta = 10000, 0.01, 2.0, 1e-5
noise_multiplier = bisected(target_epsilon, delta)
train(noise_multiplier=noise_multiplier, steps=steps, sampling_prob=sampling_prob, delta=delta)
train(noise_multiplier=0.6, baseline=True)
"""
OWN_TRAINER = """
class Private(Trainer):
    def get_train_dataloader(self):
        return private_loader
Private(model=model, train_dataset=train, optimizers=(optimizer, None)).train()
"""
IN_PARTS = """
with BatchMemoryManager(data_loader=private_loader, max_physical_batch_size=32, optimizer=optimizer) as loader:
    for x, y in loader:
        optimizer.step()
"""
CORRECT = {
    "opacus": OPACUS,
    "tensorflow": TENSORFLOW,
    "jax": JAX,
    "plain-jax": PLAIN_JAX,
    "radius": ACCOUNTED + RADIUS,
    "opacus-radius": OPACUS + RADIUS,
    "attack": ACCOUNTED.replace("range(steps)", "range(10000)").replace("steps, delta", "count, delta")
    + "attack = torchattacks.PGD(model, epsilon=8 / 255, steps=10)",
    "optimizer": ACCOUNTED + "epsilon = 0.1\nsgd = torch.optim.Adam(net.parameters(), eps=epsilon)",
    "opacus-optimizer": OPACUS + "epsilon = 0.1\nsgd = torch.optim.Adam(net.parameters(), eps=epsilon)",
    "tensorflow-adam": TENSORFLOW + "pretraining = tf.keras.optimizers.Adam(1e-3, epsilon=0.1)",
    "tensorflow-rms": TENSORFLOW + "pretraining = tf.keras.optimizers.RMSprop(1e-3, epsilon=0.1)",
    "jax-adam": JAX + "delta, epsilon = 1e-5, 0.02\noptimizer = optax.adam(1e-3, eps=epsilon)",
    "exploration": ACCOUNTED + EXPLORATION,
    "jax-exploration": JAX + "target_delta = 1e-5" + EXPLORATION,
    "count": ACCOUNTED + "print(diffprivlib.mechanisms.Laplace(epsilon=0.1, sensitivity=1).randomise(3))",
    "tensorflow-count": TENSORFLOW + "epsilon = 0.1\nprint(laplace(len(x), scale=1 / epsilon))",
    "stopping": STOPPING,
    "stopping-by-name": STOPPING.replace("epsilon,", "target_epsilon,").replace("> epsilon", "> target_epsilon"),
    "stopping-elsewhere": ACCOUNTED + RUN_ENDS_ELSEWHERE,
    "early-stopping": TENSORFLOW + "target_epsilon = 2.0\nmodel.fit(data, callbacks=[EarlyStopping()])",
    "question": ACCOUNTED + "print(accountant.get_delta(target_epsilon=1.0))",
    "solved": SOLVED,
    "public-passes": PUBLIC_PASSES + OPACUS.replace("EPOCHS", "PASSES").replace("60, 512, 0.5", "1, 512, 1.1"),
    "public-loop": PUBLIC_PASSES
    + OPACUS.replace("for epoch in range(EPOCHS)", "if ONCE").replace("EPOCHS", "ONCE").replace("0.5", "1.1"),
    "environment": ENVIRONMENT,
    "own-trainer": OPACUS + OWN_TRAINER,
    "public-trainer": "Trainer(model=net, train_dataset=public).train()\n" + OPACUS,
    "baseline": OPACUS + "for x, y in loader:\n    loss_of(baseline(x), y).backward()\n    plain.step()",
    "evaluated": OPACUS + "for x, y in loader:\n    correct += (model(x).argmax(1) == y).sum()",
    "in-parts": OPACUS + IN_PARTS,
    "count-by-name": ACCOUNTED + "dp_epsilon = 0.1\nprint(laplace(len(x), scale=1 / dp_epsilon))",
    "histogram": ACCOUNTED + "epsilon = 0.1\nprint(histogram(x, budget=(epsilon, delta)))",
    "planned": ACCOUNTED + "target_epsilon = 1.0\nprint(affordable_steps(target_epsilon))",
    "compared": ACCOUNTED + "target_epsilon = 1.0\nprint(accountant.get_epsilon(delta) - target_epsilon)",
    "unit-test": ACCOUNTED + "target_epsilon = 1.0\nself.assertGreater(accountant.get_epsilon(delta), target_epsilon)",
    "told": ACCOUNTED + "target_epsilon = 1.0\nsaid = 'in' if accountant.get_epsilon(delta) < 1 else 'out'",
    "raised": ACCOUNTED.replace("    train_step", "    if spent(step) < 0:\n        raise Done\n    train_step")
    + "target_epsilon = 1.0",
    "boundless": ACCOUNTED + "assert accountant.get_epsilon(delta) <= 1e400",
    "other-loader": OPACUS + "def go(loader):\n    for x, y in loader:\n        optimizer.step()\ngo(private_loader)",
    "new-loader": OPACUS + "loader = DataLoader(public)\nfor x, y in loader:\n    optimizer.step()",
    "plain-optimizer": OPACUS + "plain = SGD(model.parameters())\nfor x, y in loader:\n    plain.step()",
    "counted": OPACUS.replace("for x, y in private_loader:", "for number in range(len(loader)):"),
}  # fmt: skip


@pytest.fixture
def found(tmp_path: Path) -> Callable[[str], list[Finding]]:
    def findings(source: str) -> list[Finding]:
        (tmp_path / "train.py").write_text(dedent(source))
        return [item for item in lint_paths([tmp_path / "train.py"]).findings if item.level != "note"]

    return findings


@pytest.mark.parametrize("name", CORRECT)
def test_a_true_script_is_left_alone(name: str, found: Callable[[str], list[Finding]]) -> None:
    assert [(item.rule, item.message) for item in found(CORRECT[name])] == []


@pytest.mark.parametrize(
    "source",
    [
        OPACUS + "TARGET_EPSILON = 3.0\n",
        OPACUS + "epsilon = 3.0\nassert engine.get_epsilon(DELTA) <= epsilon\n",
        OPACUS + "epsilon = 3.0\nspent = engine.get_epsilon(DELTA)\nassert epsilon >= spent\n",
        ACCOUNTED + "epsilon = 3.0\nprint(f'({epsilon}, {delta})-DP')\n",
        ACCOUNTED + "epsilon = 3.0\nreport(guarantee=(epsilon, delta))\n",
        ACCOUNTED + "privacy_budget = 3.0\nsgd = Adam(p, epsilon=0.1)\nattack = PGD(model, epsilon=8 / 255)\n",
        TENSORFLOW + "dp_epsilon = 3.0\n",
        JAX + "epsilon = 3.0\nassert accountant.get_epsilon(1e-5) < epsilon\n",
    ],
)
def test_a_false_epsilon_that_is_privacys_is_still_refuted(source: str, found: Callable[[str], list[Finding]]) -> None:
    (finding,) = found(source)
    assert (finding.rule, finding.level) == ("claimed-value", "error")
    assert "not 3:" in finding.message
    assert found(source.replace("3.0", "30000.0")) == []


def test_an_epsilon_that_is_false_by_little_is_told_in_the_digits_that_show_it(
    found: Callable[[str], list[Finding]],
) -> None:
    """It was "at least 15.22, not 15.2287"."""
    claim = Claim.single(Gaussian(0.6), epsilon=1.0, delta=1e-5, steps=10000, sampling_prob=0.01)
    epsilon = check(claim).epsilon_lower * (1 - 1e-7)
    (finding,) = found(ACCOUNTED + f"epsilon = {epsilon!r}\nprint(f'({{epsilon}}, {{delta}})-DP')\n")
    told = re.search(r"at least (\S+) at delta 1e-05, not (\S+):", finding.message)
    assert told is not None
    assert float(told[1]) > float(told[2]) == pytest.approx(epsilon, rel=1e-9)


MNIST = 'datasets.MNIST(".", train=True)'
KERAS = "(x, y), (x_test, y_test) = keras.datasets.mnist.load_data()"


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (MNIST, 'datasets.SVHN(".", split="extra")'),
        (MNIST, 'datasets.SVHN(".", "extra")'),
        (MNIST, 'load_dataset("imdb", split="unsupervised")'),
        (MNIST, f'ConcatDataset([{MNIST}, datasets.MNIST(".", train=False)])'),
        (MNIST, f'{MNIST} + datasets.FashionMNIST(".")'),
        (MNIST, f'{MNIST} + datasets.MNIST(".", train=False)'),
        (f"train = {MNIST}", f"train, val = random_split({MNIST}, [0.9, 0.1])"),
        (f"train = {MNIST}", f"train = {MNIST}\nx = torch.cat([train.data, more])"),
        (f"train = {MNIST}", f"{KERAS}\nscaled = x / 255\nall = np.concatenate([scaled, y])"),
        (MNIST, 'load_dataset("imdb", split=PART)\nPART = "train+test"'),
        ("EPOCHS):\n", "EPOCHS):\n    optimizer.noise_multiplier *= 1.5\n"),
        ("EPOCHS):\n", "EPOCHS):\n    optimizer.noise_multiplier = noises[epoch]\n"),
        ("EPOCHS):\n", 'EPOCHS):\n    setattr(optimizer, "noise_multiplier", noises[epoch])\n'),
        (
            "for epoch in range(EPOCHS):\n",
            "def quieter():\n    optimizer.noise_multiplier = 0.5\nfor epoch in range(EPOCHS):\n    quieter()\n",
        ),
        ("for epoch", "scheduler = ExponentialNoise(optimizer, gamma=1.5)\nfor epoch"),
    ],
)
def test_no_epsilon_is_computed_of_records_or_noise_that_are_not_known(
    was: str, now: str, found: Callable[[str], list[Finding]]
) -> None:
    """Each was refuted by the sizes of names, or by the first of several noise multipliers."""
    source = OPACUS + "assert engine.get_epsilon(DELTA) <= 3.0\n"
    assert [item.rule for item in found(source)] == ["claimed-value"]
    assert was in source
    assert [item.rule for item in found(source.replace(was, now)) if item.rule == "claimed-value"] == []


@pytest.mark.parametrize(
    "beside",
    [
        'test = Subset(datasets.MNIST(".", train=False), range(1000))',
        'test = load_dataset("imdb", split="test").select(range(100))',
        "predictions = np.concatenate(answers)",
        "colour = np.take(colours, 3)",
    ],
)
def test_data_that_are_not_trained_on_may_be_cut(beside: str, found: Callable[[str], list[Finding]]) -> None:
    source = OPACUS + "assert engine.get_epsilon(DELTA) <= 3.0\n" + beside + "\n"
    assert [item.rule for item in found(source)] == ["claimed-value"]


@pytest.mark.parametrize("split", ['split="train"', "split=part", ""])
def test_the_size_of_a_training_set_is_known_by_its_name(split: str, found: Callable[[str], list[Finding]]) -> None:
    source = OPACUS.replace(MNIST, f'load_dataset("mnist", {split})') + "assert engine.get_epsilon(DELTA) <= 3.0\n"
    assert [item.rule for item in found(source)] == ["claimed-value"]


@pytest.mark.parametrize(
    "loaded",
    [
        KERAS,
        f"{KERAS}\npredictions = np.concatenate(model(x_test))",
        'train, test = tfds.load("mnist", split=["train", "test"])',
        'train, test = datasets.MNIST("."), datasets.MNIST(".", train=False)',
    ],
)
def test_a_training_set_that_is_loaded_beside_its_test_set_is_known(
    loaded: str, found: Callable[[str], list[Finding]]
) -> None:
    source = OPACUS.replace(f"train = {MNIST}", loaded) + "assert engine.get_epsilon(DELTA) <= 3.0\n"
    assert loaded in source
    assert [item.rule for item in found(source)] == ["claimed-value"]


def test_records_that_only_a_test_set_is_loaded_of_are_not_counted(found: Callable[[str], list[Finding]]) -> None:
    loaded = "train = own()\n_, test = keras.datasets.mnist.load_data()"
    source = OPACUS.replace(f"train = {MNIST}", loaded) + "assert engine.get_epsilon(DELTA) <= 3.0\n"
    assert [item.rule for item in found(source)] == []


ENGINE_TRAINS = """
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
N, BATCH_SIZE, EPOCHS, DELTA = 50_000, 500, 50, 1e-5
loader = DataLoader(data, batch_size=BATCH_SIZE)
engine = PrivacyEngine(secure_mode=True)
model, opt, loader = engine.make_private(module=net, optimizer=sgd, data_loader=loader, noise_multiplier=1.0)
for epoch in range(EPOCHS):
    for x, y in loader:
        loss_of(model(x), y).backward()
        opt.step()
assert engine.get_epsilon(DELTA) <= 2.0
"""
LOOP = ENGINE_TRAINS[ENGINE_TRAINS.index("for epoch") : ENGINE_TRAINS.index("assert")]
EPOCH, BATCHES, STEP = LOOP.splitlines()[0], "    for x, y in loader:\n", "        opt.step()\n"
INNER = LOOP.removeprefix(EPOCH + "\n")
FUNCTION = "def train(model, opt, loader, epochs=EPOCHS):\n    " + LOOP.replace("EPOCHS", "epochs").replace(
    "\n", "\n    "
)
ONE_PASS = "def one_pass(model, opt, loader):\n" + INNER


def refuted(findings: list[Finding]) -> bool:
    return any(item.level == "error" for item in findings)


@pytest.mark.parametrize(
    "loop",
    [
        LOOP,
        LOOP.replace("range(EPOCHS)", "range(1, EPOCHS + 1)"),
        LOOP.replace("range(EPOCHS)", "trange(EPOCHS, desc='epoch')"),
        LOOP.replace("x, y in loader", "number, (x, y) in enumerate(tqdm(loader))"),
        LOOP.replace(
            INNER,
            "    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=opt) as parts:\n"
            "        for x, y in parts:\n            opt.step()\n",
        ),
        FUNCTION + "\ntrain(model, opt, loader)\n",
        ONE_PASS + EPOCH + "\n    loss = one_pass(model, opt, loader)\n",
        "def update(opt, x):\n    opt.step()\n" + LOOP.replace("opt.step()", "update(opt, x)"),
    ],
)
def test_passes_over_the_whole_private_loader_are_counted(loop: str, found: Callable[[str], list[Finding]]) -> None:
    assert refuted(found(ENGINE_TRAINS.replace(LOOP, loop)))


@pytest.mark.parametrize(
    "loop",
    [
        LOOP.replace("in loader", "in islice(loader, 10)"),
        LOOP.replace("x, y in loader", "_, (x, y) in zip(range(10), loader)"),
        LOOP.replace("x, y in loader", "x, y in public if epoch < 45 else loader"),
        LOOP.replace(BATCHES, "    part = loader if epoch >= 45 else public\n    for x, y in part:\n"),
        LOOP.replace(STEP, "        used = opt if epoch >= 45 else plain\n        used.step()\n"),
        LOOP.replace(STEP, "        if epoch % 10 == 0:\n            opt.step()\n"),
        LOOP.replace(STEP, "        opt.signal_skip_step(do_skip=epoch < 45)\n" + STEP),
        LOOP.replace(STEP, "        scaler.step(opt)\n"),
        EPOCH + "\n    if epoch % 10 == 0:\n    " + INNER.replace("\n    ", "\n        "),
        "batches = iter(loader)\n" + EPOCH + "\n    x, y = next(batches)\n    opt.step()\n",
        LOOP.replace("range(EPOCHS)", "range(EPOCHS // 10)"),
        LOOP.replace("range(EPOCHS)", "range(EPOCHS)[:5]"),
        LOOP.replace("range(EPOCHS)", "range(0, EPOCHS, 10)"),
        LOOP.replace("range(EPOCHS)", "range(start, EPOCHS)"),
        LOOP.replace("range(EPOCHS)", "islice(range(EPOCHS), 5)"),
        "if retrain:\n    " + LOOP.replace("\n", "\n    "),
        FUNCTION + "\nif retrain:\n    train(model, opt, loader)\n",
        FUNCTION + "\ntrain(model, opt, loader, 5)\n",
        FUNCTION + "\ntrain(model, opt, loader, **short)\n",
        FUNCTION + "\ntrain(model, opt, *short)\n",
        FUNCTION + "\nrun = train\nrun(model, opt, loader, 5)\n",
        FUNCTION + "\npartial(train, model, opt, loader)(5)\n",
        FUNCTION.replace("for", "if done():\n        return\n    for", 1) + "\ntrain(model, opt, loader)\n",
        ONE_PASS.replace("    for", "    if skips():\n        return\n    for", 1)
        + EPOCH
        + "\n    one_pass(model, opt, loader)\n",
        ONE_PASS + EPOCH + "\n    one_pass(model, opt, islice(loader, 10))\n",
        "def shorter():\n    global EPOCHS\n    EPOCHS = 5\nshorter()\n" + LOOP,
        "args = parser.parse_args(['--epochs', '5'])\n" + LOOP,
        LOOP + "second = PrivacyEngine()\n",
        LOOP + "second = PRVAccountant()\nsecond.step(noise_multiplier=1.0, sample_rate=0.01)\n",
        LOOP + "engine.accountant.history.clear()\n",
        LOOP + "    spent = engine.get_epsilon(DELTA)\n    assert spent <= 2.0\n",
        "assert engine.get_epsilon(DELTA) <= 2.0\n" + LOOP,
    ],
)
def test_loops_that_may_make_fewer_releases_are_not_counted(loop: str, found: Callable[[str], list[Finding]]) -> None:
    """Some were counted as passes over the whole private loader, and true claims of them refuted."""
    assert not refuted(found(ENGINE_TRAINS.replace(LOOP, loop)))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("batch_size=BATCH_SIZE)", "batch_size=BATCH_SIZE, sampler=RandomSampler(data, num_samples=900_000))"),
        ("noise_multiplier=1.0)", "noise_multiplier=1.0, poisson_sampling=False)"),
    ],
)
def test_no_claim_is_judged_of_other_batches(was: str, now: str, found: Callable[[str], list[Finding]]) -> None:
    assert was in ENGINE_TRAINS
    assert not refuted(found(ENGINE_TRAINS.replace(was, now)))


def test_records_and_batches_are_known_by_plain_names(found: Callable[[str], list[Finding]]) -> None:
    assert refuted(found(ENGINE_TRAINS.replace("N, BATCH_SIZE", "RECORDS, BATCH").replace("BATCH_SIZE", "BATCH")))


def test_the_rate_is_no_larger_than_that_of_opacus(found: Callable[[str], list[Finding]]) -> None:
    """Passes in batches of 999 of 1000 records are two batches of rate one half each: epsilon 39.97."""
    source = ENGINE_TRAINS.replace("50_000, 500", "1000, 999")
    assert refuted(found(source))
    assert not refuted(found(source.replace("2.0", "40.0")))


COMPOSED = """
import dp_accounting
from dp_accounting import dp_event
noise_multiplier, steps, delta, sample_rate = 1.0, 1000, 1e-5, 0.01
accountant = dp_accounting.pld.PLDAccountant()
accountant.compose(dp_event.PoissonSampledDpEvent(sample_rate, dp_event.GaussianDpEvent(noise_multiplier)), steps)
assert accountant.get_epsilon(delta) <= 1.0
"""


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("dp_event.GaussianDpEvent", "dp_event.LaplaceDpEvent"),
        ("dp_event.GaussianDpEvent", "dp_event.MixtureOfGaussiansDpEvent"),
        ("dp_event.PoissonSampledDpEvent", "dp_event.SampledWithoutReplacementDpEvent"),
        ("GaussianDpEvent(noise_multiplier))", "SelfComposedDpEvent(dp_event.GaussianDpEvent(noise_multiplier), 5))"),
        ("accountant =", "privatizer = noise_addition.matrix_factorization_privatizer(matrix)\naccountant ="),
        ("accountant =", "optimizer = DPFTRLTreeAggregationOptimizer(l2_norm_clip=1.0)\naccountant ="),
        ("accountant =", "first = dp_accounting.pld.PLDAccountant()\naccountant ="),
    ],
)
def test_no_claim_is_judged_of_another_mechanism(was: str, now: str, found: Callable[[str], list[Finding]]) -> None:
    """Laplace noise and correlated noise were judged as the Gaussian noise of DP-SGD."""
    assert refuted(found(COMPOSED))
    assert was in COMPOSED
    assert not refuted(found(COMPOSED.replace(was, now)))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("range(steps)", "range(steps // 100)"),
        ("    accountant.step", "    if step % 100 == 0:\n        accountant.step"),
        ("    accountant.step", "    for client in due(step):\n        accountant.step"),
        ("    accountant.step(", "    print(accountant.get_epsilon(delta))\naccountant.step("),
    ],
)
def test_steps_that_no_accountant_is_told_of_are_not_counted(
    was: str, now: str, found: Callable[[str], list[Finding]]
) -> None:
    source = ACCOUNTED + "target_epsilon = 1.0\n"
    assert refuted(found(source))
    assert was in source
    assert not refuted(found(source.replace(was, now)))
