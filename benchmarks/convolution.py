"""CPU seconds to train the papers' CNN once: our path against Opacus's hooks, one thread each, interleaved, in one run.

    python benchmarks/convolution.py [--steps 24] [--batch 250] [--repeats 7] [--json FILE]

Random data of Fashion-MNIST's shape and sparsity, 1000 records, Poisson batches (full ones with --batch 1000), l2
clipping, Gaussian noise. Opacus is used as its documentation says (PrivacyEngine.make_private with its Poisson
loader), and once more without the loader, on batches drawn before the clock starts. Useful arithmetic is two
operations for every weight of every position in the forward pass, two in the sum of the gradients, two for every
weight after the first layer in the backward pass; the machine's rate is torch.mm's on square float32 matrices,
measured in every round.
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
from dpaudit.mechanisms.learning.architectures import C1, C2, HIDDEN, K1, K2, CNNShape, cnn
from dpaudit.mechanisms.learning.convolution_workspace import seen_sides
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool

RECORDS, LEARNING_RATE, CLIP = 1000, 0.15, 1.0
SIDE = 1536  # of the square matrices that measure the machine
OURS, OURS_OPACUS, HOOKS, HOOKS_ONLY = "convolution path", "our Opacus path", "Opacus hooks", "Opacus hooks, no loader"


def data(rng: np.random.Generator) -> Pool:
    """Images of which half the pixels are exactly 0, as in Fashion-MNIST."""
    x = rng.random((RECORDS, 784), dtype=np.float32)
    x[rng.random(x.shape) < 0.5] = 0
    return Pool(x, rng.integers(0, 10, RECORDS))


def operations() -> float:
    """Useful floating-point operations for one record in one step."""
    shape = CNNShape.of(784, 10)
    _, seen, _ = seen_sides(shape)  # less a last column and row of the first convolution that reach no output
    first, second = seen**2 * C1 * K1 * K1, shape.conv2**2 * C2 * C1 * K2 * K2
    return 2.0 * (2 * first + 3 * (second + HIDDEN * shape.features + 10 * HIDDEN))


def matrix_rate() -> float:
    """Operations per CPU second of one product of square float32 matrices, the best of five."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    torch.mm(a, b)
    return 2.0 * SIDE**3 / min(seconds(lambda: torch.mm(a, b)) for _ in range(5))


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one call: the processor may be busy with other things meanwhile."""
    start = time.process_time()
    run()
    return time.process_time() - start


def ours(pool: Pool, steps: int, batch: int, own_module: bool) -> None:
    """One model by the convolution path, or as a user's own module by the Opacus path."""
    architecture = Architecture("mine", 784, 10, build=cnn) if own_module else Architecture("cnn", 784, 10)
    mechanism = Gaussian(1.0, clip=CLIP, clip_norm=2.0, dimension=26_010)
    spec = DPSGDSpec(
        architecture=architecture, mechanism=mechanism, steps=steps, sampling_prob=batch / RECORDS,
        expected_batch_size=batch, learning_rate=LEARNING_RATE,
    )  # fmt: skip
    path = opacus_path if own_module else convolution
    path.train(spec, pool, np.ones((1, RECORDS), dtype=bool), [1])


def opacus_hooks(pool: Pool, steps: int, batch: int) -> None:
    """One model as Opacus's documentation says, its loader included."""
    module = cnn(784, 10)
    dataset = TensorDataset(torch.from_numpy(pool.x), torch.from_numpy(pool.y))
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(dataset, batch_size=batch),
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


def opacus_without_loader(pool: Pool, steps: int, batch: int, generator: torch.Generator) -> Callable[[], None]:
    """The same, on batches already drawn."""
    x, y = torch.from_numpy(pool.x), torch.from_numpy(pool.y)
    batches = [(torch.rand(RECORDS, generator=generator) < batch / RECORDS).nonzero().squeeze(1) for _ in range(steps)]

    def run() -> None:
        module = GradSampleModule(cnn(784, 10))
        optimizer = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
            noise_multiplier=1.0,
            max_grad_norm=CLIP,
            expected_batch_size=batch,
        )
        for rows in batches:
            optimizer.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()

    return run


def measure(steps: int, batch: int, repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """CPU seconds per model of every contender, and the machine's rate, in rounds; the first is dropped."""
    pool = data(np.random.default_rng(0))
    contenders: dict[str, Callable[[], None]] = {
        OURS: lambda: ours(pool, steps, batch, own_module=False),
        HOOKS: lambda: opacus_hooks(pool, steps, batch),
        HOOKS_ONLY: opacus_without_loader(pool, steps, batch, torch.Generator().manual_seed(0)),
        OURS_OPACUS: lambda: ours(pool, steps, batch, own_module=True),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    rates = []
    for turn in range(repeats + 1):
        spent = {name: seconds(run) for name, run in contenders.items()}
        rate = matrix_rate()
        if turn:
            rates.append(rate)
            for name, value in spent.items():
                times[name].append(value)
    return times, rates


def main() -> None:
    """Measure, print a table, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=250, help="records expected in a batch, of 1000")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="'-' for stdout, in place of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus remarks on its random source and on torch's hooks at every start
    times, rates = measure(options.steps, options.batch, options.repeats)
    ratios = {name: [b / a for a, b in zip(times[OURS], values, strict=True)] for name, values in times.items()}
    work = operations() * options.steps * options.batch
    parts = [work / own / rate for own, rate in zip(times[OURS], rates, strict=True)]
    result = {
        "records": RECORDS,
        "expected_batch_size": options.batch,
        "steps": options.steps,
        "torch": torch.__version__,
        "threads": 1,
        "cpu_seconds": times,
        "times_slower_than_ours": {name: statistics.median(values) for name, values in ratios.items()},
        "part_of_torch_mm": statistics.median(parts),
        "torch_mm_gflops": statistics.median(rates) / 1e9,
    }
    if options.json == "-":
        json.dump(result, sys.stdout, indent=2)
        return
    print(f"{options.steps} steps of {options.batch} expected records, medians of {options.repeats} interleaved rounds")
    for name, values in times.items():
        per_record = statistics.median(values) / options.steps / options.batch * 1e6
        ratio = statistics.median(ratios[name])
        print(f"{name:26s} {statistics.median(values):7.3f} s  {per_record:7.1f} us per record  {ratio:6.2f} x ours")
    print(f"ours: {result['part_of_torch_mm']:.0%} of torch.mm's {result['torch_mm_gflops']:.0f} GFLOP/s")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
