"""Keys of a federation, by openssl and ssh-keygen: the server's certificate, and a key for each client.

A folder of certificates has ca.crt, server.crt and server.key. An institution that issues certificates fills
it itself. Otherwise the server's certificate is made here and signs itself, so ca.crt is a copy of it.
"""

from __future__ import annotations

import ipaddress
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jaxfed.errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ROOT, SERVER, SERVER_KEY = "ca.crt", "server.crt", "server.key"
_DAYS = "397"
_SECONDS_LEFT = "0"  # of a certificate that is used


def make_server_certificate(folder: Path, names: Sequence[str]) -> None:
    """Make a server's key and certificate for these host names and addresses, unless they are there."""
    certificate, root = folder / SERVER, folder / ROOT
    if root.exists():
        check_private(folder / SERVER_KEY)
        _run("openssl", "x509", "-checkend", _SECONDS_LEFT, "-noout", "-in", certificate)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = ",".join(map(_alternative, dict.fromkeys([*names, *LOOPBACK])))
    _run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"),
        *("-nodes", "-days", _DAYS, "-keyout", folder / SERVER_KEY, "-out", certificate),
        *("-subj", "/CN=jaxfed server", "-addext", f"subjectAltName={wanted}"),
        *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
        *("-addext", "extendedKeyUsage=serverAuth"),
    )
    shutil.copyfile(certificate, root)  # last: a start that was killed before begins anew


def make_node_key(private: Path) -> Path:
    """Make a client's key pair, P-384 in OpenSSH's format, unless it is there; return the public file."""
    public = private.with_name(f"{private.name}.pub")
    if not private.exists():
        private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run(
            "ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "jaxfed", "-f", private
        )
    return public


def check_private(key: Path) -> None:
    """Refuse a private key that others can read."""
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        raise UsageError(f"{key}: others can read this private key; chmod 600 {key}")


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        if not name.replace("-", "").replace(".", "").isalnum():
            raise UsageError(f"--name={name}: use a host name or an IP address") from None
        return f"DNS:{name}"


def _run(*command: str | Path) -> None:
    """Run a program; what it refuses is one line."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT, text=True, umask=0o077
        )
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} is missing; install it, or bring keys of your own"
        ) from None
    if done.returncode:
        said = done.stdout.strip().splitlines() or ["it failed"]
        raise UsageError(f"{command[0]} {command[1]} ... {command[-1]}: {said[-1]}")
