"""transformers' own Trainer with an optimizer of Opacus: its loader shuffles, whatever the engine accounts."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, Dataset

from dpaudit import check
from dpaudit.audit import bundle_from_trainer, load_bundle, load_recipe, opacus_callback
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import Shuffled

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra text"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of transformers' and accelerate's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
RECORDS, BATCH, PASSES, DELTA = 32, 8, 3, 1e-5
PAGE = Path(__file__).parents[3] / "docs/opacus.md"
PAGE_BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NETWORK = """
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def bert(classes):
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=8, num_labels=classes, attn_implementation="eager",
    )
    torch.manual_seed(5)  # weights that are not trained are the same whenever it is built
    model = BertForSequenceClassification(config)
    model.bert.embeddings.position_embeddings.requires_grad_(False)  # one for all records: it has no gradient of each
    model.bert.embeddings.token_type_embeddings.requires_grad_(False)
    return model


class FromIds(nn.Module):
    largest_id = 29

    def __init__(self, classes):
        super().__init__()
        self.model = bert(classes)

    def forward(self, x):
        return self.model(input_ids=x.long(), attention_mask=(x > 0).long()).logits


def build(inputs, classes):
    return FromIds(classes)
"""


class Sentences(Dataset[dict[str, Any]]):
    """Token ids, padded with 0, as tokenizers give them."""

    def __init__(self) -> None:
        self.ids = torch.randint(1, 30, (RECORDS, 6), generator=torch.Generator().manual_seed(1))
        self.ids[::3, 4:] = 0

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": int(ids[0] > 14)}


def parts_of(folder: Path, *, poisson: bool, **arguments: Any) -> dict[str, Any]:
    """What a script has before it makes its Trainer, by the names of docs/opacus.md."""
    from transformers import TrainingArguments

    namespace: dict[str, Any] = {}
    exec(NETWORK, namespace)
    torch.manual_seed(2)
    model, data = namespace["bert"](2).train(), Sentences()
    engine = PrivacyEngine(accountant="rdp")
    _, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), data_loader=DataLoader(data, BATCH),
        noise_multiplier=0.8, max_grad_norm=0.5, wrap_model=False, poisson_sampling=poisson,
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(folder), num_train_epochs=PASSES, per_device_train_batch_size=BATCH, use_cpu=True, seed=1,
        max_grad_norm=0.0, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, **arguments,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer.original_optimizer, factor=1.0)
    return {
        "model": model, "args": settings, "data": data, "optimizer": optimizer, "scheduler": scheduler,
        "privacy_engine": engine, "loader": loader,
    }  # fmt: skip


def trained(folder: Path, *, poisson: bool, **arguments: Any) -> tuple[Any, PrivacyEngine]:
    from transformers import Trainer

    parts = parts_of(folder, poisson=poisson, **arguments)

    class PrivateTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return parts["loader"] if poisson else super().get_train_dataloader()

    trainer = PrivateTrainer(
        model=parts["model"], args=parts["args"], train_dataset=parts["data"],
        optimizers=(parts["optimizer"], parts["scheduler"]), callbacks=[opacus_callback()],
    )  # fmt: skip
    trainer.train()
    return trainer, parts["privacy_engine"]


def test_the_pages_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The block of docs/opacus.md as it stands: the Trainer's own loader shuffles, and the claim says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    (block,) = [text for text in PAGE_BLOCKS if "from transformers import Trainer" in text]
    exec(block, parts_of(tmp_path, poisson=False))
    assert f"covered: shuffled batches of {BATCH}" in capsys.readouterr().out
    claim = load_bundle("model.pt", recipe=load_recipe("model.toml")).recipe.claim_object()
    assert claim.phases[0].sampler == Shuffled.of(RECORDS, BATCH, PASSES)


@pytest.mark.parametrize("poisson", [True, False])
def test_the_trainers_own_loader_is_what_is_claimed_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poisson: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    trainer, engine = trained(tmp_path, poisson=poisson)
    export = bundle_from_trainer("m.pt", trainer, engine, delta=DELTA, architecture="net.py:build")
    noise = Gaussian(0.8, 0.5, dimension=sum(w.numel() for w in trainer.model.parameters() if w.requires_grad))
    steps = PASSES * RECORDS // BATCH
    poisson_phase, shuffled = Phase(noise, steps, 0.25), Phase(noise, sampler=Shuffled.of(RECORDS, BATCH, PASSES))
    assert export.claim.phases == (poisson_phase if poisson else shuffled,)
    assert export.claim.epsilon == engine.get_epsilon(DELTA)
    assert not poisson or check(export.claim).verdict == "certified"
    bundle = load_bundle("m.pt", recipe=load_recipe("m.toml"))
    dataset = bundle.recipe.load_dataset()
    assert dataset.x.tolist() == Sentences().ids.tolist()
    models = bundle.models(bundle.recipe.spec(dataset))
    assert len(models.parameters) == len([w for w in trainer.model.parameters() if w.requires_grad])


def test_gradients_that_are_added_up_and_a_trainer_that_has_not_trained_are_refused(tmp_path: Path) -> None:
    trainer, engine = trained(tmp_path, poisson=False)
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(InputError, match="Expected gradient_accumulation_steps=2 to be 1"):
        bundle_from_trainer(tmp_path / "m.pt", trainer, engine, delta=DELTA)
    trainer.callback_handler.train_dataloader = None
    with pytest.raises(InputError, match="Expected the Trainer to have trained"):
        bundle_from_trainer(tmp_path / "m.pt", trainer, engine, delta=DELTA)


def test_a_trainer_that_went_on_from_a_checkpoint_needs_the_accountant_of_then(tmp_path: Path) -> None:
    trainer, engine = trained(tmp_path, poisson=False)
    trainer.state.global_step += 4  # as it counts on
    with pytest.raises(InputError, match="Expected the accountant to have counted all 16 steps of the Trainer, not 12"):
        bundle_from_trainer(tmp_path / "m.pt", trainer, engine, delta=DELTA)
