"""Lint of example folders of privacy libraries: every finding by its place, and how often each rule fires.

    python benchmarks/lint_examples.py opacus/examples opacus/tutorials privacy/tutorials jax_privacy/examples

The folders are checkouts of yours. docs/lint.md tells what was found in them, and what of it was false.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

from dpaudit.audit.lint.linting import lint_paths


def main() -> None:
    """Print the findings of every folder named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        began = time.process_time()
        result = lint_paths([folder], warn=print)
        print(f"{folder}: {result.files} files, {time.process_time() - began:.2f} CPU seconds")
        for finding in result.findings:
            place = Path(finding.path).relative_to(folder)
            print(f"  {place}:{finding.line} {finding.cell} {finding.level}[{finding.rule}] {finding.message}")
        print("  " + ", ".join(f"{rule} {count}" for rule, count in Counter(f.rule for f in result.findings).items()))


if __name__ == "__main__":
    main()
