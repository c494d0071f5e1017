"""Who may join a run: certificates and a password.

    <exp_dir>/credentials (0700), or SAC_CREDENTIALS_DIR
      ca.pem                    the only authority that both sides trust; its key is not kept
      server.pem, server.key    of the gateway
      client/                   ca.pem, client.pem and client.key of those who join

A machine that can't read the folder needs a copy of `client`. Your own certificates use the same names: ca.pem,
server.pem and server.key here, ca.pem, client.pem and client.key there.
"""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
import stat
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tfagents_system.errors import UserError
from tfagents_system.machine.files import sync, write_atomically
from tfagents_system.transport.tunnel import describe, tls_context

SERVER, CLIENT = "server", "client"
MIN_PASSWORD_CHARS = 12
_MAX_PASSWORD_CHARS = 1000
_OURS = "tfagents_system"  # The organization in certificates that were made here.
_SERVER_NAME = "gateway.tfagents-system.invalid"  # In those certificates: they are valid at any address.
_VALID_DAYS = 730
COPY_CLIENT = "copy the folder credentials/client of the run directory from the run's machine"
_CLOCK_DAYS = 1  # Clocks of other machines may be behind.
_PROTOCOLS = {SERVER: ssl.PROTOCOL_TLS_SERVER, CLIENT: ssl.PROTOCOL_TLS_CLIENT}
_USES = {SERVER: ExtendedKeyUsageOID.SERVER_AUTH, CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


def make_credentials(folder: Path, run_name: str) -> None:
    """Makes a certificate authority and the certificates of both sides; the folder is complete or absent.

    Raises:
      OSError: It can't be written, or already exists.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _OURS),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{run_name} authority"[:64]),
        ]
    )
    limits = x509.BasicConstraints(ca=True, path_length=0)
    authority = _builder(name, name, key, key).add_extension(limits, True).sign(key, hashes.SHA256())
    try:
        for side, of_side in ((SERVER, beside), (CLIENT, beside / CLIENT)):
            of_side.mkdir(mode=0o700, parents=True)
            _write(of_side / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
            _write_pair(of_side, side, name, key)
        for path in beside.rglob("*"):
            sync(path)
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def ensure_credentials(folder: Path, run_name: str) -> None:
    """Makes the run's credentials unless they exist.

    Raises:
      UserError: They can't be written.
    """
    if folder.exists():
        return
    try:
        make_credentials(folder, run_name)
    except OSError as error:
        if not folder.exists():  # Otherwise another process was faster.
            raise UserError(f"{folder} can't be made: {error.strerror}: make its parent writable") from None


def folder_of_client(folder: Path) -> Path:
    """Where those of who joins are: in `folder` itself, or in the run's own folder."""
    own = folder / CLIENT
    return own if own.is_dir() else folder


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS of the gateway: it accepts only clients with a certificate of this authority.

    Raises:
      UserError: With all findings about the files.
    """
    if findings := check_credentials(folder, SERVER):
        raise UserError(*findings)
    context = tls_context(ssl.PROTOCOL_TLS_SERVER, folder, SERVER)
    context.num_tickets = 0  # type: ignore[attr-defined]  # No session resumption: every connection authenticates.
    return context


def server_name(folder: Path, host: str) -> str:
    """The name that the gateway's certificate must bear: for certificates of the user's own, the host's."""
    organization = _load(folder / "ca.pem").subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return _SERVER_NAME if [name.value for name in organization] == [_OURS] else host


def check_credentials(folder: Path, side: str) -> list[str]:
    """What is wrong with the files of one side, a sentence each; empty if nothing is.

    Args:
      folder: With the files.
      side: SERVER or CLIENT.
    """
    if not folder.is_dir():
        return [f"SAC_CREDENTIALS_DIR={folder} is no folder: give the one with ca.pem, {side}.pem and {side}.key"]
    key = folder / f"{side}.key"
    missing = [name for name in ("ca.pem", f"{side}.pem", key.name) if not (folder / name).is_file()]
    if missing:
        remedy = COPY_CLIENT if side == CLIENT else "copy the run's there, or unset SAC_CREDENTIALS_DIR"
        return [f"{folder} lacks {', '.join(missing)}: {remedy}"]
    findings = []
    if problem := _others_may(key.stat(), 0o077):
        findings.append(f"{key} {problem}: chmod 600 {key}")
    if problem := _others_may(folder.stat(), 0o022):
        findings.append(f"{folder} {problem}: chmod 700 {folder}")
    try:
        tls_context(_PROTOCOLS[side], folder, side)
        for name in ("ca.pem", f"{side}.pem"):
            findings += _check_dates(folder / name)
    except (OSError, ValueError) as error:
        findings.append(f"ca.pem, {side}.pem and {key.name} in {folder} do not fit ({describe(error)}): copy all anew")
    return findings


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
        raise UserError(f"SAC_PASSWORD_FILE={path} can't be read ({getattr(error, 'strerror', error)})") from None
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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=_CLOCK_DAYS))
        .not_valid_after(_now() + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
    )


def _write_pair(folder: Path, side: str, issuer: x509.Name, issuer_key: ec.EllipticCurvePrivateKey) -> None:
    """A certificate of a side, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, side)])
    certificate = (
        _builder(subject, issuer, key, issuer_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        # A joining machine can't pose as the gateway, nor the gateway as one.
        .add_extension(x509.ExtendedKeyUsage([_USES[side]]), True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_SERVER_NAME)]), False)
        .sign(issuer_key, hashes.SHA256())
    )
    _write(folder / f"{side}.pem", certificate.public_bytes(serialization.Encoding.PEM))
    encoding, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(folder / f"{side}.key", key.private_bytes(serialization.Encoding.PEM, encoding, plain))


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, content, 0o600)


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _others_may(rights: os.stat_result, forbidden: int) -> str:
    """What others may do with a file that must be private; empty if nothing is wrong."""
    if rights.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {rights.st_uid})"
    if stat.S_IMODE(rights.st_mode) & forbidden:
        what = "read" if forbidden & 0o044 else "changed"
        return f"can be {what} by others (mode {stat.S_IMODE(rights.st_mode):03o})"
    return ""


def _check_dates(path: Path) -> list[str]:
    first, last, now = _load(path).not_valid_before_utc, _load(path).not_valid_after_utc, _now()
    if now > last:
        return [
            f"{path} expired on {last:%Y-%m-%d}: move the run's folder of credentials away, so that its next start "
            "makes new ones, and copy these to the other machines"
        ]
    if now < first:
        return [
            f"{path} is valid from {first:%Y-%m-%d %H:%M} UTC, it is {now:%Y-%m-%d %H:%M}: set this machine's clock"
        ]
    return []


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
