"""Map the top-level rooms into the `dpaudit` namespace; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("mechanisms", "verify", "audit", "reports")

packages = [f"dpaudit.{name}" for room in ROOMS for name in [room, *(f"{room}.{sub}" for sub in find_packages(room))]]

setup(
    packages=packages,
    package_dir={f"dpaudit.{room}": room for room in ROOMS},
    package_data={f"dpaudit.{room}": ["py.typed", "templates/*", "schemas/*.json"] for room in ROOMS},
)
