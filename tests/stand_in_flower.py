"""Stand-ins of flower-superlink and flower-supernode: one script, and a control that talks to it.

They take the arguments of the real ones, start a child in a session of its own as these do, and need some
hundredths of a second.
"""

import argparse
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

CHILD = "import time; time.sleep(600)"


def programs(*options):
    """Commands; options are `--link-fails`, `--node-fails`, `--stubborn`."""
    from jaxfed.flower.deployment.local import (
        Programs,  # here: the script itself starts without jaxfed
    )

    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import stand_in_flower"
    python = (sys.executable, "-S", "-c")
    return Programs(
        *(
            (*python, f"{here}; stand_in_flower.{name}(sys.argv[1:])", *options)
            for name in ("link", "node")
        )
    )


def arguments(given, *names):
    parser = argparse.ArgumentParser()
    for name in (*names, "--host", "--port"):
        parser.add_argument(name)
    for name in ("--link-fails", "--node-fails", "--stubborn", "--insecure"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--enable-supernode-auth", action="store_true")
    parser.add_argument("--disable-runtime-dependency-installation", action="store_true")
    found = parser.parse_args(given)
    subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True)
    if found.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return found


def link(given):
    """Serve: each request is a line of JSON; a node's connection stays open as long as it lives."""
    found = arguments(given, "--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
    if found.link_fails:
        sys.exit("no link today")
    registered, online, runs = {}, set(), []

    class Requests(socketserver.StreamRequestHandler):
        def handle(self):
            asked = json.loads(self.rfile.readline())
            match asked["do"]:
                case "register":
                    answer = registered.setdefault(asked["key"], 100 + len(registered))
                case "online":
                    answer = sorted(online)
                case "submit":
                    runs.append((time.monotonic(), asked["settings"]))
                    answer = len(runs)
                case "status":
                    began, settings = runs[asked["run"] - 1]
                    is_over = time.monotonic() - began > settings.get("seconds", 0.3)
                    answer = ["finished", settings.get("outcome", "completed")]
                    answer = answer if is_over else ["running"]
                case "node":
                    number = registered.get(asked["key"], 0 if found.enable_supernode_auth else 1)
                    if number:
                        online.add(number)
                        self.rfile.read()
                        online.discard(number)
                    return
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    print("environment", json.dumps({k: v for k, v in os.environ.items() if k[:4] == "FLWR"}))
    sys.stdout.flush()
    with socketserver.ThreadingTCPServer((found.host, int(found.port)), Requests) as server:
        server.daemon_threads = True
        server.serve_forever()


def node(given):
    """Connect and stay."""
    found = arguments(
        given, "--superlink", "--node-config", "--root-certificates", "--auth-supernode-private-key"
    )
    if found.node_fails:
        sys.exit("no node today")
    host, _, port = found.superlink.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        key = found.auth_supernode_private_key
        text = Path(f"{key}.pub").read_text() if key else ""
        connection.sendall(json.dumps({"do": "node", "key": text}).encode() + b"\n")
        print("connected", found.node_config, flush=True)
        threading.Event().wait()


class Control:
    """`jaxfed.flower.deployment.control.Controls` of a stand-in link."""

    def __init__(self, address, root_certificate):
        self.address, self.root = address, root_certificate

    def _ask(self, **asked):
        from jaxfed.flower.deployment.processes import DeploymentError

        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(json.dumps(asked).encode() + b"\n")
                return json.loads(connection.makefile().readline())
        except (OSError, ValueError) as error:
            raise DeploymentError(f"the SuperLink does not answer: {error}") from error

    def register(self, public_key):
        return self._ask(do="register", key=public_key.read_text())

    def online(self):
        return set(self._ask(do="online"))

    def submit(self, app, settings):
        return self._ask(do="submit", settings=dict(settings))

    def status(self, run):
        from jaxfed.flower.deployment.control import Status

        return Status(*self._ask(do="status", run=run))

    def output(self, run):
        yield "round 1 "
        yield "of 2\nround 2"

    def stop(self, run):
        pass

    def close(self):
        pass
