"""Who may join a run: whoever has its certificate and key, and knows its password. Strangers' connections end here.

    <exp_dir>/credentials (0700), or SAC_CREDENTIALS_DIR
      certificate.pem   shown by both sides; neither trusts any other one
      key.pem           its private key

A machine that can't read the folder needs a copy of it. Gateway and joining machines have the same key, because a
machine that joins can run programs as the run's user, and so read the gateway's anyway.
"""

from __future__ import annotations

import datetime
import hmac
import os
import shutil
import ssl
import stat
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine.files import sync, write_atomically

CERTIFICATE, KEY = "certificate.pem", "key.pem"
COPY_FOLDER = "copy the folder credentials of the run directory from the run's machine"
MIN_PASSWORD_CHARS = 12
_MAX_PASSWORD_CHARS = 1000
# Without limits that matter: clocks of machines differ, and removing the folder is what shuts everybody out.
_VALID = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)


def make_credentials(folder: Path, run_name: str) -> None:
    """Makes a run's certificate and key unless they exist; the folder is complete or absent.

    Raises:
      UserError: It can't be written.
    """
    if (folder / CERTIFICATE).exists():
        return
    from cryptography import x509  # Not for the tunnel's program, whose start would take longer.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, run_name[:64])])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), *_VALID)
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    key_bytes = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(mode=0o700, parents=True)
        write_atomically(beside / CERTIFICATE, certificate.public_bytes(encoding), 0o600)
        write_atomically(beside / KEY, key_bytes, 0o600)
        sync(beside)
        os.rename(beside, folder)  # In the place of an empty folder, too.
    except OSError as error:
        if not (folder / CERTIFICATE).exists():  # Otherwise another process was faster.
            remedy = "remove it" if folder.exists() else "make its parent writable"
            raise UserError(f"{folder} can't be made: {error.strerror}: {remedy}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def tls_context(protocol: ssl._SSLMethod, folder: Path) -> ssl.SSLContext:
    """TLS 1.3 with the run's certificate, for a peer that has the same one.

    Raises:
      OSError: A file is missing, or is no certificate.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The certificate is the run's, at any address.
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / CERTIFICATE)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS of the gateway: the connection of whoever lacks the run's certificate ends in its handshake.

    Raises:
      UserError: With all findings about the files.
    """
    if findings := check_credentials(folder):
        raise UserError(*findings)
    context = tls_context(ssl.PROTOCOL_TLS_SERVER, folder)
    context.num_tickets = 0  # type: ignore[attr-defined]  # No session resumption: every connection authenticates.
    return context


def password_fault(password: str, given: str) -> str:
    """Why somebody with the certificate is refused: the password is not the run's. Empty if it is, or none is asked."""
    if not password or hmac.compare_digest(password.encode(), given.encode()):
        return ""
    words = "another one was given" if given else "none was given"
    return f"the run asks for a password, {words}: set SAC_PASSWORD_FILE to a file with it"


def check_credentials(folder: Path) -> list[str]:
    """What is wrong with the files, a sentence each; empty if nothing is."""
    if not folder.is_dir():
        return [f"SAC_CREDENTIALS_DIR={folder} is no folder: give the one with {CERTIFICATE} and {KEY}"]
    if missing := [name for name in (CERTIFICATE, KEY) if not (folder / name).is_file()]:
        return [f"{folder} lacks {', '.join(missing)}: {COPY_FOLDER}"]
    findings = []
    if problem := _others_may((folder / KEY).stat(), 0o077):
        findings.append(f"{folder / KEY} {problem}: chmod 600 {folder / KEY}")
    if problem := _others_may(folder.stat(), 0o022):
        findings.append(f"{folder} {problem}: chmod 700 {folder}")
    try:
        tls_context(ssl.PROTOCOL_TLS_CLIENT, folder)
    except OSError as error:
        findings.append(f"{CERTIFICATE} and {KEY} in {folder} do not fit ({describe(error)}): copy both anew")
    return findings


def describe(error: BaseException) -> str:
    """What went wrong on a connection or with its files, in words."""
    if isinstance(error, ssl.SSLError):
        words = getattr(error, "verify_message", None) or error.reason or str(error)
        return f"TLS: {words.lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def read_password(path: Path | None) -> str:
    """The content of SAC_PASSWORD_FILE without surrounding white space; empty if there is none.

    Raises:
      UserError: It can't be read, is too short, or others may read it.
    """
    if path is None:
        return ""
    try:
        rights = path.stat()
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise UserError(f"SAC_PASSWORD_FILE={path} can't be read ({why}): give a readable file, or unset it") from None
    findings = []
    if problem := _others_may(rights, 0o077):
        findings.append(f"SAC_PASSWORD_FILE={path} {problem}: chmod 600 {path}")
    if not MIN_PASSWORD_CHARS <= len(password) <= _MAX_PASSWORD_CHARS:
        findings.append(
            f"SAC_PASSWORD_FILE={path} must hold {MIN_PASSWORD_CHARS} to {_MAX_PASSWORD_CHARS} characters, "
            f"{len(password)} found: openssl rand -hex 16 > {path}"
        )
    if findings:
        raise UserError(*findings)
    return password


def _others_may(rights: os.stat_result, forbidden: int) -> str:
    """What others may do with a file that must be private; empty if nothing is wrong."""
    if rights.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {rights.st_uid})"
    if stat.S_IMODE(rights.st_mode) & forbidden:
        what = "read" if forbidden & 0o044 else "changed"
        return f"can be {what} by others (mode {stat.S_IMODE(rights.st_mode):03o})"
    return ""
