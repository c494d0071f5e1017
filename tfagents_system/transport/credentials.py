"""Who may join a run: certificates and a password.

    <exp_dir>/credentials (0700), or SAC_CREDENTIALS_DIR
      ca.pem                    the only authority that both sides trust; its key is not kept
      server.pem, server.key    of the gateway
      client/                   ca.pem, client.pem and client.key of those who join

A machine that can't read the folder needs a copy of `client`. Your own certificates use the same names: ca.pem,
server.pem and server.key here, ca.pem, client.pem and client.key there.
"""

from __future__ import annotations

import contextlib
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
from tfagents_system.transport.tunnel import tls_context

SERVER, CLIENT = "server", "client"
MIN_PASSWORD_CHARS = 12
_MAX_PASSWORD_CHARS = 1000
_OURS = "tfagents_system"  # The organization in certificates that were made here.
_SERVER_NAME = "gateway.tfagents-system.invalid"  # In those certificates: they are valid at any address.
_VALID_DAYS = 730
COPY_CLIENT = "copy the folder credentials/client of the run directory from the run's machine"
_CLOCK_DAYS = 1  # Clocks of other machines may be behind.
_KEY_RIGHTS, _FOLDER_RIGHTS = 0o600, 0o700


def make_credentials(folder: Path, run_name: str) -> None:
    """Makes a certificate authority and the certificates of both sides; the folder is complete or absent.

    Raises:
      OSError: It can't be written, or already exists.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=_FOLDER_RIGHTS, parents=True)
    try:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate(f"{run_name} authority", authority_key, None, authority_key)
        _write(beside / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
        _write_pair(beside, SERVER, authority, authority_key)
        client = beside / CLIENT
        client.mkdir(mode=_FOLDER_RIGHTS)
        _write(client / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
        _write_pair(client, CLIENT, authority, authority_key)
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
    organization = _load(folder / "ca.pem")[0].subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return _SERVER_NAME if [name.value for name in organization] == [_OURS] else host


def check_credentials(folder: Path, side: str) -> list[str]:
    """What is wrong with the files of one side, a sentence each; empty if nothing is.

    Args:
      folder: With the files.
      side: SERVER or CLIENT.
    """
    if not folder.is_dir():
        return [f"SAC_CREDENTIALS_DIR={folder} is no folder: give the one with ca.pem, {side}.pem and {side}.key"]
    files = {name: folder / name for name in ("ca.pem", f"{side}.pem", f"{side}.key")}
    missing = [name for name, path in files.items() if not path.is_file()]
    if missing:
        remedy = COPY_CLIENT if side == CLIENT else "copy the run's there, or unset SAC_CREDENTIALS_DIR"
        return [f"{folder} lacks {', '.join(missing)}: {remedy}"]
    findings = _check_rights(folder, files[f"{side}.key"])
    authorities, chain = [], []  # type: tuple[list[x509.Certificate], list[x509.Certificate]]
    try:
        authorities, chain = _load(files["ca.pem"]), _load(files[f"{side}.pem"])
    except (OSError, ValueError) as error:
        return [*findings, f"{folder} has no certificates in ca.pem or {side}.pem: {error}"]
    findings += _check_dates(files["ca.pem"], authorities[0])
    findings += _check_dates(files[f"{side}.pem"], chain[0])
    if chain[-1].issuer not in [authority.subject for authority in authorities]:
        findings.append(
            f"{files[f'{side}.pem']} is of the authority {_name(chain[-1].issuer)!r}, but ca.pem has "
            f"{', '.join(repr(_name(a.subject)) for a in authorities)}: they are of different runs, copy both anew"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files[f"{side}.pem"], files[f"{side}.key"])
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        findings.append(f"{files[f'{side}.key']} is not the key of {side}.pem ({reason}): copy both anew")
    return findings


def days_left(folder: Path, side: str) -> int:
    """Time until the first of one side's certificates expires."""
    end = min(_load(folder / name)[0].not_valid_after_utc for name in ("ca.pem", f"{side}.pem"))
    return (end - _now()).days


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


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    authority_key: ec.EllipticCurvePrivateKey,
    side: str = "",
) -> x509.Certificate:
    """A certificate for one side, signed by `authority`; None makes an authority."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, _OURS), x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(days=_CLOCK_DAYS))
        .not_valid_after(_now() + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=0 if authority is None else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False)
    )
    if authority is not None:
        # A joining machine can't pose as the gateway, nor the gateway as one.
        usage = ExtendedKeyUsageOID.SERVER_AUTH if side == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), True)
        names = x509.SubjectAlternativeName([x509.DNSName(_SERVER_NAME if side == SERVER else "client.invalid")])
        builder = builder.add_extension(names, False)
    return builder.sign(authority_key, hashes.SHA256())


def _write_pair(
    folder: Path, side: str, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> None:
    """A certificate of a side, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(side, key, authority, authority_key, side)
    _write(folder / f"{side}.pem", certificate.public_bytes(serialization.Encoding.PEM))
    encoding, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(folder / f"{side}.key", key.private_bytes(serialization.Encoding.PEM, encoding, plain))


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _KEY_RIGHTS), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _load(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _check_rights(folder: Path, key: Path) -> list[str]:
    findings = []
    with contextlib.suppress(FileNotFoundError):
        if problem := _others_may(key.stat(), 0o077):
            findings.append(f"{key} {problem}: chmod 600 {key}")
        if problem := _others_may(folder.stat(), 0o022):
            findings.append(f"{folder} {problem}: chmod 700 {folder}")
    return findings


def _others_may(rights: os.stat_result, forbidden: int) -> str:
    """What others may do with a file that must be private; empty if nothing is wrong."""
    if rights.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {rights.st_uid})"
    if stat.S_IMODE(rights.st_mode) & forbidden:
        what = "read" if forbidden & 0o044 else "changed"
        return f"can be {what} by others (mode {stat.S_IMODE(rights.st_mode):03o})"
    return ""


def _check_dates(path: Path, certificate: x509.Certificate) -> list[str]:
    first, last, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, _now()
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


def _name(name: x509.Name) -> str:
    return name.rfc4514_string()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
