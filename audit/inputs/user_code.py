"""A function in a user's own file, "my_loop.py:train": the only place where a user's own code is run."""

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from dpaudit.audit.inputs.files import InputError, read_regular

LARGEST_CODE = 1 << 20  # bytes
MODULE = "_dpaudit_user_"  # what the module of a user's file is called, before its digest, if its own name is taken
ONE_MODEL = "dataset"  # first parameter of a loop that trains one model
REMARKS = ("Secure RNG turned off", "Full backward hook is firing")  # of Opacus and torch, at every training


@dataclass(frozen=True)
class UserFunction:
    """A function in a user's file; as data, so that worker processes can load it again.

    Args:
        path: The file.
        function: Name of the function in it.
        sha256: Of the file when it was named; another content is refused.
    """

    path: str
    function: str
    sha256: str

    @classmethod
    def named(cls, name: str, key: str, folder: Path = Path()) -> Self:
        """The function that "my_file.py:name" names.

        Args:
            name: The file, relative to the folder, and the function.
            key: What the name was given as, for messages.
            folder: Where the path begins.

        Raises:
            InputError: Another form, or no such file.
        """
        file, _, function = name.rpartition(":")
        path = (folder / file).resolve()
        if path.suffix != ".py" or not function.isidentifier():
            raise InputError(f"{key}: Expected {name!r} in the form 'my_file.py:function'.")
        return cls(str(path), function, hashlib.sha256(read_regular(path, limit=LARGEST_CODE)).hexdigest())

    @property
    def where(self) -> str:
        """The function as it was named."""
        return f"{self.path}:{self.function}"

    def load(self) -> Callable[..., Any]:
        """The function; its file is run, and may import the files beside it.

        Raises:
            InputError: The file has changed, fails, or has no such function.
        """
        try:
            with its_own_settings(self):
                return _function(self.path, self.function, self.sha256)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise InputError(f"Expected {self.where} to be there: {fault(error)}") from error


@contextmanager
def its_own_settings(code: UserFunction) -> Iterator[None]:
    """Inside, what a user's code has set of torch, NumPy and the folder is as it left it; outside, as it was before.

    A file that makes float64 the default means its own tensors, and ours and those of other files are float32.

    Args:
        code: Whose settings; its file is what they are kept for.
    """
    if _inside:
        yield
        return
    before, theirs = _settings(), _theirs.setdefault((code.path, code.sha256), {})
    _set_to({**before, **theirs})
    _inside.append(True)
    try:
        with _left_by_exceptions():
            yield
    finally:
        _inside.clear()
        left = _settings()
        theirs.clear()
        theirs.update({name: value for name, value in left.items() if value != before[name]})
        _set_to(before)


@contextmanager
def _left_by_exceptions() -> Iterator[None]:
    """Inside, `os._exit`, with which scripts end whose threads hang, raises: status 0 would be read as a finding."""
    leave, here = os._exit, os.getpid()

    def refused(status: int) -> NoReturn:
        if os.getpid() != here:  # a process that the user's code forked
            leave(status)
        raise SystemExit(status)

    os._exit = refused
    try:
        yield
    finally:
        os._exit = leave


def _settings() -> dict[str, Any]:
    import numpy as np
    import torch

    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "errors": np.geterr(),
        "folder": _folder(),
    }


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted meanwhile, as one for one training is
        return None


def _set_to(chosen: dict[str, Any]) -> None:
    import numpy as np
    import torch

    torch.set_default_dtype(chosen["dtype"])
    if torch.get_default_device() != chosen["device"]:
        torch.set_default_device(chosen["device"])
    torch.set_grad_enabled(chosen["gradients"])
    np.seterr(**chosen["errors"])
    if chosen["folder"] is not None:
        with suppress(OSError):
            os.chdir(chosen["folder"])


_inside: list[bool] = []
_theirs: dict[tuple[str, str], dict[str, Any]] = {}  # by file, of this process
_loaded: set[str] = set()  # names of modules that are users' files, run here


