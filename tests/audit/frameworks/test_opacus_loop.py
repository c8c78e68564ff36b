"""Loops that use Opacus, audited as they are: the loop itself is retrained."""

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib.externals import loky
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.audit import Settings, audit_opacus
from dpaudit.audit.attacks import control, pilot
from dpaudit.audit.attacks.control import takes_noise_factor
from dpaudit.audit.frameworks import opacus_loop
from dpaudit.audit.frameworks.opacus_loop import NO_CONTROL
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer, dataset_trainer, trainer_name, trains_one_model
from dpaudit.audit.trials.keys import fingerprint
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.reports.wording import verdict_sentence
from dpaudit.verify import Claim, check
from dpaudit.verify.results import AuditResult

NOISE, RECORDS, DELTA = 1.0, 30, 1e-5


def data() -> TensorDataset:
    """Records of one feature that nobody has, for the canary, and labels that follow the others."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(RECORDS, 1, 6, generator=generator)
    x[:, 0, 0] = 0.0
    return TensorDataset(x, (x[:, 0, 1] > 0.5).long())


def loop(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
    """One noisy step or a few on all records, that begin at public weights."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    nn.init.zeros_(module[1].weight)
    nn.init.zeros_(module[1].bias)
    assert next(iter(dataset))[0].shape == (1, 6)
    module, optimizer, loader = PrivacyEngine(accountant="prv").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), 0.5),
        data_loader=DataLoader(dataset, len(dataset)), noise_multiplier=NOISE * noise_factor, max_grad_norm=1.0,
    )  # fmt: skip
    for x, y in loader:
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module


def faulty(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
    """The same with a tenth of the noise, of which the accountant knows nothing."""
    honest = DPOptimizer.add_noise

    def add_noise(self: Any) -> None:
        self.noise_multiplier *= 0.1
        honest(self)
        self.noise_multiplier /= 0.1

    DPOptimizer.add_noise = add_noise
    try:
        return loop(dataset, seed, noise_factor)
    finally:
        DPOptimizer.add_noise = honest


def uncontrolled(dataset: Any, seed: int) -> nn.Module:
    return loop(dataset, seed)


def unprivate(dataset: Any, seed: int) -> nn.Module:
    return nn.Linear(6, 2)


def twice(dataset: Any, seed: int) -> nn.Module:
    loop(dataset, seed)
    return loop(dataset, seed)


def unreturned(dataset: Any, seed: int) -> Any:
    return loop(dataset, seed).state_dict()


@pytest.mark.slow
def test_a_fault_that_the_accountant_does_not_see_is_found_and_the_honest_loop_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pilot, "PAIRS", 4)
    monkeypatch.setattr(control, "NO_NOISE_MODELS", 10)
    results = [
        audit_opacus(function, data(), delta=DELTA, seed=7, trials=trials, workers=1)
        for function, trials in ((faulty, 20), (loop, 60))
    ]
    assert [result.verdict for result in results] == ["refuted", "not_refuted"]
    assert results[0].refuted_by == ["clipbkd:curve_violation"]
    for result in results:
        assert result.claim_check.verdict == "certified"  # the accountant's word for it
        assert result.control is not None
        assert result.control.training == "the training under audit, its own noise scaled by noise_factor"
        assert result.reproduce["recipe"]["sampling"] == {"kind": "none"}
    assert f"Models were trained by {__name__}.faulty, not by this package's own training." in results[0].notes
    assert "The noise that the optimizer was seen to add" in results[0].notes[0]
    assert "with that noise the claim is refuted: epsilon is at least" in results[0].notes[0]
    assert not any("was seen to add" in note for note in results[1].notes)


def repeating(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
    """Three passes whose noise is the same, of whole batches."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    module, optimizer, loader = PrivacyEngine(accountant="prv").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), 0.5),
        data_loader=DataLoader(dataset, len(dataset)), noise_multiplier=NOISE * noise_factor, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(3):
        torch.manual_seed(seed)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    return module


@pytest.mark.parametrize(
    ("function", "kept", "words"),
    [
        (faulty, {"noise_seen"}, "weights or steps of it were seen to get at most"),
        (repeating, {"noise_repeated"}, "2 of its 3 noisy steps were seen to add the noise of an earlier one"),
        (loop, set(), "nothing contradicts the claim"),
    ],
)
def test_silence_about_a_loop_that_was_seen_to_lack_noise_says_nothing(
    function: Any, kept: set[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack may find nothing, and its control half of the noise that there is, and the loop adds none of it."""
    claim = Claim.single(Gaussian(NOISE), epsilon=9.0, delta=DELTA)
    quiet = AuditResult({}, {"epsilon": 9.0}, "not_refuted", [], None, 0.95, 9.0, check(claim), [], 7, {}, 0.0)
    monkeypatch.setattr(opacus_loop, "run", lambda *_, **__: quiet)
    result = audit_opacus(function, data(), delta=DELTA, seed=7)
    assert result.verdict == ("inconclusive" if kept else "not_refuted")
    assert set(result.reproduce) == kept
    assert words in verdict_sentence(result)


@pytest.mark.slow
def test_without_a_noise_factor_there_is_no_control() -> None:
    result = audit_opacus(uncontrolled, data(), delta=DELTA, seed=7, trials=10, workers=1)
    assert (result.verdict, result.control) == ("inconclusive", None)
    assert result.notes[-1] == NO_CONTROL


def test_a_loop_that_is_named_can_be_called_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None knows the module of its file: all workers died. Its parameters have any names, its records their shape."""
    source = inspect.getsource(loop).replace("dataset", "records")
    imports = "from typing import Any\nimport torch\nfrom opacus import PrivacyEngine\nfrom torch import nn\n"
    text = f"{imports}from torch.utils.data import DataLoader\nNOISE = {NOISE}\n{source}"
    (tmp_path / "named.py").write_text(text)
    sent = []

    def told(bundle: Bundle, dataset: Any, settings: Settings, **_: Any) -> None:
        sent.append((settings.trainer, bundle.recipe.spec(dataset), dataset))
        raise InterruptedError

    monkeypatch.setattr(opacus_loop, "run", told)
    with pytest.raises(InterruptedError):
        audit_opacus(f"{tmp_path / 'named.py'}:loop", data(), delta=DELTA, seed=7)
    trainer, spec, dataset = sent[0]
    assert trains_one_model(trainer)
    assert takes_noise_factor(trainer)
    work = spec, Pool(dataset.x, dataset.y), np.ones((1, RECORDS), dtype=bool), [5]
    with loky.ProcessPoolExecutor(1) as executor:
        found = executor.submit(trainer, *work, device="cpu").result()[0]
    expected = dataset_trainer(loop, (1, 6))(*work, device="cpu")[0]
    assert torch.equal(found["weight"], expected["weight"])
    assert found["weight"].abs().min() > 0


EMBEDDING = """
import torch
from torch import nn


class Mean(nn.Module):
    largest_id = 9

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, rows):
        return self.output(self.embedding(rows.long()).mean(1))


