"""Hugging Face encoders and tokenizers from a local folder, as data: JSON and safetensors, no code and no network.

The one file that imports transformers, when it is asked for one (extra `text`).
"""

import functools
import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.audit.inputs.files import InputError, file_sha256, open_regular, read_regular

LARGEST_JSON = 64 << 20  # bytes; the tokenizers of large multilingual models have 17 MB
MOST_LAYERS = 1000  # each is built before a weight is looked for
_CONFIG, _TOKENIZER, _WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
_ADAPTER = "adapter_config.json"  # by it the library takes weights from another folder
_PADDING = ("[PAD]", "<pad>")


@dataclass(frozen=True)
class FolderTokens:
    """Sentences as the ids of the tokenizer in a folder (tokenizer.json, as `save_pretrained` of a fast one writes it).

    Args:
        folder: Its path.
        sha256: Of the file when it was named; another content is refused.
        length: Ids of one sentence, special tokens included; what is longer is cut, what is shorter padded.
    """

    folder: str = field(metadata={"evidence": False})
    sha256: str
    length: int

    def __call__(self, texts: Sequence[str] | NDArray[Any]) -> NDArray[np.float32]:
        """The ids of every sentence, float32, shape (sentences, length); 0 is padding, and id i is i + 1."""
        tokenizer = _tokenizer(self.folder, self.sha256)
        if not len(texts):
            return np.zeros((0, self.length), np.float32)
        rows = tokenizer(
            list(map(str, texts)), padding="max_length", truncation=True, max_length=self.length, return_tensors="np"
        )
        return np.where(rows["attention_mask"] > 0, rows["input_ids"] + 1, 0).astype(np.float32)


@dataclass(frozen=True)
class FolderEncoder:
    """What builds a classifier on the encoder in a folder (config.json, model.safetensors); as data, for workers.

    Args:
        folder: Its path.
        sha256: Of both files when they were named; other content is refused.
    """

    folder: str = field(metadata={"evidence": False})
    sha256: str

    def __call__(self, inputs: int, classes: int, *, trained_layers: int | None = None) -> nn.Module:
        """The encoder with a new linear layer on the representation of the first token.

        Args:
            inputs: Ids of one sentence, from `FolderTokens`.
            classes: Outputs.
            trained_layers: How many of its last layers are trained with the new one; None for everything.

        Raises:
            InputError: The folder does not hold an encoder that can be trained so.
        """
        return EncoderClassifier(deepcopy(_encoder(self.folder, self.sha256)), inputs, classes, trained_layers)


class EncoderClassifier(nn.Module):
    """A pretrained encoder without dropout and pooling, and a linear layer on what it makes of the first token.

    Frozen weights are constants from the folder: they are no part of the state that is released.

    Args:
        encoder: Any of Hugging Face's that takes `input_ids` and `attention_mask`.
        inputs: Ids of one sentence.
        classes: Outputs.
        trained_layers: As `FolderEncoder`.
    """

    def __init__(self, encoder: nn.Module, inputs: int, classes: int, trained_layers: int | None) -> None:
        super().__init__()
        config: Any = encoder.config
        longest = getattr(config, "max_position_embeddings", inputs) - _first_position(encoder)
        if inputs > longest:
            raise InputError(f"Expected dataset.tokens.length={inputs} to be at most the encoder's {longest}.")
        self.encoder = encoder
        self.largest_id = int(config.vocab_size)
        self.classifier = nn.Linear(int(config.hidden_size), classes)
        if trained_layers is not None:
            _freeze(encoder, trained_layers)
        # rows of their own for every record: Opacus finds the gradient of a record along the first axis
        names = list(inspect.signature(encoder.forward).parameters)
        self.segments, self.positions = "token_type_ids" in names, _counts_positions(encoder, names)
        for part in encoder.modules():
            if isinstance(part, nn.Embedding):
                part.padding_idx = None  # autograd leaves that row out and Opacus does not; attention never sees it

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (records, classes)."""
        words = x.long()
        largest = int(words.max()) if len(words) else 0
        if largest > self.largest_id:
            raise InputError(
                f"Expected a tokenizer of the encoder's {self.largest_id} tokens: it gives id {largest - 1}."
            )
        ids = (words - 1).clamp_min(0)
        extra: dict[str, Tensor] = {}
        if self.segments:
            extra["token_type_ids"] = torch.zeros_like(ids)
        if self.positions:
            extra["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).contiguous()
        states = self.encoder(
            input_ids=ids, attention_mask=(words > 0).long(), return_dict=True, **extra
        ).last_hidden_state
        logits: Tensor = self.classifier(states[:, 0])
        return logits


def _counts_positions(encoder: nn.Module, names: Sequence[str]) -> bool:
    """Whether its positions are 0, 1, ... for every sentence."""
    return "position_ids" in names and not _first_position(encoder)


def _first_position(encoder: nn.Module) -> int:
    """0; RoBERTa's positions begin after its padding id, by its own rule."""
    embeddings: Any = getattr(encoder, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else padding + 1


def _freeze(encoder: nn.Module, trained_layers: int) -> None:
    """Turn all weights but those of the last layers into buffers that are no part of the state."""
    stacks = [part for part in encoder.modules() if isinstance(part, nn.ModuleList)]
    layers = list(stacks[0]) if len(stacks) == 1 else []
    if trained_layers > len(layers):
        raise InputError(f"Expected kwargs.trained_layers={trained_layers} to be at most the encoder's {len(layers)}.")
    kept = {part for layer in layers[len(layers) - trained_layers :] for part in layer.modules()}
    for part in encoder.modules():
        for name in list(part._parameters) if part not in kept else ():
            weight = part._parameters.pop(name)
            part.register_buffer(name, None if weight is None else weight.detach(), persistent=False)


def folder_tokens(folder: Path, length: int) -> FolderTokens:
    """The tokenizer in a folder.

    Raises:
        InputError: It has none, or the extra `text` is not installed.
    """
    tokens = FolderTokens(str(folder), _digest(folder, (_TOKENIZER,)), length)
    special = int(_tokenizer(tokens.folder, tokens.sha256).num_special_tokens_to_add())
    if length <= special:
        raise InputError(
            f"Expected dataset.tokens.length={length} to be above the {special} special tokens of {folder}."
        )
    tokens(["a"])
    return tokens


def folder_encoder(folder: Path) -> FolderEncoder:
    """The encoder in a folder.

    Raises:
        InputError: It has none, or the extra `text` is not installed.
    """
    encoder = FolderEncoder(str(folder), _digest(folder, (_CONFIG, _WEIGHTS)))
    _encoder(encoder.folder, encoder.sha256)
    return encoder


def _digest(folder: Path, names: Sequence[str]) -> str:
    """SHA-256 over the SHA-256 of the files that are read."""
    digest = hashlib.sha256()
    for name in names:
        with open_regular(folder / name) as file:
            digest.update(file_sha256(file).encode())
    return digest.hexdigest()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "Expected the package transformers for an encoder from a folder: pip install 'dpaudit[text]'."
        ) from error
    return transformers