def fault(error: BaseException) -> str:
    """What a user's code raised, in words.

    >>> fault(KeyError(3)), fault(SystemExit(0))
    ('KeyError: 3', 'SystemExit: 0, which ends a program, not an audit')
    """
    ending = ", which ends a program, not an audit" if isinstance(error, SystemExit) else ""
    return f"{type(error).__name__}: {error}{ending}"


@functools.lru_cache(maxsize=8)
def _function(path: str, function: str, sha256: str) -> Callable[..., Any]:
    source = read_regular(path, limit=LARGEST_CODE)
    if hashlib.sha256(source).hexdigest() != sha256:
        raise InputError(f"Expected {path} not to change during an audit.")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = _module_name(path, sha256)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InputError(f"Expected {path} to be a Python file.")
    module = importlib.util.module_from_spec(spec)
    _loaded.add(name)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    words, sys.argv = sys.argv, [path]  # a parser in the file would take our command line for its own
    try:
        # these very bytes: a loader would take bytecode that it keeps of a file of the same second and size
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        found = getattr(module, function, None)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.argv = words
    if not callable(found):
        raise InputError(f"Expected {path} to have a function {function!r}.")
    return found  # type: ignore[no-any-return]


def _module_name(path: str, sha256: str) -> str:
    """The name by which processes that the code starts import its file, unless something else has it."""
    stem = Path(path).stem
    importlib.invalidate_caches()  # the file may be a moment old
    try:
        spec = importlib.util.find_spec(stem) if stem in _loaded or stem not in sys.modules else None
    except (ImportError, ValueError):  # a name with dots in it
        spec = None
    found = spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(path)
    return stem if found else f"{MODULE}{sha256[:16]}"


def dataset_trainer(
    function: Callable[..., Any], shape: tuple[int, ...] = (), *, whole: bool = False
) -> Callable[..., Any]:
    """A loop that trains one model, train(dataset, seed) -> module, as an audit calls loops: `UserTrainer` tells how.

    The data set is a TensorDataset of the model's members. Of the module, which Opacus may have wrapped, the trained
    weights are taken in their order.

    Args:
        function: The loop; picklable where worker processes are to call it.
        shape: Of one record, as the loop wants it; () for flat ones.
        whole: Whether the loop wants whole numbers, such as token ids.
    """
    scalable = "noise_factor" in inspect.signature(function).parameters
    return functools.partial(_train_scaled if scalable else _train_each, function=function, shape=shape, whole=whole)


@contextmanager
def remarks_silenced() -> Iterator[None]:
    """Silence what Opacus and torch remark at every training: thousands of them would hide what matters."""
    with warnings.catch_warnings():
        for remark in REMARKS:
            warnings.filterwarnings("ignore", message=remark)
        yield


def _train_scaled(*arguments: Any, device: str, noise_factor: float = 1.0, **options: Any) -> Any:
    """`_train_each` of a loop that takes `noise_factor`, for positive controls."""
    return _train_each(*arguments, device=device, noise_factor=noise_factor, **options)


def _train_each(
    spec: Any, pool: Any, members: Any, seeds: Any, *, device: str, function: Callable[..., Any],
    shape: tuple[int, ...], whole: bool, watch: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """The state dicts of a loop's models; `TrainedModels` with what a `StepWatch` saw of each, where there is one."""
    import torch
    from torch.utils.data import TensorDataset

    from dpaudit.mechanisms.learning.architectures import parameter_shapes
    from dpaudit.mechanisms.learning.spec import Ledger, TrainedModels

    names, states = list(parameter_shapes(spec.architecture)), []
    seen: list[float] = []
    for row, seed in zip(members, seeds, strict=True):
        x = torch.from_numpy(pool.x[row]).reshape(-1, *(shape or pool.x.shape[1:]))
        dataset = TensorDataset(x.long() if whole else x, torch.from_numpy(pool.y[row]))
        with remarks_silenced(), nullcontext([]) if watch is None else watch.ratios(spec) as ratios:
            module = function(dataset, seed, **options)
        seen.append(sum(ratios))
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"Expected {_name(function)} to return a module, not {type(module).__name__}.")
        weights = [weight.detach().clone() for weight in module.parameters() if weight.requires_grad]
        if len(weights) != len(names):
            raise InputError(
                f"Expected {_name(function)} to train {len(names)} tensors of weights, not {len(weights)}."
            )
        states.append(dict(zip(names, weights, strict=True)))
    if watch is None:
        return states
    parts = {name: torch.stack([state[name].cpu().float() for state in states]) for name in names}
    observed = torch.tensor(seen, dtype=torch.float64)[:, None, None]
    return TrainedModels(parts, spec.architecture, Ledger.unrecorded(spec, "own loop"), observed)


