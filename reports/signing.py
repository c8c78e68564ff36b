"""Detached Ed25519 signatures of a report, which standard tools check as well.

`report.sha256` names the SHA-256 of the page and of the JSON, as `sha256sum` writes it; `report.sha256.sig` is the
signature of that file's bytes, and `report.sha256.pub` the public key. Without this package:

    sha256sum -c report.sha256
    openssl pkeyutl -verify -pubin -inkey report.sha256.pub -rawin -in report.sha256 -sigfile report.sha256.sig
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dpaudit._files import write_whole
from dpaudit.reports.verdict_page import data_beside, write_again

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SUMS, SIGNATURE, PUBLIC = "report.sha256", "report.sha256.sig", "report.sha256.pub"
LARGEST_KEY = 1 << 16  # bytes
MISSING = "Expected the extra `sign` to be installed: pip install 'dpaudit[sign]'."


def sign_report(page: Path, data: Path, key: Path, *, passphrase: Callable[[], bytes]) -> str:
    """Sign a page and the JSON beside it.

    Args:
        page, data: The files, of one folder, which the signature is written to.
        key: Ed25519 private key, PEM (`openssl genpkey -algorithm ed25519`) or OpenSSH (`ssh-keygen -t ed25519`).
        passphrase: Asked if the key is encrypted.

    Returns:
        The fingerprint of the public key.

    Raises:
        ValueError: The key is none, the passphrase is not its own, the JSON is no result, the page is not, byte for
            byte, what is rendered of it, the signature of another key lies beside it, or a file's name has a line
            break; one line.
    """
    for path in (page, data):
        if len(path.name.splitlines()) != 1:
            raise ValueError(f"Expected name={path.name!r} to have no line break: the signed list has a line per file.")
    private = _private_key(key, passphrase)
    with TemporaryDirectory() as rendered:
        again = write_again(data, Path(rendered))
        if (again.read_bytes(), data_beside(again).read_bytes()) != (page.read_bytes(), data.read_bytes()):
            raise ValueError(
                f"Expected {page} to be the page of {data}: it was changed, or another version wrote it. It is written "
                f"anew by: dpaudit report {data}"
            )
    text = "".join(f"{_sha256(path)}  {path.name}\n" for path in (page, data)).encode()
    public = private.public_key()
    folder = page.parent
    if (folder / SIGNATURE).exists() and (folder / PUBLIC).exists():
        signer = _fingerprint(_public_key(folder / PUBLIC))
        if signer != _fingerprint(public):
            raise ValueError(
                f"Expected {folder / SIGNATURE}, by the key {signer}, to be replaced by that key alone: sign a copy of "
                f"the files in another folder."
            )
    write_whole({folder / SUMS: text, folder / SIGNATURE: private.sign(text), folder / PUBLIC: _pem(public)})
    return _fingerprint(public)


def verify_report(page: Path, data: Path, *, key: Path | None = None) -> str:
    """Check the signature of a report, and that its files are those that were signed.

    Args:
        page, data: The files, with the signature in their folder.
        key: Public key of the signer, PEM or OpenSSH; None takes the one in the folder, whose fingerprint is then to
            be compared with the signer's own.

    Returns:
        The fingerprint of the public key.

    Raises:
        ValueError: There is no signature, it is not of that key, or a file has changed since; one line.
    """
    try:
        from cryptography.exceptions import InvalidSignature
    except ImportError as error:
        raise ValueError(MISSING) from error
    folder = page.parent
    if not data.exists():
        raise ValueError(f"Expected {data} to be the JSON of the report: there is no such file.")
    lacking = next((folder / name for name in (SUMS, SIGNATURE) if not (folder / name).exists()), None)
    if lacking is not None:
        raise ValueError(f"Expected {lacking}, a signature of {page.name}: dpaudit report {data} --sign KEY makes one.")
    public = _public_key(folder / PUBLIC if key is None else key)
    text, signature = (_read(folder / name) for name in (SUMS, SIGNATURE))
    try:
        public.verify(signature, text)
    except InvalidSignature as error:
        raise ValueError(
            f"Expected {folder / SIGNATURE} to be a signature of {SUMS} by {_fingerprint(public)}."
        ) from error
    lines = text.decode("utf-8", "replace").splitlines()
    signed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for path in (page, data):
        if path.name not in signed:
            raise ValueError(f"Expected {path} to be one of the files that were signed: {', '.join(sorted(signed))}.")
        if signed[path.name] != _sha256(path):
            raise ValueError(f"Expected {path} to have the SHA-256 that was signed, {signed[path.name]}.")
    return _fingerprint(public)


def _private_key(path: Path, passphrase: Callable[[], bytes]) -> "Ed25519PrivateKey":
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    except ImportError as error:
        raise ValueError(MISSING) from error
    content = _read(path)
    load = load_ssh_private_key if b"BEGIN OPENSSH" in content else load_pem_private_key
    try:
        try:
            loaded = load(content, None)
        except TypeError:  # it is encrypted
            loaded = load(content, passphrase())
    except UnsupportedAlgorithm as error:  # bcrypt is not installed, or the key is of a kind of its own
        raise ValueError(f"Expected {path} to be a key that can be read here: {_line(error)}") from error
    except Exception as error:  # whatever an outside file makes the parser raise
        raise ValueError(
            f"Expected {path} to hold an Ed25519 private key, and its passphrase: {_line(error)}"
        ) from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise ValueError(f"Expected {path} to hold an Ed25519 private key, not {type(loaded).__name__}.")
    return loaded


def _public_key(path: Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    content = _read(path)
    try:
        loaded = (load_ssh_public_key if content.startswith(b"ssh-") else load_pem_public_key)(content)
    except Exception as error:
        raise ValueError(f"Expected {path} to hold an Ed25519 public key: {_line(error)}") from error
    if not isinstance(loaded, Ed25519PublicKey):
        raise ValueError(f"Expected {path} to hold an Ed25519 public key, not {type(loaded).__name__}.")
    return loaded


def _pem(public: "Ed25519PublicKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _fingerprint(public: "Ed25519PublicKey") -> str:
    """SHA-256 of the PEM file of a public key, as `sha256sum` prints it."""
    return hashlib.sha256(_pem(public)).hexdigest()


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"Expected {path} to be readable: {error.strerror}.") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_KEY + 1)
    except OSError as error:
        raise ValueError(f"Expected {path} to be readable: {error.strerror}.") from error
    if len(content) > LARGEST_KEY:
        raise ValueError(f"Expected {path} to have at most {LARGEST_KEY:,} bytes.")
    return content


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
