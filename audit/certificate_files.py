"""Certificates as files: one JSON for every decided verdict, under a name that leads out of no folder."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpaudit._files import write_whole
from dpaudit._plain_text import printable
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict
from dpaudit.verify.rigorous.certificates import NotCovered, certificate

_LONGEST = 150  # letters of a name before its hash; file systems take 255 bytes


@dataclass
class CertificateFiles:
    """A folder that is filled verdict by verdict.

    Args:
        folder: Exists.
    """

    folder: Path
    written: int = 0
    reasons: list[str] = field(default_factory=list)
    _known: dict[Claim, dict[str, Any] | NotCovered] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def add(self, claim: Claim, verdict: Verdict) -> None:
        """Write the certificate of a decided verdict, or note why there is none."""
        if verdict.verdict == "undecided":
            return
        unnamed = replace(claim, id="", source="")
        if unnamed not in self._known:
            self._known[unnamed] = certificate(unnamed, verdict)
        found = self._known[unnamed]
        if isinstance(found, NotCovered):
            self.reasons.append(f"claim {claim.id!r} has no certificate: {found.reason}")
            return
        document = {**found, "claim": {**found["claim"], "id": claim.id}}
        name = certificate_name(claim.id, self._names)
        self._names.add(name.casefold())
        write_whole({self.folder / name: (json.dumps(document) + "\n").encode()})
        self.written += 1

    def lines(self) -> list[str]:
        """Every missing certificate with its reason, then the count."""
        decided = self.written + len(self.reasons)
        return [
            *self.reasons,
            f"certificates of {self.written} of {decided} decided claims are in {printable(str(self.folder))}",
        ]


def certificate_name(name: str, taken: Collection[str] = ()) -> str:
    """<id>.json; what a path or a screen could read as more than a letter is %-encoded.

    Args:
        name: The claim's id.
        taken: File names in use, case-folded: another one is given.
    """
    found = quote(name, safe=" ")
    found = found.replace(".", "%2E", 1) if found.startswith(".") else found
    if len(found) > _LONGEST or f"{found}.json".casefold() in taken:
        found = f"{found[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{found}.json"
