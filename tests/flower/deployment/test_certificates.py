"""Certificates that TLS clients accept for their names alone, and keys that only their owner reads."""

import datetime
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from jaxfed.errors import UsageError
from jaxfed.flower.deployment import certificates


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def handshake(server, authority, name):
    """The client's error, or None: one TLS handshake between two ends of a socket pair."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server.public, server.private)
    here = ssl.create_default_context(cafile=authority.public)
    ends = socket.socketpair()

    def serve():
        try:
            there.wrap_socket(ends[1], server_side=True).close()
        except OSError:
            ends[1].close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        here.wrap_socket(ends[0], server_hostname=name).close()
    except OSError as error:
        return error
    finally:
        ends[0].close()
        thread.join()
    return None


def test_a_client_trusts_the_server_by_its_names_alone(tmp_path):
    authority = certificates.make_authority(tmp_path / "keys")
    names = ["fl.example.org", "192.0.2.7"]
    server = certificates.make_server_certificate(authority, tmp_path / "keys", names)
    assert mode(authority.private) == mode(server.private) == 0o600
    for name in (*names, "localhost", "127.0.0.1"):
        assert handshake(server, authority, name) is None
    assert "Hostname mismatch" in str(handshake(server, authority, "other.example.org"))
    stranger = certificates.make_authority(tmp_path / "other")
    assert "verify failed" in str(handshake(server, stranger, "localhost"))
    certificates.check_certificate(authority.public)


def test_valid_files_are_kept_and_others_made_again(tmp_path):
    authority = certificates.make_authority(tmp_path)
    server = certificates.make_server_certificate(authority, tmp_path, ["a.org"])
    before = [path.read_bytes() for path in (*authority, *server)]
    certificates.make_authority(tmp_path)
    certificates.make_server_certificate(authority, tmp_path, ["a.org"])
    assert [path.read_bytes() for path in (*authority, *server)] == before
    certificates.make_server_certificate(authority, tmp_path, ["b.org"])
    assert handshake(server, authority, "b.org") is None
    other = certificates.make_authority(tmp_path / "other")
    for is_lost in (False, True):
        if is_lost:
            server.private.unlink()
        certificates.make_server_certificate(other, tmp_path, ["b.org"])
        assert handshake(server, other, "b.org") is None


class Killed(BaseException):
    """Nothing cleans up."""


def test_keys_of_a_start_that_was_killed_at_any_write(tmp_path, monkeypatch):
    """The next start makes what is missing, and clients with the first ca.crt trust its server."""

    def start(folder):
        authority = certificates.make_authority(folder)
        certificates.make_node_key(folder / "node.key")
        return authority, certificates.make_server_certificate(authority, folder, ["a.org"])

    replace, left = Path.replace, [0]

    def replace_or_die(self, target):
        left[0] -= 1
        if not left[0]:
            raise Killed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_or_die)
    for number in range(1, 8):
        left[0] = number
        folder = tmp_path / str(number)
        try:
            start(folder)
        except Killed:
            left[0] = 0
            authority, server = start(folder)
            assert handshake(server, authority, "a.org") is None
        else:
            assert number == 7  # six files
    left[0] = 0
    authority, server = start(tmp_path / "8")
    first = authority.public.read_bytes()
    authority.public.unlink()
    certificates.make_authority(tmp_path / "8")
    assert authority.public.read_bytes() != first
    authority.public.write_bytes(first)
    assert handshake(server, authority, "a.org") is None


def test_an_expired_authority_is_refused_by_server_and_client(tmp_path, monkeypatch):
    authority, today = certificates.make_authority(tmp_path), certificates._now()
    monkeypatch.setattr(certificates, "_now", lambda: today + datetime.timedelta(days=3651))
    for entrance in (
        lambda: certificates.make_authority(tmp_path),
        lambda: certificates.check_certificate(authority.public),
    ):
        with pytest.raises(UsageError, match=r"ca\.crt: the certificate expired on \d.*new one"):
            entrance()


def test_damaged_files_are_named(tmp_path):
    authority = certificates.make_authority(tmp_path)
    other = certificates.make_authority(tmp_path / "other")
    authority.public.write_bytes(other.public.read_bytes())
    with pytest.raises(UsageError, match=r"ca\.key: not the key of"):
        certificates.make_authority(tmp_path)
    authority.public.write_text("x")
    with pytest.raises(UsageError, match=r"ca\.crt: not a certificate"):
        certificates.make_authority(tmp_path)
    authority.public.unlink()
    certificates.make_authority(tmp_path)
    authority.private.unlink()
    with pytest.raises(UsageError, match=r"ca\.key: No such file"):
        certificates.make_authority(tmp_path)
    key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    content = other.private.read_bytes()
    other.private.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    with pytest.raises(UsageError, match=r"ca\.key: not a key on an elliptic curve"):
        certificates.make_authority(tmp_path / "other")
    other.private.write_bytes(content)
    other.private.chmod(0o640)
    with pytest.raises(UsageError, match="others can read this private key; chmod 600"):
        certificates.make_authority(tmp_path / "other")


def test_a_node_key_is_of_the_form_that_flower_reads(tmp_path):
    pair = certificates.make_node_key(tmp_path / "north.key")
    assert (pair.public.name, mode(pair.private)) == ("north.key.pub", 0o600)
    public = serialization.load_ssh_public_key(pair.public.read_bytes())
    assert public == certificates.read_node_key(pair.private).public_key()
    assert public.curve.name == "secp384r1"
    pair.public.unlink()
    certificates.make_node_key(pair.private)
    assert serialization.load_ssh_public_key(pair.public.read_bytes()) == public
    pair.private.write_text("x")
    with pytest.raises(UsageError, match="not an unencrypted private key in OpenSSH's format"):
        certificates.read_node_key(pair.private)


def test_public_keys_of_a_folder(tmp_path):
    pairs = [certificates.make_node_key(tmp_path / f"{name}.key") for name in "ab"]
    assert certificates.public_keys(tmp_path) == tuple(pair.public for pair in pairs)
    pairs[1].public.write_bytes(pairs[0].public.read_bytes())
    with pytest.raises(UsageError, match=r"b\.key\.pub: the same key as .*a\.key\.pub"):
        certificates.public_keys(tmp_path)
    pairs[1].public.write_text("ssh-rsa AAAA")
    with pytest.raises(UsageError, match="not an ECDSA public key"):
        certificates.public_keys(tmp_path)
    with pytest.raises(UsageError, match="no public keys"):
        certificates.public_keys(tmp_path / "none")
