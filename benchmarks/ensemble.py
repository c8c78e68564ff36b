"""Seconds to train one model: the ensemble engine against Opacus, one thread each, interleaved, in one run.

    python benchmarks/ensemble.py [--models 48] [--repeats 5] [--device cpu] [--json FILE]

1000 records, 24 epochs, l2 clipping, Gaussian noise; a 784-32-10 network and 784-10 softmax regression, full batches
and Poisson batches of 250. Opacus is used as its documentation says (PrivacyEngine.make_private with its Poisson
loader), with its default hooks and with grad_sample_mode="ghost", and once more on batches drawn before the clock
starts, without the loader. Useful arithmetic is two operations for every weight in the forward pass, two in the sum of
the gradients, two for every weight after the first layer in the backward pass; the machine's rate is torch.mm's on
square float32 matrices, measured in every round. On a CPU seconds are the processor's; on a GPU ("--device cuda") they
are the clock's, after all its work is done; Opacus's loader sends it every batch.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning import ensemble, products
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool

RECORDS, INPUTS, CLASSES, EPOCHS, LEARNING_RATE = 1000, 784, 10, 24, 0.15
SIDE = {"cpu": 1536, "cuda": 8192}  # of the square matrices that measure the machine
DEVICE = torch.device("cpu")  # set by the command line
CASES = {
    "fnn 784-32-10, full batch": ("fnn", 1.0),
    "fnn 784-32-10, Poisson 250": ("fnn", 0.25),
    "linear 784-10, full batch": ("linear", 1.0),
    "linear 784-10, Poisson 250": ("linear", 0.25),
}
TARGETS = {  # times slower than ours that Opacus is at least
    "fnn 784-32-10, full batch": {"hooks": 60.0, "ghost": 8.0},
    "linear 784-10, full batch": {"ghost": 20.0},
    "fnn 784-32-10, Poisson 250": {"hooks": 20.0},
}
GEMM_TARGET = 0.4  # of torch.mm's rate, full batches of the network


def data() -> Pool:
    """Random records: the time does not depend on what they hold."""
    rng = np.random.default_rng(0)
    return Pool(rng.random((RECORDS, INPUTS), dtype=np.float32), rng.integers(0, CLASSES, RECORDS))


def operations(name: str) -> float:
    """Useful floating-point operations of one model's training."""
    weights = [w.numel() for w in build_module(Architecture(name, INPUTS, CLASSES)).parameters() if w.dim() == 2]
    return 2.0 * EPOCHS * RECORDS * (2 * sum(weights) + sum(weights[1:]))


def ours(pool: Pool, name: str, sampling_prob: float, models: int) -> None:
    """All models in one call."""
    steps, batch = round(EPOCHS / sampling_prob), RECORDS * sampling_prob
    spec = DPSGDSpec(
        architecture=Architecture(name, INPUTS, CLASSES), mechanism=Gaussian(1.0), steps=steps,
        sampling_prob=sampling_prob, expected_batch_size=batch, learning_rate=LEARNING_RATE,
    )  # fmt: skip
    ensemble.train(spec, pool, np.ones((models, RECORDS), dtype=bool), range(models), device=DEVICE.type)


def private(pool: Pool, name: str, sampling_prob: float, mode: str) -> tuple[Any, Any, Any, Any]:
    """Module, optimizer, criterion and loader, made private by Opacus."""
    module = build_module(Architecture(name, INPUTS, CLASSES)).to(DEVICE)
    dataset = TensorDataset(torch.from_numpy(pool.x), torch.from_numpy(pool.y))
    criterion = nn.CrossEntropyLoss()
    common = {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        "data_loader": DataLoader(dataset, batch_size=round(RECORDS * sampling_prob)),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    if mode == "hooks":
        module, optimizer, loader = PrivacyEngine().make_private(**common)
        return module, optimizer, criterion, loader
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        **common, criterion=criterion, grad_sample_mode="ghost"
    )
    return module, optimizer, criterion, loader


def step(module: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor) -> None:
    """One step, the same code for hooks and ghost clipping."""
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    optimizer.step()


def opacus(pool: Pool, name: str, sampling_prob: float, mode: str) -> None:
    """One model as the documentation says, its loader included."""
    module, optimizer, criterion, loader = private(pool, name, sampling_prob, mode)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(module, optimizer, criterion, x.to(DEVICE), y.to(DEVICE))


