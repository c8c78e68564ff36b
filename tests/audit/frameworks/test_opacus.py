"""Trainings by Opacus as bundles: what Opacus did is read from its own objects, and claimed of what the loader does."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.schedulers import StepGradClip, StepNoise
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset

from dpaudit import check
from dpaudit.audit import bundle_from_opacus, claim_from_opacus, load_bundle, load_recipe
from dpaudit.audit.frameworks.named_networks import name_network
from dpaudit.audit.frameworks.records import read_batches, read_records
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.architectures import build_module, cnn
from dpaudit.mechanisms.learning.spec import DPSGDSpec
from dpaudit.verify.claims import Phase
from dpaudit.verify.results import up
from dpaudit.verify.samplers import Deterministic, Shuffled

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:Optimal order is the (smallest|largest) alpha:UserWarning"),
]
RECORDS, INPUTS, CLASSES, DELTA = 40, 6, 3, 1e-5


def data(records: int = RECORDS, *shape: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(records, *(shape or (INPUTS,)), generator=generator)
    return TensorDataset(x, torch.arange(records) % CLASSES)


class Net(nn.Module):
    """Two hidden layers, with names of its own."""

    def __init__(self, activation: Callable[..., torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(4, CLASSES), nn.Linear(INPUTS, 5), nn.Linear(5, 4)
        self._parts = [self.first, self.middle]
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self._parts:
            x = self.activation(part(x))
        return self.last(x)  # type: ignore[no-any-return]


def mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 5), activation(), nn.Linear(5, 4), activation(), nn.Linear(4, CLASSES))


def trained(
    module: nn.Module | None = None,
    dataset: Any = None,
    *,
    loader: DataLoader[Any] | None = None,
    batch: int = 10,
    drop_last: bool = False,
    passes: int = 2,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    most: int | None = None,
    after: Callable[[Any], Callable[[], None]] | None = None,
    **options: Any,
) -> tuple[nn.Module, Any, PrivacyEngine, Any]:
    """Train by Opacus, and return what it made in the order that `bundle_from_opacus` takes."""
    torch.manual_seed(0)
    module, dataset = mlp() if module is None else module, data() if dataset is None else dataset
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=drop_last) if loader is None else loader
    engine = PrivacyEngine(accountant="rdp")
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, **options}
    module, private, loader = engine.make_private(
        module=module, optimizer=optimizer(module.parameters(), lr=0.1), data_loader=loader, **settings
    )
    step = None if after is None else after(private)
    for _ in range(passes):
        for index, (x, y) in enumerate(loader):
            if most is not None and index >= most:
                break
            private.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            private.step()
        if step is not None:
            step()
    return module, private, engine, loader


def test_the_bundle_says_what_was_done_and_is_read_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = trained(passes=3, optimizer=torch.optim.Adam)
    export = bundle_from_opacus(tmp_path / "model.pt", *parts, delta=DELTA)
    epsilon = parts[2].get_epsilon(DELTA)
    monkeypatch.chdir("/")
    bundle = load_bundle(tmp_path / "model.pt")
    recipe = bundle.recipe
    assert recipe.claim_object().phases == (Phase(Gaussian(1.0, 0.5, dimension=74), 12, 0.25),)
    assert (recipe.claim.epsilon, recipe.claim.delta, recipe.claim.adjacency) == (epsilon, DELTA, "add-remove")
    assert recipe.optimizer.model_dump(exclude_none=True) == {
        "name": "adam", "learning_rate": 0.1, "momentum": 0.0, "init": "glorot",
    }  # fmt: skip
    inner = parts[0]._module
    assert [w.tolist() for w in bundle.state_dict.values()] == [w.tolist() for w in inner.state_dict().values()]
    dataset = recipe.load_dataset()
    np.testing.assert_array_equal(dataset.x, data().tensors[0].numpy())
    built = build_module(recipe.spec(dataset).architecture)
    built.load_state_dict(bundle.state_dict)
    torch.testing.assert_close(built(data().tensors[0]), inner(data().tensors[0]))
    assert check(recipe.claim_object()).verdict == "certified"
    assert bundle.notes == tuple(f"Not covered: {line}." for line in export.not_covered)
    lines = str(export).splitlines()
    assert lines[0] == f"{tmp_path}/model.pt: claims epsilon {up(epsilon)} at delta 1e-05"
    assert lines[-1] == f"audit it: dpaudit run {tmp_path}/model.pt"
    assert "  covered: Poisson batches of rate 0.25" in lines


def test_less_noise_than_was_claimed_is_refuted_by_calculation(tmp_path: Path) -> None:
    full = trained(most=1)[2].get_epsilon(DELTA)
    parts = trained(most=1, noise_multiplier=0.5)
    claim = claim_from_opacus(*parts[1:], delta=DELTA, epsilon=full)
    assert check(claim).verdict == "refuted"
    assert bundle_from_opacus(tmp_path / "m.pt", *parts, delta=DELTA, epsilon=full).claim.phases[0].steps == 2


@pytest.mark.parametrize(
    ("drop_last", "shuffle", "sampler"),
    [
        (False, True, Shuffled.of(43, 10, 4)),
        pytest.param(True, True, Shuffled.of(43, 10, 4, last_batch="dropped"), marks=pytest.mark.slow),
        pytest.param(True, False, Deterministic(4, 4), marks=pytest.mark.slow),
    ],
)
def test_batches_are_those_of_the_loader_and_the_epsilon_that_of_the_engine(
    tmp_path: Path, drop_last: bool, shuffle: bool, sampler: Any
) -> None:
    dataset = data(43)
    loader = DataLoader(dataset, 10, shuffle=shuffle, drop_last=drop_last)
    parts = trained(dataset=dataset, loader=loader, passes=4, poisson_sampling=False, noise_multiplier=0.8)
    export = bundle_from_opacus(tmp_path / "m.pt", *parts, delta=DELTA)
    assert export.claim.phases == (Phase(Gaussian(0.8, 0.5, dimension=74), sampler=sampler),)
    assert export.claim.epsilon == parts[2].get_epsilon(DELTA)
    assert "where RDPAccountant supposes Poisson ones" in export.covered[1]
    verdict = check(export.claim)
    assert verdict.verdict == "refuted"  # that epsilon is what Poisson batches cost
    poisson = replace(export.claim, phases=[Phase(Gaussian(0.8, 0.5), export.claim.phases[0].steps, 1 / len(loader))])
    assert check(poisson).verdict == "certified"
    recipe = load_bundle(tmp_path / "m.pt").recipe
    assert recipe.claim_object() == export.claim
    assert recipe.spec(recipe.load_dataset(str(export.data))).expected_batch_size == pytest.approx(
        43 / len(loader), abs=3
    )


@pytest.mark.slow
def test_noise_that_changes_is_a_phase_for_each_value(tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Callable[[], None]:
        return StepNoise(optimizer, step_size=1, gamma=0.5).step  # type: ignore[no-any-return]

    parts = trained(passes=3, most=2, after=schedule)
    export = bundle_from_opacus(tmp_path / "m.pt", *parts, delta=DELTA)
    phases = [Phase(Gaussian(noise, 0.5, dimension=74), 2, 0.25) for noise in (1.0, 0.5, 0.25)]
    assert export.claim.phases == tuple(phases)
    assert any("noise_multiplier=0.125 of the optimizer" in line for line in export.not_covered)
    assert check(export.claim).verdict == "certified"


def test_a_changed_rate_is_claimed_but_no_recipe_holds_it(tmp_path: Path) -> None:
    module, optimizer, engine, loader = trained(most=1)
    engine.accountant.history.insert(0, (1.0, 0.2, 3))
    assert [p.sampling_prob for p in claim_from_opacus(optimizer, engine, loader, delta=DELTA).phases] == [0.2, 0.25]
    with pytest.raises(InputError, match="Expected one noise multiplier and rate with a bundle"):
        bundle_from_opacus(tmp_path / "m.pt", module, optimizer, engine, loader, delta=DELTA)
    assert not (tmp_path / "m.pt").exists()


def test_layers_clipped_one_by_one_have_the_sensitivity_of_all(tmp_path: Path) -> None:
    parts = trained(most=1, clipping="per_layer", max_grad_norm=[0.3, 0.4] * 3)
    export = bundle_from_opacus(tmp_path / "m.pt", *parts, delta=DELTA)
    assert export.claim.phases[0].mechanism.clip == pytest.approx(math.sqrt(3 * 0.25))
    assert any(line.startswith("clipping layer by layer") for line in export.not_covered)


def test_ghost_clipping_and_batches_split_in_memory_release_the_same(tmp_path: Path) -> None:
    _, optimizer, engine, loader = trained(most=1)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as small:
        batches = read_batches(small)
        claim = claim_from_opacus(optimizer, engine, small, delta=DELTA)
    assert (batches.kind, batches.rate, batches.split) == ("poisson", 0.25, True)
    assert claim == claim_from_opacus(optimizer, engine, loader, delta=DELTA)
    wrapped, ghost, criterion, ghosted = (engine := PrivacyEngine(accountant="rdp")).make_private(
        module=(net := mlp()), optimizer=torch.optim.SGD(net.parameters(), 0.1), data_loader=DataLoader(data(), 10),
        noise_multiplier=1.0, max_grad_norm=0.5, grad_sample_mode="ghost",
    )  # fmt: skip
    x, y = next(iter(ghosted))
    criterion(wrapped(x), y).backward()
    ghost.step()
    export = bundle_from_opacus(tmp_path / "m.pt", wrapped, ghost, engine, ghosted, delta=DELTA)
    assert export.claim.phases[0] == Phase(Gaussian(1.0, 0.5, dimension=74), 1, 0.25)


@pytest.mark.parametrize(
    ("options", "table", "note"),
    [
        ({"momentum": 0.9}, {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "init": "glorot"}, ""),
        (
            {"momentum": 0.9, "nesterov": True},
            {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "init": "glorot", "kwargs": {"nesterov": True}},
            "",
        ),
        ({"kind": torch.optim.RMSprop, "alpha": 0.9}, {"name": "rmsprop", "kwargs": {"alpha": 0.9}}, ""),
        ({"kind": torch.optim.AdamW, "betas": (0.8, 0.9)}, {"name": "adamw", "kwargs": {"betas": [0.8, 0.9]}}, ""),
        ({"kind": torch.optim.Adafactor}, {"name": "sgd"}, "the optimizer Adafactor: retraining takes plain descent"),
    ],
)
def test_optimizers_are_named_with_what_is_not_their_default(
    tmp_path: Path, options: dict[str, Any], table: dict[str, Any], note: str
) -> None:
    kind = options.get("kind", torch.optim.SGD)
    kwargs = {key: value for key, value in options.items() if key != "kind"}
    parts = trained(most=1, optimizer=lambda weights, lr: kind(weights, lr=lr, **kwargs))
    export = bundle_from_opacus(tmp_path / "m.pt", *parts, delta=DELTA)
    read = load_bundle(tmp_path / "m.pt").recipe.optimizer.model_dump(exclude_none=True)
    assert table.items() <= read.items()
    assert (note in export.not_covered) == bool(note)


def test_what_retraining_leaves_out_is_said(tmp_path: Path) -> None:
    module, optimizer, engine, loader = trained(most=1, loss_reduction="sum")
    torch.optim.lr_scheduler.StepLR(optimizer.original_optimizer, 1)
    optimizer.original_optimizer.add_param_group({"params": [torch.zeros(1)], "lr": 0.5})
    export = bundle_from_opacus(tmp_path / "m.pt", module, optimizer, engine, loader, delta=DELTA)
    assert [line.partition(":")[0] for line in export.not_covered[:2]] == [
        "the learning-rate schedule", "groups of weights with settings of their own",
    ]  # fmt: skip
    assert load_bundle(export.bundle).recipe.optimizer.learning_rate == 0.1 * 10  # the sum, not divided


class Stream(IterableDataset[Any]):
    """Records without end."""

    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def shrinking(optimizer: Any) -> Callable[[], None]:
    """A schedule that takes max_grad_norm of the optimizer, and with it the noise, to a tenth."""
    return StepGradClip(optimizer, step_size=1, gamma=0.1).step  # type: ignore[no-any-return]


def ghost(engine: PrivacyEngine, schedule: bool = False, **options: Any) -> tuple[nn.Module, Any, PrivacyEngine, Any]:
    """A step with ghost clipping, and one more where a schedule goes before it."""
    net = mlp()
    wrapped, optimizer, criterion, loader = engine.make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), data_loader=DataLoader(data(), 20),
        noise_multiplier=1.0, max_grad_norm=0.5, grad_sample_mode="ghost", **options,
    )  # fmt: skip
    for (x, y), step in zip(loader, (shrinking(optimizer), None) if schedule else (None,), strict=False):
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()
        if step is not None:
            step()
    return wrapped, optimizer, engine, loader


def resumed() -> tuple[nn.Module, Any, PrivacyEngine, Any]:
    """A training that went on with an optimizer's state, and an accountant that knows nothing of it."""
    before, parts = (trained(most=1, passes=1, optimizer=torch.optim.Adam) for _ in range(2))
    module, optimizer, engine, loader = parts
    optimizer.load_state_dict(before[1].state_dict())
    for state in optimizer.state.values():
        state["step"] += 1  # as a further step would
    return module, optimizer, engine, loader


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "adaptive clipping": (
        lambda: trained(
            most=1, clipping="adaptive", target_unclipped_quantile=0.5, clipbound_learning_rate=0.2, max_clipbound=10,
            min_clipbound=0.1, unclipped_num_std=2.0,
        ),
        "Expected a fixed max_grad_norm",
    ),
    "adaptive clipping of ghosts": (
        lambda: ghost(
            PrivacyEngineAdaptiveClipping(accountant="rdp"), target_unclipped_quantile=0.5, min_clipbound=0.1
        ),
        "Expected a fixed max_grad_norm",
    ),
    "noise that shrinks alone, layers": (
        lambda: trained(passes=1, after=shrinking, clipping="per_layer", max_grad_norm=[0.3, 0.4] * 3),
        "Expected gradients to be clipped to max_grad_norm=0.0866025 of the optimizer, which scales the noise, not to "
        "0.866025",
    ),
    "noise that shrinks alone, ghosts": (
        lambda: ghost(PrivacyEngine(accountant="rdp"), schedule=True),
        "Expected gradients to be clipped to max_grad_norm=0.05 of the optimizer, which scales the noise, not to 0.5",
    ),
    "steps that were not counted": (
        resumed, "Expected the accountant to have counted all 2 steps of the optimizer, not 1"
    ),
    "no steps": (lambda: trained(passes=0), "Expected the accountant to have counted steps"),
    "no noise": (lambda: trained(most=1, noise_multiplier=0.0), "Expected a finite epsilon, not inf"),
    "part of a pass": (lambda: trained(most=3, poisson_sampling=False), "Expected steps=6 to be whole passes of 4"),
    "another loader": (lambda: (*trained(most=1)[:3], DataLoader(data(), 20)), "Expected the loader's rate"),
    "with replacement": (
        lambda: trained(
            loader=DataLoader(data(), 10, sampler=RandomSampler(data(), replacement=True)), poisson_sampling=False
        ),
        "Expected a RandomSampler of all records without replacement",
    ),
    "own batches": (
        lambda: trained(loader=DataLoader(data(), batch_sampler=[[0, 1], [2, 3]]), poisson_sampling=False),
        "to be drawn by Opacus or by torch, not by builtins.list",
    ),
    "another activation": (lambda: trained(mlp(nn.Tanh), most=1), "with the same trained weights its"),
    "dropout": (lambda: trained(nn.Sequential(nn.Dropout(), mlp()), most=1), "with the same trained weights"),
    "frozen": (
        lambda: trained(nn.Sequential(nn.Linear(INPUTS, INPUTS).requires_grad_(False), mlp()), most=1),
        "frozen in part",
    ),
    "labels": (
        lambda: trained(dataset=TensorDataset(data().tensors[0], 1 + data().tensors[1] % 2), most=1),
        "Expected labels 0, 1, ... that all occur, not 1, 2",
    ),
    "no optimizer of Opacus": (
        lambda: (mlp(), torch.optim.SGD(mlp().parameters(), 0.1), PrivacyEngine(), DataLoader(data())),
        "Expected the optimizer that make_private returned, not SGD",
    ),
}  # fmt: skip


