"""Certificates that TLS clients accept for their names alone, and keys that only their owner reads."""

import socket
import ssl
import stat
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from jaxfed.errors import UsageError
from jaxfed.flower.deployment import certificates


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def handshake(folder, root, name):
    """The client's error, or None: one TLS handshake between two ends of a socket pair."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(folder / "server.crt", folder / "server.key")
    here = ssl.create_default_context(cafile=root)
    here.verify_flags |= ssl.VERIFY_X509_STRICT  # as newer Pythons have it
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
    keys, other = tmp_path / "keys", tmp_path / "other"
    names = ["fl.example.org", "192.0.2.7"]
    certificates.make_server_certificate(keys, names)
    certificates.make_server_certificate(other, names)
    assert (mode(keys), mode(keys / "server.key")) == (0o700, 0o600)
    for name in (*names, "localhost", "127.0.0.1"):
        assert handshake(keys, keys / "ca.crt", name) is None
    assert "Hostname mismatch" in str(handshake(keys, keys / "ca.crt", "other.example.org"))
    assert "verify failed" in str(handshake(keys, other / "ca.crt", "localhost"))


def test_files_that_are_there_are_kept(tmp_path):
    certificates.make_server_certificate(tmp_path, [])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    certificates.make_server_certificate(tmp_path, ["x.org"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "ca.crt").unlink()  # of a start that was killed
    certificates.make_server_certificate(tmp_path, ["x.org"])
    assert handshake(tmp_path, tmp_path / "ca.crt", "x.org") is None


def test_an_expired_certificate_is_refused_by_the_server(tmp_path, monkeypatch):
    certificates.make_server_certificate(tmp_path, [])
    monkeypatch.setattr(certificates, "_SECONDS_LEFT", str(398 * 24 * 3600))  # a year later
    with pytest.raises(UsageError, match="will expire"):
        certificates.make_server_certificate(tmp_path, [])


def test_a_clients_key_is_one_that_flower_takes(tmp_path):
    public = certificates.make_node_key(tmp_path / "keys" / "north.key")
    assert public == certificates.make_node_key(tmp_path / "keys" / "north.key")
    assert mode(public.with_suffix("")) == 0o600
    read = serialization.load_ssh_public_key(public.read_bytes())
    assert isinstance(read, ec.EllipticCurvePublicKey)


def test_a_private_key_that_others_can_read_is_refused(tmp_path):
    certificates.make_server_certificate(tmp_path, [])
    (tmp_path / "server.key").chmod(0o640)
    with pytest.raises(UsageError, match="others can read this private key; chmod 600"):
        certificates.make_server_certificate(tmp_path, [])


def test_a_missing_program_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="openssl is missing; install it, or bring"):
        certificates.make_server_certificate(tmp_path / "keys", [])