def opacus_without_loader(pool: Pool, name: str, sampling_prob: float, mode: str) -> Callable[[], None]:
    """The same on batches already drawn; a full batch is the data themselves."""
    x, y = pool.tensors(DEVICE)
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(round(EPOCHS / sampling_prob)):
        chosen = torch.rand(RECORDS, generator=generator) < sampling_prob
        batches.append((x, y) if sampling_prob == 1 else (x[chosen], y[chosen]))

    def run() -> None:
        module, optimizer, criterion, _ = private(pool, name, sampling_prob, mode)
        for some_x, some_y in batches:
            step(module, optimizer, criterion, some_x, some_y)

    return run


def rate(multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """GFLOP/s of one product of square float32 matrices, the best of five."""
    side = SIDE[DEVICE.type]
    a, b = torch.randn(2, side, side, device=DEVICE)
    multiply(a, b)
    return 2.0 * side**3 / min(seconds(lambda: multiply(a, b)) for _ in range(5)) / 1e9


def seconds(run: Callable[[], object]) -> float:
    """Time of one call: the processor's own, for it may be busy with other things, or the clock's with a GPU."""
    if DEVICE.type == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(case: str, models: int, repeats: int) -> dict[str, Any]:
    """Medians over interleaved rounds, the first of which warms up and is dropped; ratios are taken within a round."""
    name, q = CASES[case]
    pool = data()
    contenders: dict[str, Callable[[], None]] = {
        "hooks": lambda: opacus(pool, name, q, "hooks"),
        "ghost": lambda: opacus(pool, name, q, "ghost"),
        "hooks, no loader": opacus_without_loader(pool, name, q, "hooks"),
        "ghost, no loader": opacus_without_loader(pool, name, q, "ghost"),
    }
    rounds: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        own = seconds(lambda: ours(pool, name, q, models)) / models
        times = {contender: seconds(run) for contender, run in contenders.items()}
        rounds.append(
            {
                "ours": own,
                **times,
                **{f"{contender} / ours": value / own for contender, value in times.items()},
                "gflops": operations(name) / own / 1e9,
                "torch.mm gflops": rate(torch.mm),
                "products gflops": rate(products.times_transposed),
            }
        )
    result: dict[str, Any] = {key: statistics.median(turn[key] for turn in rounds[1:]) for key in rounds[0]}
    result["part of torch.mm"] = result["gflops"] / result["torch.mm gflops"]
    result["rounds"] = rounds[1:]
    return result


def verdicts(results: dict[str, dict[str, Any]]) -> list[str]:
    """One line per target: met or not."""
    lines = []
    for case, wanted in TARGETS.items():
        for contender, factor in wanted.items():
            reached = results[case][f"{contender} / ours"]
            lines.append(
                f"{'met' if reached >= factor else 'MISSED'}: {case}, {reached:.1f} x {contender} (>= {factor:g})"
            )
    case = "fnn 784-32-10, full batch"
    part = results[case]["part of torch.mm"]
    lines.append(
        f"{'met' if part >= GEMM_TARGET else 'MISSED'}: {case}, {part:.0%} of torch.mm's rate (>= {GEMM_TARGET:.0%})"
    )
    return lines


def main() -> None:
    """Measure, print a table, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=48, help="trained in one call of the engine")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="'-' for stdout, in place of the table")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    global DEVICE
    DEVICE = torch.device(options.device)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus remarks on its random source and on torch's hooks at every start
    results = {case: measure(case, options.models, options.repeats) for case in CASES}
    lines = verdicts(results)
    report = {
        "records": RECORDS, "epochs": EPOCHS, "models": options.models, "repeats": options.repeats, "threads": 1,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "torch": torch.__version__, "cases": results, "targets": lines,
    }  # fmt: skip
    if options.json == "-":
        json.dump(report, sys.stdout, indent=2)
        return
    print(
        f"Per model on {report['device']}, medians of {options.repeats} interleaved rounds, one thread; "
        f"ours: {options.models} models a call"
    )
    for case, result in results.items():
        print(
            f"\n{case}: {result['ours'] * 1e3:.2f} ms, {result['gflops']:.0f} GFLOP/s "
            f"= {result['part of torch.mm']:.0%} of torch.mm's {result['torch.mm gflops']:.0f} "
            f"({result['products gflops']:.0f} by the products used here)"
        )
        for contender in ("hooks", "ghost", "hooks, no loader", "ghost, no loader"):
            ratio = result[f"{contender} / ours"]
            print(f"  Opacus {contender:18s}{result[contender] * 1e3:9.1f} ms {ratio:7.1f} x ours")
    print("\n" + "\n".join(lines))
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
