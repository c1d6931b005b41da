"""What a network's commands, files and records refuse."""

import json
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import refusals
from invoking import DIGITS

from jaxfed.config import base
from jaxfed.flower.deployment import commands, programs, trial
from jaxfed.flower.messages import pytrees, records
from jaxfed.flower.messages.records import BadMessage
from launch import flower

CONFIG, AT_PORT = (f"--config={DIGITS}", "--workdir=W"), "--port=1"


def said(*arguments):
    call = refusals.launched(flower.main, *arguments)

    def called():
        with mock.patch.object(programs, "check_flower"):
            call()

    return called


def taking_part():
    """A client's command; its folder is whole."""
    place = Path("client")
    place.mkdir(mode=0o700)
    (place / "client.toml").write_text('number = 0\nname = "north"\n')
    np.savez(place / "train.npz", x=np.ones((4, 3), np.float32), y=[0, 1, -1, -1])
    paths = {"root": Path("none.crt"), "key": Path("a.key")}
    commands.take_part(place, "fl.example.org:1", apps=(), **paths)


def labels_at_the_server():
    config = base.get_config()
    config.federation.labels_at = "server"
    trial.deal(config, Path("nodes"), Path("server"))


def a_key_that_flower_refuses():
    refusing = ["sh", "-c", "echo known already; exit 1"]
    with mock.patch.object(programs, "_flwr", return_value=refusing):
        programs._register(Path("a.pub"), {}, print)


COMMANDS = {
    "a command is missing: use one of try, server, client": said(),
    "serve: use one of try": said("serve"),
    "--config.seed=1: a client has no config": said("client", "--config.seed=1"),
    "--config is missing": said("try", "--workdir=W"),
    "--workdir is missing": said("try", f"--config={DIGITS}"),
    "--port is missing": said("server", *CONFIG),
    "--nodes is missing": said("server", *CONFIG, AT_PORT),
    "--held is missing": said("server", *CONFIG, AT_PORT, "--nodes=keys"),
    "--key is missing": said("client", "--data=d", "--server=x:1", "--ca=a"),
    "...d: no such folder": said("client", "--data=d", "--server=x:1", "--ca=a", "--key=b"),
    "--ca=none.crt: no such file": taking_part,
    "openssl req ...serverAuth: ": lambda: programs.make_server_certificate(Path("k"), ["a,b"]),
    "config.federation.labels_at='server': ...use 'clients'": labels_at_the_server,
}

HEADS = [b"", b"{}}", b"\xff", b"3", b"[3]", b"[[]]", b'[["a", 1]]', b"[" * 100_000]
HEADS += [b'{"b":1,"a":1}', b'{"a":1,"a":1}', b'{"a": 1}', b'{"a":1e0}', b'{"a":null}', b'{"a":{}}']
ENTRIES = [
    *(["bytes", size] for size in ([-1], [True], [1.0], [1], 0, [0, 0])),
    *(["float32", shape] for shape in ([-1, 0], 0, [1], [10**30, 0], [10**30], "0", [0] * 100)),
    *(["pickle", [0]], ["object", []], [["float32"], [0]], [1], ["bytes", [0], 1]),
]
HEADS += [json.dumps({"a": entry}, separators=(",", ":")).encode() for entry in ENTRIES]


def form(**record):
    template = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
    return lambda: pytrees.from_record(record, template)


def plain(value, template):
    return partial(pytrees.from_record, {"n": value}, {"n": template})


W = np.zeros(2, np.float32)
RECORDS = {
    **{
        f"...  {number} {head[:40]!r}": partial(records.decode, head, b"")
        for number, head in enumerate(HEADS)
    },
    "w is missing": form(),
    "v is unexpected": form(w=W, v=1),
    "w is float32 [3], not float32 [2]": form(w=np.zeros(3, np.float32)),
    "w is float64 [2], not float32 [2]": form(w=np.zeros(2)),
    "w is bytes, not float32 [2]": form(w=b"01234567"),
    "w is not finite": form(w=np.float32([0, np.nan])),
    "w is not finite  inf": form(w=np.float32([0, np.inf])),
    "n is  True": plain(True, 1),
    "n is  1": plain(1, True),
    "n is  1 for 1.0": plain(1, 1.0),
    "n is  1.0": plain(1.0, 1),
    "n is  text": plain("a", b"a"),
    "n is  array": plain(np.zeros(()), 1.0),
    "n is  nan": plain(float("nan"), 1.0),
}
UNSENT = [None, [1], np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]"), np.float32(1)]

test_commands = refusals.table(COMMANDS)
test_keys = refusals.table(
    {"a.pub: Flower refuses it: known already": a_key_that_flower_refuses},
    programs.DeploymentError,
)
test_records = refusals.table(RECORDS, BadMessage)
test_values_that_cannot_be_sent = refusals.table(
    {f"x: ...cannot be sent  {value!r}": partial(records.encode, {"x": value}) for value in UNSENT},
    TypeError,
)