@dataclass(frozen=True)
class UserTrainer:
    """A user's own training loop, audited in place of the package's; docs/own-loop.md has an example.

    The function is called as train(spec, pool, members, seeds, device=...) and trains one model for each seed:
    `spec` is the recipe's `TrainingSpec`, `pool` the records (x, y), `members` says who of them trains which model
    (bool, one row for each seed), `device` is "cpu" or "cuda". It returns `TrainedModels`, or a list of state dicts in
    the order of the seeds, with the names and shapes of the recipe's architecture. Equal arguments must give equal
    models: everything random in model i comes from seeds[i], and nothing is kept from one call to the next.

    A function whose first parameter is `dataset` trains one model, train(dataset, seed) -> module: `dataset_trainer`.

    Args:
        code: Where it is.
    """

    code: UserFunction

    def __call__(self, spec: Any, pool: Any, *arguments: Any, **options: Any) -> Any:
        """Run the user's function.

        Raises:
            InputError: The code fails; the message says where.
        """
        function = self._loop()
        try:
            with its_own_settings(self.code):
                return function(spec, pool, *arguments, **options)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            # a call that its signature forbids fails here
            where = "" if place.filename == __file__ else f" ({Path(place.filename).name}, line {place.lineno})"
            raise InputError(f"Expected {self.code.where} to train models: {fault(error)}{where}") from error

    def _loop(self) -> Callable[..., Any]:
        """The user's function, as an audit calls it."""
        function = self.code.load()
        return dataset_trainer(function) if trains_one_model(self) else function


@dataclass(frozen=True)
class OneModelTrainer(UserTrainer):
    """A user's loop that trains one model, train(dataset, seed) -> module, whatever it calls its parameters.

    Args:
        code: Where it is.
        shape: Of one record, as the loop wants it; () for flat ones.
        whole: Whether the loop wants whole numbers.
    """

    shape: tuple[int, ...] = ()
    whole: bool = False

    def _loop(self) -> Callable[..., Any]:
        return dataset_trainer(self.code.load(), self.shape, whole=self.whole)


def trains_one_model(trainer: Callable[..., Any]) -> bool:
    """Whether a training function is a loop train(dataset, seed), as `dataset_trainer` or `UserTrainer` calls it."""
    if isinstance(trainer, OneModelTrainer):
        return True
    if isinstance(trainer, UserTrainer):
        return next(iter(inspect.signature(trainer.code.load()).parameters), "") == ONE_MODEL
    return isinstance(trainer, functools.partial) and trainer.func in (_train_each, _train_scaled)


def trainer_name(trainer: Callable[..., Any]) -> str:
    """What a training function is called in a report.

    >>> trainer_name(len)
    'builtins.len'
    """
    if isinstance(trainer, UserTrainer):
        return f"{trainer.code.where} (SHA-256 {trainer.code.sha256})"
    while isinstance(trainer, functools.partial):
        trainer = trainer.keywords.get("function", trainer.func)
    return _name(trainer)


def _name(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    if kind.__module__ in _loaded and kind.__module__ in sys.modules:
        return f"{sys.modules[kind.__module__].__file__}:{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"