def build(inputs, classes):
    return Mean()
"""


def test_no_canary_is_made_of_numbers_that_a_network_takes_for_token_ids(tmp_path: Path) -> None:
    """Half of an id, and ids below 0, ended in a traceback of the embedding."""
    (tmp_path / "net.py").write_text(EMBEDDING)
    module = UserFunction.named(f"{tmp_path / 'net.py'}:build", "architecture").load()

    def train(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
        torch.manual_seed(seed)
        network = module(5, 2)
        private, optimizer, loader = PrivacyEngine().make_private(
            module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=10), noise_multiplier=noise_factor, max_grad_norm=1.0,
        )  # fmt: skip
        for rows, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(rows), labels).backward()
            optimizer.step()
        return private  # type: ignore[no-any-return]

    ids = torch.randint(1, 10, (40, 5), generator=torch.Generator().manual_seed(1))
    with pytest.raises(InputError, match="whose module reads token ids"):
        audit_opacus(
            train, TensorDataset(ids, torch.arange(40) % 2), delta=DELTA, seed=7, trials=10,
            architecture=f"{tmp_path / 'net.py'}:build",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unprivate, "to call make_private once, not 0 times"),
        (twice, "to call make_private once, not 2 times"),
        (unreturned, "unreturned to return a module, not OrderedDict"),
        ("no_file.py:train", "no_file.py"),
    ],
)
def test_loops_that_cannot_be_audited_are_refused(function: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        audit_opacus(function, data(), delta=DELTA, seed=7)
    assert PrivacyEngine.make_private.__qualname__ == "PrivacyEngine.make_private"


ONE_MODEL = """
import torch

def train(dataset, seed, noise_factor=1.0):
    x, y = dataset.tensors
    module = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 2))
    with torch.no_grad():
        module[0].weight.fill_(noise_factor * seed)
        module[0].bias.fill_(len(dataset))
    return module
"""


def test_a_loop_of_one_model_is_called_as_any_own_loop(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ONE_MODEL)
    code = UserFunction.named("mine.py:train", "--trainer", tmp_path)
    spec = DPSGDSpec(
        architecture=Architecture("linear", 6, 2), mechanism=Gaussian(1.0), steps=1, sampling_prob=1.0,
        expected_batch_size=9.0,
    )  # fmt: skip
    pool = Pool(np.zeros((9, 6), np.float32), np.zeros(9, np.int64))
    members = np.arange(9)[None, :] < np.array([[4], [9]])
    own = UserTrainer(code)
    assert takes_noise_factor(own)
    for trainer in (own, dataset_trainer(code.load())):
        first, second = trainer(spec, pool, members, [2, 3], device="cpu", noise_factor=0.5)
        assert (set(first["weight"].flatten().tolist()), first["bias"].tolist()) == ({1.0}, [4.0, 4.0])
        assert (set(second["weight"].flatten().tolist()), second["bias"].tolist()) == ({1.5}, [9.0, 9.0])
    deep = DPSGDSpec(**{**vars(spec), "architecture": Architecture("fnn", 6, 2)})
    with pytest.raises(InputError, match="train to train 4 tensors of weights, not 2"):
        own(deep, pool, members, [2, 3], device="cpu")


def test_a_loop_of_one_model_can_be_sent_named_and_told_from_others() -> None:
    shaped = dataset_trainer(loop, (1, 6))
    assert trainer_name(shaped) == f"{__name__}.loop"
    assert pickle.loads(pickle.dumps(dataset_trainer(len_of_nothing))).keywords["function"] is len_of_nothing
    keys = [fingerprint({"trainer": one}) for one in (shaped, dataset_trainer(loop), dataset_trainer(faulty, (1, 6)))]
    assert len(set(keys)) == 3


def len_of_nothing(dataset: Any, seed: int) -> nn.Module:
    return nn.Linear(1, 1)
