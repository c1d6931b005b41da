"""Keys and certificates of a federation: a certificate authority, the server's certificate, nodes' keys.

    authority = make_authority(folder)                              # ca.crt, ca.key
    server = make_server_certificate(authority, folder, ["example.org"])    # server.crt, server.key
    key = make_node_key(folder / "hospital.key")                    # and hospital.key.pub, for the server

Clients trust a server whose certificate the authority signed: they need ca.crt. A server knows its clients by
their public keys. Private keys have mode 0600; existing files are kept as long as they are valid.
"""

from __future__ import annotations

import datetime
import ipaddress
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jaxfed.errors import UsageError
from jaxfed.flower.client.client_data import write_private
from jaxfed.host.storage import whole_file

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_CURVE = ec.SECP384R1()
_DAYS_OF_AUTHORITY, _DAYS_OF_SERVER = 3650, 397
_DAYS_TO_RENEW = 30
_CLOCK_SKEW = datetime.timedelta(minutes=5)


class Pair(NamedTuple):
    """Files of a certificate or a public key, and of its private key."""

    public: Path
    private: Path


def make_authority(folder: Path) -> Pair:
    """Make a certificate authority in a folder, or return the one there.

    A missing certificate is made again for the key: a start may have been killed between the two.

    Raises:
        UsageError: one of its two files is damaged, expired, or does not belong to the other.
    """
    pair = Pair(folder / "ca.crt", folder / "ca.key")
    if pair.public.exists():
        check_certificate(pair.public)
        _read_pair(pair)
        return pair
    key = _read_or_make_key(pair.private)
    subject = _name("jaxfed certificate authority")
    certificate = (
        _draft(subject, subject, key.public_key(), _DAYS_OF_AUTHORITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    _write_certificate(pair.public, certificate)
    return pair


def make_server_certificate(authority: Pair, folder: Path, names: Sequence[str]) -> Pair:
    """Make a certificate for a server, or return a valid one for the same names.

    Args:
        authority: signs it.
        folder: gets server.crt and server.key.
        names: host names and IP addresses under which clients reach the server; loopback is added.

    Raises:
        UsageError: a name that cannot be one; damaged files.
    """
    pair = Pair(folder / "server.crt", folder / "server.key")
    wanted = tuple(dict.fromkeys([*names, *LOOPBACK]))
    alternatives = list(map(_san, wanted))
    signer, signing_key = _read_pair(authority)
    key = _read_or_make_key(pair.private)
    if pair.public.exists():
        certificate = _read_certificate(pair.public)
        is_of_key = certificate.public_key() == key.public_key()
        if is_of_key and _is_current(certificate, signer, alternatives):
            return pair
    certificate = (
        _draft(_name(wanted[0]), signer.subject, key.public_key(), _DAYS_OF_SERVER)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
        .sign(signing_key, hashes.SHA384())
    )
    _write_certificate(pair.public, certificate)
    return pair


def make_node_key(private: Path) -> Pair:
    """Make the key pair of a client's node, P-384 in OpenSSH's format, or return the one there.

    The public key is in the file of the same name with `.pub` added. It is written again if it is missing.

    Raises:
        UsageError: the private key is damaged, encrypted, of another kind, or readable by others.
    """
    pair = Pair(private.with_name(f"{private.name}.pub"), private)
    if private.exists():
        key = read_node_key(private)
    else:
        private.parent.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(_CURVE)
        encoding = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
        write_private(private, key.private_bytes(*encoding, serialization.NoEncryption()))
    if not pair.public.exists():
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        with whole_file(pair.public, "wb") as stream:
            stream.write(key.public_key().public_bytes(*form) + b"\n")
    return pair


def read_node_key(private: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key.

    Raises:
        UsageError: as `make_node_key`.
    """
    _check_private(private)
    content = _read(private)
    try:
        key = serialization.load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wrong = f"{private}: not an unencrypted private key in OpenSSH's format"
        raise UsageError(f"{wrong}; ssh-keygen -t ecdsa -b 384 -N '' makes one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{private}: not an ECDSA key; ssh-keygen -t ecdsa -b 384 makes one")
    return key


def public_keys(place: Path) -> tuple[Path, ...]:
    """Return the public keys of nodes: a file, or all files *.pub of a folder, each checked and different.

    Raises:
        UsageError: there are none, one is no ECDSA key in OpenSSH's format, or two are the same.
    """
    files = sorted(place.glob("*.pub")) if place.is_dir() else [place]
    if not files or not files[0].exists():
        raise UsageError(f"{place}: no public keys; use a folder of files *.pub, one a client")
    found: dict[bytes, Path] = {}
    for file in files:
        words = _read(file).split()
        try:
            key = serialization.load_ssh_public_key(b" ".join(words[:2]))
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UsageError(f"{file}: not an ECDSA public key in OpenSSH's format")
        if words[1] in found:
            raise UsageError(
                f"{file}: the same key as {found[words[1]]}; each client needs its own"
            )
        found[words[1]] = file
    return tuple(files)


def check_certificate(file: Path) -> None:
    """Check that a file is a certificate that has not expired.

    Raises:
        UsageError: it is missing, damaged or expired.
    """
    expires = _read_certificate(file).not_valid_after_utc
    if expires <= _now():
        raise UsageError(f"{file}: the certificate expired on {expires:%Y-%m-%d}; make a new one")


def _draft(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCK_SKEW)
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    is_host = name.isascii() and all(
        part and part.replace("-", "").isalnum() for part in name.removeprefix("*.").split(".")
    )
    if not is_host:
        raise UsageError(f"{name!r} is no host name or IP address")
    return x509.DNSName(name)


def _is_current(
    certificate: x509.Certificate, signer: x509.Certificate, names: Sequence[x509.GeneralName]
) -> bool:
    """True if the authority signed a certificate for these names that is valid for a month."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    month = _now() + datetime.timedelta(days=_DAYS_TO_RENEW)
    return set(found) == set(names) and certificate.not_valid_after_utc > month


def _write_certificate(file: Path, certificate: x509.Certificate) -> None:
    with whole_file(file, "wb") as stream:
        stream.write(certificate.public_bytes(serialization.Encoding.PEM))


def _read_or_make_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key, or make it."""
    if file.exists():
        return _read_key(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(_CURVE)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_private(file, key.private_bytes(*form, serialization.NoEncryption()))
    return key


def _read_pair(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = _read_certificate(pair.public), _read_key(pair.private)
    if key.public_key() != certificate.public_key():
        raise UsageError(f"{pair.private}: not the key of {pair.public}; restore the matching file")
    return certificate, key


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    _check_private(file)
    content = _read(file)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{file}: not a private key in PEM format") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{file}: not a key on an elliptic curve")
    return key


def _read_certificate(file: Path) -> x509.Certificate:
    content = _read(file)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise UsageError(f"{file}: not a certificate in PEM format") from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error


def _check_private(file: Path) -> None:
    """Refuse a private key that others can read, as ssh does."""
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0
    if mode & 0o077:
        raise UsageError(f"{file}: others can read this private key; chmod 600 {file}")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
