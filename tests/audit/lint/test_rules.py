"""Every rule on a script that breaks it, and on its nearest neighbour that does not."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from dpaudit.audit.lint.findings import Finding
from dpaudit.audit.lint.linting import lint_paths
from dpaudit.audit.lint.rules import RULES

# of 1000 Poisson batches of rate .01 with noise multiplier 1 at delta 1e-5: dp_accounting, PLDAccountant
TRUE_EPSILON = 1.8282
OPACUS = """
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
engine = PrivacyEngine(secure_mode=True)
"""
TENSORFLOW = """
import dp_accounting
import tensorflow as tf
event = dp_accounting.PoissonSampledDpEvent(256 / 60000, dp_accounting.GaussianDpEvent(1.1))
"""
LOOP = "import torch\ndef train(data, clip, noise_multiplier):\n    for x in data:\n"
JAX_LOOP = (
    "import jax\nimport dp_accounting\nevent = dp_accounting.GaussianDpEvent(NM)\n"
    "def train(data, key):\n    for x in data:\n"
)
KEYED = (
    "import jax\nimport dp_accounting\nsigma, other = 4.0, 4.0\nwidth = sigma\n"
    "def event(z):\n    return dp_accounting.GaussianDpEvent(z)\n"
    "def noisy(g):\n    return g + {spread} * jax.random.normal(jax.random.PRNGKey(1), g.shape)\nevent({given})\n"
)
POISSON = "from opacus.accountants import RDPAccountant\npick = torch.rand(n) < rate\n"
SEEDED = "import torch\ntorch.manual_seed(0)\n"
OPTIMIZER = "import torch\nfrom opacus.optimizers import DPOptimizer\n"
TRAINED = (
    "model, optimizer, loader = engine.make_private(module=m, optimizer=o, data_loader=loader, max_grad_norm=1.0, "
)

OLD_LOADER = OPACUS + "old = DataLoader(d, batch_size=64)\n"
BESIDE_OLD_LOADER = OLD_LOADER + TRAINED.replace("=loader", "=old") + "noise_multiplier=1.0)\n"

BATCHED = TENSORFLOW + "batch_size = 256\n"
SHUFFLED = OPACUS + TRAINED + "noise_multiplier=1.0, poisson_sampling=False)\n"
OWN_ENGINE = OPACUS + "class Engine(PrivacyEngine):\n    def make_private(self, poisson_sampling):\n"
FOLDS = (
    OPACUS + "{before}\nfor fold in folds:\n    model = engine.make_private(module=new())\n    {start}\n"
    "    for epoch in range(9):\n        loss = one_pass(model)\n"
    "        if {test}:\n            best = best_loss = loss\n"
)

# rule: scripts that break it, each with a neighbour that does not
DPSGD = "import optax\n"
EXAMPLES: dict[str, list[tuple[str, str]]] = {
    "shuffled-as-poisson": [
        *(
            (SHUFFLED + f"engine.accountant.{amplified}", SHUFFLED + f"engine.accountant.{told}")
            for amplified, told in (
                ("history.append((1.1, rate, 1))", "history.append((1.1, 1, 1))"),
                ("step(noise_multiplier=1.1, sample_rate=0.1)", "step(noise_multiplier=1.1, sample_rate=1.0)"),
            )
        ),
        *(
            (OWN_ENGINE + "        " + broken, OWN_ENGINE + "        " + kept)
            for broken, kept in (
                ("return super().make_private(poisson_sampling=False)", "return self.made(poisson_sampling=False)"),
                ("pass\nEngine().make_private_with_epsilon(poisson_sampling=False)",
                 "pass\nEngine().make_private(poisson_sampling=False)"),
                ("pass\nengine.make_private(poisson_sampling=False)",
                 "pass\n    def both(self):\n        return self.make_private(poisson_sampling=False)"),
                ("pass\nengine.make_private(poisson_sampling=False)",
                 "pass\ndef make_private(poisson_sampling):\n    pass\nmake_private(poisson_sampling=False)"),
            )
        ),
        (
            TENSORFLOW + "data = data.shuffle(60000).batch(256)",
            TENSORFLOW.replace("256 / 60000", "1.0") + "data = data.shuffle(60000).batch(256)",
        ),
        (
            BESIDE_OLD_LOADER +
            "with BatchMemoryManager(data_loader=old, max_physical_batch_size=8, optimizer=optimizer) as parts:\n"
            "    for x, y in parts:\n        optimizer.step()",
            BESIDE_OLD_LOADER +
            "with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as parts:\n"
            "    for x, y in parts:\n        optimizer.step()",
        ),
        (
            OPACUS + "loader = DataLoader(d, batch_size=64)\n" + TRAINED + "poisson_sampling=False)",
            OPACUS + "loader = DataLoader(d, batch_size=64, shuffle=True)\n" + TRAINED + "noise_multiplier=1.0)",
        ),
        (
            """
            from private_transformers import PrivacyEngine
            loader = DataLoader(train, batch_size=64, shuffle=True)
            PrivacyEngine(model, batch_size=64, sample_size=67349, epochs=3, noise_multiplier=0.6).attach(optimizer)
            """,
            """
            from private_transformers import PrivacyEngine
            test_loader = DataLoader(test, batch_size=64, shuffle=True)
            loader = DataLoader(train, batch_sampler=UniformWithReplacementSampler(67349, 0.001))
            PrivacyEngine(model, batch_size=64, sample_size=67349, epochs=3, noise_multiplier=0.6).attach(optimizer)
            """,
        ),
        (
            TENSORFLOW + "data = tf.data.Dataset.from_tensor_slices(x).shuffle(60000).batch(256)",
            TENSORFLOW + "np.random.shuffle(x)\nevaluation = test_data.shuffle(60000).batch(256)",
        ),
        (
            TENSORFLOW + "model.fit(x, y, epochs=3, batch_size=256)",
            TENSORFLOW + "model.fit(x, y, epochs=3, batch_size=256, shuffle=False)",
        ),
        (
            "import dp_transformers\ntrainer = dp_transformers.dp_utils.OpacusDPTrainer(model=m, train_dataset=d)",
            "import dp_transformers\ntrainer = dp_transformers.dp_utils.OpacusDPTrainer(model=m, eval_dataset=d)",
        ),
        (
            OPACUS + TRAINED + "noise_multiplier=1.0)\nTrainer(train_dataset=d, optimizers=(optimizer, None)).train()",
            OPACUS + "Trainer(train_dataset=public, optimizers=(optimizer, None)).train()\n" + TRAINED
            + "noise_multiplier=1.0)",
        ),
        (
            OPACUS + TRAINED.replace("loader =", "private =") + "noise_multiplier=1.0)\n"
            "for x, y in tqdm(loader, total=len(loader)):\n    optimizer.step()",
            OPACUS + TRAINED + "noise_multiplier=1.0)\n"
            "for x, y in tqdm(loader, total=len(loader)):\n    optimizer.step()",
        ),
    ],
    "buffered-shuffle": [
        (
            TENSORFLOW + "BUFFER = 1000\ndata = data.shuffle(BUFFER).batch(256)",
            TENSORFLOW + "BUFFER = 6 * 10**4\ndata = data.shuffle(BUFFER).batch(256)",
        ),
        (
            TENSORFLOW + "data = data.repeat().map(f).shuffle(60000)",
            TENSORFLOW + "data = data.map(f).shuffle(60000).repeat()",
        ),
    ],
    "fixed-shuffle-seed": [
        (TENSORFLOW + "data = data.shuffle(60000, seed=0)", TENSORFLOW + "data = data.shuffle(60000, seed=drawn())"),
        (
            TENSORFLOW + "data = data.shuffle(60000, reshuffle_each_iteration=False)",
            TENSORFLOW + "data = data.shuffle(60000, reshuffle_each_iteration=True)",
        ),
        (
            OPACUS + "g = torch.Generator()\ng.manual_seed(7)\nloader = DataLoader(d, batch_size=64, generator=g)",
            OPACUS + "g = torch.Generator()\ng.seed()\nloader = DataLoader(d, batch_size=64, generator=g)",
        ),
    ],
    "fixed-noise-seed": [
        *(
            (KEYED.format(spread=spread, given="sigma"), KEYED.format(spread=spread, given="other"))
            for spread in ("sigma", "width")
        ),
        *(
            (
                JAX_LOOP + "        g = grad(x) + NM * jax.random.normal(key, shape)",
                JAX_LOOP + kept,
            )
            for kept in (
                "        key, part = jax.random.split(key)\n        g = grad(x) + NM * jax.random.normal(part, shape)",
                "        g = grad(x) + NM * jax.random.normal(jax.random.fold_in(key, step()), shape)",
                "        if is_last(x):\n            g = grad(x) + NM * jax.random.normal(key, shape)",
                "        g = jax.tree.map(lambda p, key: p + NM * jax.random.normal(key, p.shape), grad(x), keys)",
                "        g = grad(x) + NM * rng.normal(key, shape)",
                "        g = grad(x) + other * jax.random.normal(key, shape)",
            )
        ),
        *(
            (f"{DPSGD}tx = optax.contrib.{call}=0)", f"{DPSGD}tx = optax.contrib.{call}=drawn())")
            for call in (
                "dpsgd(0.1, 1.0, noise_multiplier=1.1, seed",
                "differentially_private_aggregate(1.0, noise_multiplier=2.0, key",
            )
        ),
        (
            LOOP + "        torch.manual_seed(0)\n        g = grad(x) + torch.normal(0, noise_multiplier * clip, size)",
            SEEDED + LOOP + "        g = grad(x) + torch.normal(0, noise_multiplier * clip, size)",
        ),
        (
            LOOP + "        rng = torch.Generator().manual_seed(0)\n"
            "        g = grad(x) + noise_multiplier * clip * torch.randn(size, generator=rng)",
            LOOP + "        rng = torch.Generator().manual_seed(secret())\n"
            "        g = grad(x) + noise_multiplier * clip * torch.randn(size, generator=rng)",
        ),
        (
            OPTIMIZER + "rng = torch.Generator().manual_seed(42)\noptimizer = DPOptimizer(sgd, generator=rng)",
            OPTIMIZER + "rng = torch.Generator()\noptimizer = DPOptimizer(sgd, generator=rng)",
        ),
        (
            OPACUS + TRAINED + "noise_multiplier=1.0, noise_generator=torch.Generator().manual_seed(0))",
            OPACUS + TRAINED + "noise_multiplier=1.0, noise_generator=torch.Generator().manual_seed(secret()))",
        ),
        (
            "import jax_privacy\nkey = random.key(42)\np = jax_privacy.gaussian_privatizer(1, prng_key=key)",
            "import jax_privacy\nkey = random.key(drawn)\np = jax_privacy.gaussian_privatizer(1, prng_key=key)",
        ),
        (
            "def noisy(g, noise_multiplier):\n    return g + noise_multiplier * jax.random.normal(PRNGKey(0), g.shape)",
            "def noisy(g, noise_multiplier):\n    return g + noise_multiplier * jax.random.normal(key(), g.shape)",
        ),
        (
            "key = PRNGKey(0)\ndef noisy(g, key, noise_multiplier):\n"
            "    return g + noise_multiplier * jax.random.normal(key, g.shape)\nfor g in gs:\n    noisy(g, key, 1.1)",
            "key = PRNGKey(0)\ndef noisy(g, key, noise_multiplier):\n    key = jax.random.fold_in(key, secret())\n"
            "    return g + noise_multiplier * jax.random.normal(key, g.shape)\nfor g in gs:\n    noisy(g, key, 1.1)",
        ),
    ],
    "noise-generator": [
        ("from opacus import PrivacyEngine\nengine = PrivacyEngine()", OPACUS),
        (
            "def f(g, noise_multiplier, clip):\n    g += noise_multiplier * clip * torch.randn_like(g)",
            "def f(g, noise_multiplier, clip):\n    g += torch.randn_like(g)",
        ),
    ],
    "delta-from-loader": [
        (
            OPACUS + "batches = DataLoader(d, batch_size=64)\nDELTA = 1 / len(batches)",
            OPACUS + "batches = DataLoader(d, batch_size=64)\nDELTA = 0.1 / len(batches.dataset)",
        ),
        (OPACUS + "engine.get_epsilon(delta=1 / len(train_loader))", OPACUS + "rate = 1 / len(train_loader)"),
    ],
    "delta-too-large": [
        (
            OPACUS + "from torchvision import datasets\ntrain = datasets.CIFAR10('.', train=True)\ndelta = 1e-4",
            OPACUS + "from torchvision import datasets\ntrain = datasets.CIFAR10('.', train=True)\ndelta = 1e-5",
        ),
        *(
            (
                OPACUS + "from torchvision import datasets\ntrain = datasets.CIFAR10('.', train=True)\ndelta = 3e-5",
                OPACUS + kept,
            )
            for kept in (
                "from torchvision import datasets\ntrain = datasets.MNIST('.') if small else datasets.CIFAR10('.')\n"
                "num_samples = 100_000\ndelta = 1e-5",
                "sample_size = 100_000\ndraws = np.random.normal(size=sample_size)\ndelta = 1e-5",
            )
        ),
        (OPACUS + "delta = 1 / x.shape[0]", OPACUS + "delta = 1 / x.shape[1]"),
        (OPACUS + "delta = 1 / sample_size", OPACUS + "delta = 1 / (2 * sample_size)"),
        (OPACUS + "target_delta = 1 / len(dataset)", OPACUS + "target_delta = 1 / (2 * len(dataset))"),
    ],
    "passes-over-another-n": [
        (
            """
            from opacus.accountants.analysis.rdp import compute_rdp
            batch, epochs = 8192, 120
            steps = epochs * 50000 // batch
            rdp = compute_rdp(q=batch / 550000, noise_multiplier=1.1, steps=steps, orders=[2, 4])
            """,
            """
            from opacus.accountants.analysis.rdp import compute_rdp
            batch, epochs = 8192, 120
            steps = epochs * 550000 // batch
            rdp = compute_rdp(q=batch / 550000, noise_multiplier=1.1, steps=steps, orders=[2, 4])
            """,
        ),
    ],
    "realised-divisor": [
        *(
            (POISSON + "noisy = (g.sum(0) + noise) / " + count, POISSON + kept)
            for count, kept in (
                ("pick.sum()", "noisy = (g.sum(0) + noise) / (n * rate)"),
                ("pick.sum().item()", "noisy = (g.sum(0) + noise) / (pick.sum() + count_noise)"),
                ("float(np.sum(pick))", "loss = losses[pick].sum() / pick.sum()"),
                ("count\ncount = pick.sum()", "mask = fixed(n) < 3\nnoisy = (g.sum(0) + noise) / mask.sum()"),
            )
        ),
        (
            "from opacus import GradSampleModule\nfor batch in batches:\n    p.grad /= len(batch)",
            "from opacus import GradSampleModule\nfor batch in batches:\n    p.grad /= expected_batch_size",
        ),
        (
            OPACUS + "N = 60000\nloader = DataLoader(d, batch_size=240)\n" + TRAINED + "noise_multiplier=1.0)",
            OPACUS + "N = 60000\nloader = DataLoader(d, batch_size=256)\n" + TRAINED + "noise_multiplier=1.0)",
        ),
    ],
    "loader-sample-rate": [
        (
            OPACUS
            + "s = WeightedRandomSampler(w, num_samples=128)\nloader = DataLoader(d, batch_size=16, sampler=s)\n"
            + TRAINED
            + "noise_multiplier=1.0)",
            OPACUS + "s = RandomSampler(d)\nloader = DataLoader(d, batch_size=16, sampler=s)\n" + TRAINED
            + "noise_multiplier=1.0)",
        ),
        (
            OPACUS + "with BatchMemoryManager(data_loader=big) as parts:\n    sample_rate = 1 / len(parts)",
            OPACUS + "with BatchMemoryManager(data_loader=big) as parts:\n    sample_rate = 1 / len(big)",
        ),
    ],
    "sigma-as-multiplier": [
        (
            "import dp_accounting\nsigma = noise * l2_norm_clip\nevent = dp_accounting.GaussianDpEvent(sigma)",
            "import dp_accounting\nsigma = stddev / l2_norm_clip\nevent = dp_accounting.GaussianDpEvent(sigma)",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.normal(0, noise_multiplier, g.shape)",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g += clip * torch.normal(0, noise_multiplier, g.shape)",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.randn_like(g) * noise_multiplier",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    return g + torch.randn_like(g) * noise_multiplier * clip",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.randn_like(g) * noise_multiplier",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    noise = noise_multiplier * torch.randn_like(g)\n    return g + clip * noise",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.randn_like(g) * noise_multiplier",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    noise = noise_multiplier * torch.randn_like(g)\n    noise *= clip\n    return g + noise",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.randn_like(g) * noise_multiplier",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    noisy = g / clip + noise_multiplier * torch.randn_like(g)\n    return noisy * clip",
        ),
        (
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    return g + torch.randn_like(g) * noise_multiplier",
            "def f(g, noise_multiplier=1.1, clip=0.1):\n    g *= min(1, clip / norm)\n"
            "    sensitivity = clip\n    return g + torch.randn_like(g) * noise_multiplier * sensitivity",
        ),
    ],
    "claimed-value": [
        (
            """
            import argparse, dp_accounting
            parser = argparse.ArgumentParser()
            parser.add_argument("-e", "--epsilon", type=float, default=1.0)
            parser.add_argument("--delta", default=1e-5)
            parser.add_argument("--noise-multiplier", default=1.0)
            parser.add_argument("--steps", default=1000)
            args = parser.parse_args()
            train(args.noise_multiplier, args.steps, sampling_prob=0.01, claim=(args.epsilon, args.delta))
            """,
            """
            import argparse, dp_accounting
            parser = argparse.ArgumentParser()
            parser.add_argument("-e", "--epsilon", type=float, default=2.2)
            parser.add_argument("--delta", default=1e-5)
            parser.add_argument("--noise-multiplier", default=1.0)
            parser.add_argument("--steps", default=1000)
            args = parser.parse_args()
            train(args.noise_multiplier, args.steps, sampling_prob=0.01, claim=(args.epsilon, args.delta))
            """,
        ),
    ],
    "clt-accountant": [
        (
            "from opacus import PrivacyEngine\nengine = PrivacyEngine(accountant='gdp')",
            "from opacus import PrivacyEngine\nengine = PrivacyEngine(accountant='prv')",
        ),
        (
            "from tensorflow_privacy import compute_eps_poisson as eps\n"
            "import tensorflow_privacy as p\np.compute_eps_poisson(20, 0.55, 29305, 256, 1e-5)",
            "from tensorflow_privacy import compute_eps_poisson as eps",
        ),
    ],
    "old-rdp-conversion": [
        (
            "import dp_accounting\neps = rdp - math.log(delta) / (order - 1)",
            "import dp_accounting\n"
            "eps = rdp - (np.log(delta) + np.log(order)) / (order - 1) + np.log((order - 1) / order)",
        ),
    ],
    "adaptive-clipping": [
        (
            OPACUS + "max_grad_norm = torch.quantile(grad_norms, 0.5)",
            OPACUS + "median = torch.quantile(grad_norms, 0.5)\nmax_grad_norm = 1.0",
        ),
        (
            "import tensorflow_privacy as p\nquery = p.QuantileAdaptiveClipSumQuery(1.0, 1.1, 0.5, 0.2, 5.0, 100)",
            "import tensorflow_privacy as p\nz = p.adaptive_clip_noise_params(1.1, 100)\n"
            "query = p.QuantileAdaptiveClipSumQuery(1.0, z[0], 0.5, 0.2, z[1], 100)",
        ),
    ],
    "search-not-accounted": [
        *(
            (FOLDS.format(before=before, start=start, test=test), FOLDS.format(before=before, start=start, test=kept))
            for before, start, test, kept in (
                ("best = inf", "best_loss = inf", "best_loss < best", "loss < best_loss"),
                ("best = inf", "best_loss = inf\n    is_best = loss < best", "is_best", "loss < best_loss"),
                ("best = inf", "best_loss = inf\n    is_best = loss < best_loss", "loss < best", "is_best"),
            )
        ),
        (
            OPACUS + "for lr in (0.1, 1.0):\n    engine.make_private(module=m)\n    if acc > best:\n        best = acc",
            OPACUS + "for lr in (0.1, 1.0):\n    engine.make_private(module=m)\n    accuracies.append(acc)",
        ),
        (
            "import optuna\n" + OPACUS + "study = optuna.create_study()\nengine.make_private(module=m)",
            "import optuna\n" + OPACUS + "study = create_study()\nengine.make_private(module=m)",
        ),
    ],
    "batch-norm": [
        (OPACUS + "net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))",
         OPACUS + "net = ModuleValidator.fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))"),
    ],
    "noiseless-step": [
        (
            OPACUS + TRAINED + "noise_multiplier=1.0)\nfor x, y in loader:\n    optimizer.original_optimizer.step()",
            OPACUS + TRAINED + "noise_multiplier=1.0)\nfor x, y in loader:\n    optimizer.step()",
        ),
        (
            OPACUS + "o = torch.optim.SGD(m.parameters(), 0.1)\n" + TRAINED + "noise_multiplier=1.0)\n"
            "for x, y in loader:\n    o.step()",
            OPACUS + "o = torch.optim.SGD(m.parameters(), 0.1)\no.step()\n" + TRAINED + "noise_multiplier=1.0)\n"
            "for x, y in loader:\n    optimizer.step()",
        ),
        (
            OPACUS + "o = torch.optim.SGD(m.parameters(), 0.1)\n" + TRAINED + "noise_multiplier=1.0)\n"
            "head = torch.optim.SGD(h.parameters(), 0.1)\nfor x, y in loader:\n    o.step()",
            OPACUS + "o = torch.optim.SGD(m.parameters(), 0.1)\n" + TRAINED + "noise_multiplier=1.0)\n"
            "head = torch.optim.SGD(h.parameters(), 0.1)\nfor x, y in loader:\n    head.step()",
        ),
        (
            f"{OPACUS}o = torch.optim.SGD(m.parameters(), 0.1)\nif private:\n    {TRAINED}noise_multiplier=1.0)\n"
            "    o.step()",
            f"{OPACUS}o = torch.optim.SGD(m.parameters(), 0.1)\nif private:\n    {TRAINED}noise_multiplier=1.0)\n"
            "else:\n    o.step()",
        ),
        (
            OPACUS + "def step(optimizer):\n    optimizer.original_optimizer.step()",
            OPACUS + "def step(optimizer):\n    if optimizer.pre_step():\n        optimizer.original_optimizer.step()",
        ),
    ],
    "batch-clipping": [
        (
            """
            def train(model, loader, noise_multiplier, clip):
                for x, y in loader:
                    loss(model(x), y).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                    for p in model.parameters():
                        p.grad += noise_multiplier * clip * torch.randn_like(p)
                    optimizer.step()
            """,
            """
            def train(model, loader, noise_multiplier, clip):
                for batch in loader:
                    for x, y in batch:
                        loss(model(x), y).backward()
                        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                        for total, p in zip(totals, model.parameters()):
                            total += p.grad
                    for total, p in zip(totals, model.parameters()):
                        p.grad = total + noise_multiplier * clip * torch.randn_like(p)
                    optimizer.step()
            """,
        ),
        (
            """
            def train(model, noise_multiplier, clip):
                loader = DataLoader(data, batch_size=64)
                for x, y in loader:
                    loss(model(x), y).backward()
                    clip_grad_norm_(model.parameters(), clip)
                    for name, p in model.named_parameters():
                        noise = torch.normal(0, noise_multiplier * clip, p.shape)
                        p.grad.add_(noise / 64)
            """,
            """
            def train(model, noise_multiplier, clip):
                loader = DataLoader(data)
                for x, y in loader:
                    loss(model(x), y).backward()
                    clip_grad_norm_(model.parameters(), clip)
                    for name, p in model.named_parameters():
                        noise = torch.normal(0, noise_multiplier * clip, p.shape)
                        p.grad.add_(noise)
            """,
        ),
        (
            """
            def train(model, loader, noise_multiplier, clip):
                while True:
                    loss(model(x), y).backward()
                    clip_grad_norm_(model.parameters(), clip)
                    p.grad += noise_multiplier * clip * torch.randn_like(p)
            """,
            """
            def train(model, loader, noise_multiplier, clip):
                while True:
                    x = x + noise_multiplier * clip * torch.randn_like(x)
                    loss(model(x), y).backward()
                    clip_grad_norm_(model.parameters(), clip)
            """,
        ),
    ],
    "microbatches": [
        *(
            (f"{BATCHED}{optimizer}{before}, 16)", f"{BATCHED}{optimizer}{before}, 256, 16)")
            for optimizer, before in (
                ("DPGradientDescentOptimizer", "(query"),
                ("DPAdamGaussianOptimizer", "(1.0, 1.1"),
                ("DPKerasSGDOptimizer", "(1.0, 1.1"),
                ("VectorizedDPKerasAdamOptimizer", "(1.0, 1.1"),
                ("VectorizedDPSGDOptimizer", "(1.0, 1.1"),
            )
        ),
        (BATCHED + "DPAdamOptimizer(query, 16)", BATCHED + "DPAdamOptimizer(*queries, 16)"),
        (
            TENSORFLOW + "B = 256\ndata = data.batch(B)\nDPKerasSGDOptimizer(1.0, 1.1, num_microbatches=16)",
            TENSORFLOW + "B = 256\ntest_data = data.batch(B)\nDPKerasSGDOptimizer(1.0, 1.1, num_microbatches=16)",
        ),
        (
            TENSORFLOW + "compute_dp_sgd_privacy(N, 256, 1.1, 15, 1e-6)\nDPKerasSGDOptimizer(num_microbatches=16)",
            TENSORFLOW + "compute_dp_sgd_privacy(N, 256, 1.1, 15, 1e-6)\nDPKerasSGDOptimizer(num_microbatches=256)",
        ),
        (BATCHED + "DPAdamOptimizer(query, 8)", BATCHED + "DPAdamOptimizer(query, 0)"),  # no number of them
        (
            """
            from absl import flags
            from tensorflow_privacy import DPKerasSGDOptimizer
            flags.DEFINE_integer("batch_size", 250, "")
            flags.DEFINE_integer("microbatches", 50, "")
            optimizer = DPKerasSGDOptimizer(1.0, 1.1, num_microbatches=FLAGS.microbatches)
            data = data.batch(FLAGS.batch_size)
            """,
            """
            from absl import flags
            from tensorflow_privacy import DPKerasSGDOptimizer
            flags.DEFINE_integer("batch_size", 250, "")
            flags.DEFINE_integer("microbatches", 250, "")
            optimizer = DPKerasSGDOptimizer(1.0, 1.1, num_microbatches=FLAGS.microbatches)
            data = data.batch(FLAGS.batch_size)
            """,
        ),
    ],
}  # fmt: skip
CASES = [(rule, *pair) for rule, pairs in EXAMPLES.items() for pair in pairs]


@pytest.fixture
def found(tmp_path: Path) -> Callable[[str], list[Finding]]:
    def findings(source: str) -> list[Finding]:
        (tmp_path / "train.py").write_text(dedent(source))
        return list(lint_paths([tmp_path / "train.py"]).findings)

    return findings


def test_every_rule_has_its_examples_reason_source_and_fix() -> None:
    assert set(EXAMPLES) == set(RULES)
    for name, rule in RULES.items():
        assert rule.name == name
        assert "http" in rule.source or name == "claimed-value"
        assert all(text and text.rstrip().endswith(".") for text in (rule.reason, rule.fix))


@pytest.mark.parametrize(("rule", "broken", "kept"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_fires_on_what_breaks_it_and_on_nothing_near(
    rule: str, broken: str, kept: str, found: Callable[[str], list[Finding]]
) -> None:
    assert rule in {finding.rule for finding in found(broken)}
    assert rule not in {finding.rule for finding in found(kept)}


ENGINE = "from opacus import PrivacyEngine\nprivate = PrivacyEngine({}).make_private(module=m{})\n"


@pytest.mark.parametrize(
    ("seeded", "kept"),
    [
        ("torch.manual_seed(7)", "torch.manual_seed(secrets.randbits(60))"),
        ("SEED, N = 7, 8\ntorch.random.manual_seed(SEED)", "SEED = drawn()\ntorch.random.manual_seed(SEED)"),
        ("torch.manual_seed(7)", "parser.add_argument('--seed', default=7)\ntorch.manual_seed(args.seed)"),
        ("torch.manual_seed(7)", "parser.add_argument('--run', default=7)\ntorch.manual_seed(args.run - 1)"),
        ("torch.manual_seed(7)", "DEFINE_integer('seed', 7)\nseed = FLAGS.seed\ntorch.manual_seed(seed)"),
        ("def fix(s):\n    torch.manual_seed(s)\nfix(7)", "def fix(s):\n    torch.manual_seed(s)\nfix(drawn())"),
        ("def fix():\n    torch.manual_seed(7)\nfix()", "def fix():\n    torch.manual_seed(7)"),
        ("def main():\n    torch.manual_seed(7)\nmain()", "def main(s=7):\n    torch.manual_seed(s)\nmain()"),
        ("torch.manual_seed(7)", "def evaluate():\n    torch.manual_seed(7)\nevaluate()"),
        ("torch.manual_seed(7)", "g = torch.Generator()\ng.manual_seed(7)"),
    ],
)
def test_a_constant_seed_before_opacus_is_noted(seeded: str, kept: str, found: Callable[[str], list[Finding]]) -> None:
    def noted(first: str, secure: str = "", generator: str = "") -> list[tuple[str, str]]:
        hits = found(f"import torch\n{first}\n{ENGINE.format(secure, generator)}torch.manual_seed(8)\n")
        return [(item.rule, item.level) for item in hits if "in every run" in item.message]

    assert noted(seeded) == noted(f"{seeded}\ntorch.manual_seed(9)") == [("noise-generator", "note")]
    assert noted(kept) == noted(seeded, "secure_mode=True") == noted(seeded, "", ", noise_generator=g") == []


def test_a_comparison_of_trainings_is_found_once_over_all_of_them(found: Callable[[str], list[Finding]]) -> None:
    grid = dedent(
        """
        for lr in rates:
            for fold in folds:
                engine.make_private(module=new())
                if accuracy() > best:
                    best = accuracy()
        """
    )
    whole = [item.message for item in found(OPACUS + grid)]
    anew = [item.message for item in found(OPACUS + grid.replace("rates:\n", "rates:\n    best = 0\n"))]
    branch = grid.replace("if acc", "if first:\n            best = 0\n        elif acc")
    assert [message.split(" is kept")[0] for message in (*whole, *anew)] == [
        "the best of the trainings over rates",
        "the best of the trainings over folds",
    ]
    assert [item.message for item in found(OPACUS + branch)] == whole


def test_what_trains_nothing_privately_is_left_alone(found: Callable[[str], list[Finding]]) -> None:
    assert found("loader = DataLoader(d, shuffle=True)\ndelta = 1 / len(loader)\nnet = nn.BatchNorm2d(8)") == []


def test_a_claim_is_refuted_by_its_own_numbers_alone(found: Callable[[str], list[Finding]]) -> None:
    """Epsilon 1 of this training is false; where the noise is solved for, nothing is claimed of it."""
    broken = dedent(EXAMPLES["claimed-value"][0][0])
    (finding,) = found(broken)
    assert finding.level == "error"
    assert TRUE_EPSILON * 0.99 < float(finding.message.split()[4]) <= TRUE_EPSILON
    assert found(broken + "get_noise_multiplier(target_epsilon=args.epsilon)\n") == []