def test_the_claim_alone_of_ghost_clipping_needs_the_module() -> None:
    module, *parts = ghost(PrivacyEngine(accountant="rdp"))
    assert claim_from_opacus(*parts, delta=DELTA, module=module).phases[0] == Phase(Gaussian(1.0, 0.5), 1, 0.5)
    with pytest.raises(InputError, match="Expected module= as make_private returned it"):
        claim_from_opacus(*parts, delta=DELTA)
    module, *parts = ghost(PrivacyEngine(accountant="rdp"), schedule=True)
    with pytest.raises(InputError, match=r"Expected gradients to be clipped to max_grad_norm=0\.05"):
        claim_from_opacus(*parts, delta=DELTA, module=module)


def test_batches_added_up_but_for_the_last_of_a_pass_are_no_batches_of_a_larger_rate() -> None:
    module, optimizer, engine, loader = trained(passes=0)
    module.allow_grad_accumulation()
    for number, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(module(x), y).backward()
        if number > 0:
            optimizer.step()
            optimizer.zero_grad()
    assert engine.accountant.history == [(1.0, 0.5, 1), (1.0, 0.25, 2)]
    with pytest.raises(InputError, match=r"rates to be 0\.25, not 0\.5: gradients of 2 batches were added up"):
        claim_from_opacus(optimizer, engine, loader, delta=DELTA)


