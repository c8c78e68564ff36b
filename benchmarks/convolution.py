"""Seconds to train the papers' CNN once: our path against Opacus's hooks, one thread each, interleaved, in one run.

    python benchmarks/convolution.py [--steps 24] [--repeats 7] [--json FILE]

Random data of Fashion-MNIST's shape and sparsity, 1000 records, Poisson batches of 250 expected, l2 clipping,
Gaussian noise. Opacus is used as its documentation says (PrivacyEngine.make_private with its Poisson loader), and once
more without the loader, on batches drawn before the clock starts.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning import convolution, opacus_path
from dpaudit.mechanisms.learning.architectures import cnn
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool

RECORDS, BATCH, LEARNING_RATE, CLIP = 1000, 250, 0.15, 1.0
OURS, OURS_OPACUS, HOOKS, HOOKS_ONLY = "convolution path", "our Opacus path", "Opacus hooks", "Opacus hooks, no loader"


def data(rng: np.random.Generator) -> Pool:
    """Images of which half the pixels are exactly 0, as in Fashion-MNIST."""
    x = rng.random((RECORDS, 784), dtype=np.float32)
    x[rng.random(x.shape) < 0.5] = 0
    return Pool(x, rng.integers(0, 10, RECORDS))


def ours(pool: Pool, steps: int, own_module: bool) -> None:
    """One model by the convolution path, or as a user's own module by the Opacus path."""
    architecture = Architecture("mine", 784, 10, build=cnn) if own_module else Architecture("cnn", 784, 10)
    mechanism = Gaussian(1.0, clip=CLIP, clip_norm=2.0, dimension=26_010)
    spec = DPSGDSpec(
        architecture=architecture, mechanism=mechanism, steps=steps, sampling_prob=BATCH / RECORDS,
        expected_batch_size=BATCH, learning_rate=LEARNING_RATE,
    )  # fmt: skip
    path = opacus_path if own_module else convolution
    path.train(spec, pool, np.ones((1, RECORDS), dtype=bool), [1])


def opacus_hooks(pool: Pool, steps: int) -> None:
    """One model as Opacus's documentation says, its loader included."""
    module = cnn(784, 10)
    dataset = TensorDataset(torch.from_numpy(pool.x), torch.from_numpy(pool.y))
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(dataset, batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
    )
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            done += 1
            if done == steps:
                return


def opacus_without_loader(pool: Pool, steps: int, generator: torch.Generator) -> Callable[[], None]:
    """The same, on batches already drawn."""
    x, y = torch.from_numpy(pool.x), torch.from_numpy(pool.y)
    batches = [(torch.rand(RECORDS, generator=generator) < BATCH / RECORDS).nonzero().squeeze(1) for _ in range(steps)]

    def run() -> None:
        module = GradSampleModule(cnn(784, 10))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
            noise_multiplier=1.0,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )
        for rows in batches:
            optimizer.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()

    return run


def measure(steps: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per model of every contender, in rounds; the first round warms up and is dropped."""
    pool = data(np.random.default_rng(0))
    contenders: dict[str, Callable[[], None]] = {
        OURS: lambda: ours(pool, steps, own_module=False),
        HOOKS: lambda: opacus_hooks(pool, steps),
        HOOKS_ONLY: opacus_without_loader(pool, steps, torch.Generator().manual_seed(0)),
        OURS_OPACUS: lambda: ours(pool, steps, own_module=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure, print a table, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="'-' for stdout, in place of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus remarks on its random source and on torch's hooks at every start
    seconds = measure(options.steps, options.repeats)
    ratios = {name: [b / a for a, b in zip(seconds[OURS], times, strict=True)] for name, times in seconds.items()}
    result = {
        "records": RECORDS,
        "expected_batch_size": BATCH,
        "steps": options.steps,
        "torch": torch.__version__,
        "threads": 1,
        "seconds": seconds,
        "times_slower_than_ours": {name: statistics.median(values) for name, values in ratios.items()},
    }
    if options.json == "-":
        json.dump(result, sys.stdout, indent=2)
        return
    print(f"{options.steps} Poisson steps of {BATCH} expected records, medians of {options.repeats} interleaved rounds")
    for name, times in seconds.items():
        per_record = statistics.median(times) / options.steps / BATCH * 1e6
        ratio = statistics.median(ratios[name])
        print(f"{name:26s} {statistics.median(times):7.3f} s  {per_record:7.1f} us per record  {ratio:6.2f} x ours")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
