"""Names that a package hands on without importing their modules before they are asked for (PEP 562)."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attributes(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Args:
        package: Its `__name__`.
        modules: The modules inside it, each with the names it defines.
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return get, listed