@pytest.mark.parametrize("delta", [-1e-5, math.nan, 1.0])
def test_a_delta_that_is_none_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match="Expected delta="):
        claim_from_opacus(*trained(most=1)[1:], delta=delta)


def test_an_epsilon_that_no_float_holds_is_refused_whatever_accountant_computes_it() -> None:
    def overflow(*_: Any, **__: Any) -> float:
        return float(int(math.inf))

    _, optimizer, engine, loader = trained(most=1)
    engine.get_epsilon = overflow
    with pytest.raises(InputError, match="Expected a finite epsilon, not inf"):
        claim_from_opacus(optimizer, engine, loader, delta=DELTA)


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_theorem_or_cannot_be_retrained_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(InputError) as error:
        bundle_from_opacus(tmp_path / "m.pt", *make(), delta=DELTA)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_records_that_no_bundle_can_hold_are_refused() -> None:
    class Random(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(2), index % 2

    ragged = [(np.zeros(2), 0), (np.zeros(3), 1)]
    for dataset, words in [
        (Stream(), "to have a length"),
        (Subset(Random(*data().tensors), range(9)), "the same records every time"),
        (ragged, r"records of one shape, not \(2,\) and \(3,\)"),
        ([(np.zeros(2), 0, 1)], "record 0 to be a pair"),
        ([{"x": np.zeros(2)}], "record 0 to have one array and a label"),
        ([(np.array([math.nan]), 0), (np.array([1.0]), 1)], "Expected finite records"),
    ]:
        with pytest.raises(InputError, match=words):
            read_records(dataset)


def test_records_in_half_precision_are_read() -> None:
    features = torch.tensor([[0.5], [1.5]], dtype=torch.bfloat16)
    assert read_records(TensorDataset(features, torch.tensor([0, 1]))).x.tolist() == [[0.5], [1.5]]


def test_what_a_loop_does_with_its_records_changes_none_of_ours() -> None:
    """It may share them with processes that it spawns, which moves them in memory, and write over them."""
    given = data()
    records, before = read_records(given), given.tensors[0].clone().numpy()
    given.tensors[0].share_memory_().zero_()
    assert np.array_equal(records.x.reshape(before.shape), before)


@pytest.mark.parametrize(
    ("module", "shape", "name"),
    [
        (nn.Linear(INPUTS, CLASSES), (INPUTS,), "linear"),
        (nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES, bias=False)), (2, 3), "linear"),
        (nn.Sequential(nn.Flatten(), mlp(), nn.LogSoftmax(1)), (1, 2, 3), "fnn"),
        (nn.Sequential(*list(cnn(196, CLASSES))[1:]), (1, 14, 14), "cnn"),
    ],
    ids=["linear", "unbiased", "fnn with log-softmax", "cnn of images"],
)
def test_a_module_is_known_by_what_it_computes(module: nn.Module, shape: tuple[int, ...], name: str) -> None:
    records = read_records(data(RECORDS, *shape))
    network = name_network(module.eval(), records, None, Path())
    assert network.table.name == name
    assert not module.training
    built = build_module(network.architecture)
    built.load_state_dict(network.state)
    own = module(torch.from_numpy(records.x).reshape(-1, *shape))
    torch.testing.assert_close(built(torch.from_numpy(records.x)).log_softmax(1), own.log_softmax(1))


