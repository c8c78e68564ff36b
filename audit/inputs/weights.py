"""Tensors from a file, once the file is known to hold tensors of the size it has."""

import os
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dpaudit.audit.inputs.archives import check_archive
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.quoting import shown

LARGEST_HEADER = 16 << 20  # bytes of a safetensors header


def read_torch(file: BinaryIO, name: str) -> tuple[Any, int]:
    """What a torch file holds, and the bytes of its tensor records; its tensors still lie in the file.

    The file is mapped, so that a storage that declares more than its record reads the file and nothing else.

    Raises:
        InputError: The archive is refused, or torch cannot read it.
    """
    size = check_archive(file, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever torch has to say about a hostile file is no result of ours
            return torch.load(name, map_location="cpu", weights_only=True, mmap=True), size
    except Exception as error:  # torch raises nearly anything
        raise InputError(f"Expected {name} to be a torch file of tensors: {_first_line(error)}") from error


def read_safetensors(file: BinaryIO, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        InputError: Not such a file, or its header is larger than it can be.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    header = int.from_bytes(file.read(8), "little")
    if size < 8 or header > min(LARGEST_HEADER, size - 8):
        raise InputError(f"Expected {name} to be a safetensors file: its header cannot have {header:,} bytes.")
    from safetensors.torch import load_file

    try:
        return load_file(name, device="cpu")
    except Exception as error:
        raise InputError(f"Expected {name} to be a safetensors file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def check_state(state: Any, name: str, *, size: int | None) -> dict[str, Tensor]:
    """Copy the tensors of a state dict out of the file, if every one is what it seems.

    Args:
        state: What the file holds under that name.
        name: What to call the file in messages.
        size: Bytes of the file's tensor records, all of which the tensors must be; None where the format sees to it.

    Returns:
        Contiguous float32 tensors on the CPU, in the order of the file.

    Raises:
        InputError: Not a dict of names to tensors; a tensor is not float32, dense, or on the CPU; is a view, or shares
            its memory; or holds NaN or infinity.
    """
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"Expected {name}:state_dict to map names to tensors.")
    total = 0
    for key, tensor in state.items():
        where = f"{name}:state_dict[{shown(key)}]"
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            inner = " Save model.state_dict() alone." if isinstance(tensor, Mapping) else ""
            raise InputError(f"Expected {where} to be a tensor under a name, not {type(tensor).__name__}.{inner}")
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise InputError(f"Expected {where} to be a dense tensor on the CPU.")
        if tensor.dtype != torch.float32:
            raise InputError(f"Expected {where} of {tensor.dtype} to be float32.")
        expected = tensor.numel() * tensor.element_size()
        if expected == 0 or (size is not None and tensor.untyped_storage().nbytes() != expected):
            raise InputError(f"Expected {where} of shape {tuple(tensor.shape)} to own all its {expected:,} bytes: "
                             "empty tensors and views are refused.")  # fmt: skip
        total += expected
    if size is not None and total != size:
        raise InputError(
            f"Expected the tensors of {name} ({total:,} bytes) to be its records ({size:,} bytes), each once: "
            "of weights that share memory save one, as dict(model.named_parameters()) does."
        )
    for key, tensor in state.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"Expected {name}:state_dict[{shown(key)}] to be finite.")
    return {key: tensor.detach().clone(memory_format=torch.contiguous_format) for key, tensor in state.items()}