@contextmanager
def _reading(folder: str, what: str) -> Iterator[Any]:
    """The library, silent; whatever it raises about a folder becomes one line."""
    library = _transformers()
    level = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        yield library
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"Expected {folder} to hold {what}: {type(error).__name__}: {error}") from error
    finally:
        library.logging.set_verbosity(level)


@functools.lru_cache(maxsize=4)
def _tokenizer(folder: str, sha256: str) -> Any:
    path = Path(folder, _TOKENIZER)
    if _digest(Path(folder), (_TOKENIZER,)) != sha256:
        raise InputError(f"Expected {path} not to change during an audit.")
    content = read_regular(path, limit=LARGEST_JSON)
    with _reading(folder, "a fast tokenizer") as library:
        document = json.loads(content)
        vocabulary = document["model"]["vocab"]
        names = [*(vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary))]
        names += [token["content"] for token in document.get("added_tokens", ())]
        padding = next((name for name in _PADDING if name in names), None)
        if padding is None:
            raise InputError(f"Expected {path} to have one of the tokens {', '.join(_PADDING)}.")
        # by its own file alone: other files of a folder may name other classes to load
        right = {"padding_side": "right", "truncation_side": "right"}
        return library.PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token=padding, **right)


def _fits(library: Any, config: Any, folder: Path) -> None:
    """Refuse a configuration of more weights than the file beside it can hold, before memory is asked for."""
    layers = getattr(config, "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise InputError(f"Expected num_hidden_layers={layers} in {folder / _CONFIG} to be at most {MOST_LAYERS}.")
    with torch.device("meta"):
        described = library.AutoModel.from_config(config).named_parameters()
    weights, held = sum(w.numel() for name, w in described if "pooler." not in name), (folder / _WEIGHTS).stat().st_size
    if weights > held:  # a byte each at least
        raise InputError(
            f"Expected {folder / _WEIGHTS} to hold the {weights} weights of {_CONFIG}: it has {held} bytes."
        )


def _looks_ahead(model: nn.Module) -> bool:
    """Whether what it makes of the first token depends on the second."""
    config: Any = model.config
    pairs = torch.tensor([[0, 0], [0, int(config.vocab_size) - 1]])
    model.eval()
    with torch.no_grad():
        one, other = model(input_ids=pairs, attention_mask=torch.ones_like(pairs), return_dict=True).last_hidden_state
    return not torch.equal(one[0], other[0])


@functools.lru_cache(maxsize=2)
def _encoder(folder: str, sha256: str) -> nn.Module:
    if _digest(Path(folder), (_CONFIG, _WEIGHTS)) != sha256:
        raise InputError(f"Expected {folder} not to change during an audit.")
    read_regular(Path(folder, _CONFIG), limit=LARGEST_JSON)
    with _reading(folder, "an encoder") as library, torch.random.fork_rng(devices=[]):
        flags: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        config = library.AutoConfig.from_pretrained(folder, **flags)
        if getattr(config, "transformers_weights", None) is not None:
            raise InputError(
                f"Expected {Path(folder, _CONFIG)} without transformers_weights: {_WEIGHTS} alone is read."
            )
        if Path(folder, _ADAPTER).exists():
            raise InputError(f"Expected {folder} without {_ADAPTER}: merge the adapter into {_WEIGHTS} first.")
        config._attn_implementation = None  # the library's own choice: a name such as "a/b" is code from the network
        _fits(library, config, Path(folder))
        flags.update(config=config, use_safetensors=True, output_loading_info=True)
        model, report = library.AutoModel.from_pretrained(folder, **flags)
        missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
        if missing:
            raise InputError(f"Expected {Path(folder, _WEIGHTS)} to hold {', '.join(missing)}.")
        lost = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
        if lost:
            raise InputError(f"Expected {Path(folder, _WEIGHTS)} to hold finite numbers, unlike {', '.join(lost)}.")
        if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
            raise InputError(f"Expected {folder} to hold an encoder, not {config.model_type!r}.")
        if not _looks_ahead(model):
            what = f"not a causal {config.model_type!r}"
            raise InputError(f"Expected {folder} to hold an encoder whose first token sees the others, {what}.")
        if hasattr(model, "pooler"):
            model.pooler = None  # unused weights have no gradient
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return cast(nn.Module, model.float().train())