def test_a_module_of_other_order_is_its_own_code(tmp_path: Path) -> None:
    """Layers that are defined in another order than they are used have the weights of no named network."""
    with pytest.raises(InputError, match="Expected the module \\(Net\\) to be one of linear, fnn and cnn"):
        name_network(Net(), read_records(data()), None, Path())


BUILD = """
from torch import nn

def build(inputs, classes):
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, classes))
"""


def test_a_network_of_the_users_own_code_is_named_with_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(BUILD)
    (tmp_path / "out").mkdir()
    parts = trained(mlp(nn.Tanh), most=1, optimizer=torch.optim.Adam)
    export = bundle_from_opacus("out/m.pt", *parts, delta=DELTA, architecture="nets.py:build")
    assert export.command == "dpaudit run out/m.pt --recipe out/m.toml"
    assert replace(export, bundle=Path("-a b.pt"), recipe=None).command == "dpaudit run './-a b.pt'"
    monkeypatch.chdir("/")
    recipe = load_recipe(tmp_path / "out" / "m.toml")
    assert recipe.architecture.name == "../nets.py:build"
    assert recipe.optimizer.init == "built"
    bundle = load_bundle(tmp_path / "out" / "m.pt", recipe=recipe)
    spec = bundle.recipe.spec(bundle.recipe.load_dataset())
    assert isinstance(spec, DPSGDSpec)
    assert list(bundle.models(spec).parameters) == list(bundle.state_dict)
    (tmp_path / "nets.py").write_text(BUILD.replace("Tanh", "ReLU"))
    with pytest.raises(
        InputError, match=r"nets\.py:build to build the network that was trained: with the same trained"
    ):
        name_network(parts[0], read_records(data()), str(tmp_path / "nets.py:build"), Path())
