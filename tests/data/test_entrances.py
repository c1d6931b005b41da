"""One table of wrong examples and labels over all places where a caller gives some."""

from functools import partial

import jax
import numpy as np
import pandas
import pytest

from jaxfed import Training
from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.data.dataset import ArrayEncoder
from jaxfed.data.packing import pack
from jaxfed.errors import UsageError
from jaxfed.experiment.run.simulate import Simulated
from jaxfed.federation.clients import Federation
from jaxfed.learners import network
from jaxfed.models.mlp import mlp
from jaxfed.training.specification import ServerTraining
from jaxfed.xclp.inputs import checked

C = 3
RNG = np.random.default_rng(0)
Y = np.arange(12) % C
X = (np.eye(C)[Y] + RNG.normal(size=(12, C))).astype(np.float32)
SHARES = RNG.random((12, 4, 4, 1), np.float32)  # grey images
TRAINING = Training(mlp((C,), C, hidden=(4,)))
FIRST = ("clients", "validation", "test", "new", "server", "public")


def federation(x=X):
    return Federation.from_clients([(x, Y), (x, -np.ones(12, int))], num_classes=C)


def given(function, name, x, y, good):
    """Give the pair as the second client, as its new points, or as an argument."""
    clients = [(good, Y), (x, y)] if name == "clients" else [(good, Y)]
    others = {} if name == "clients" else {name: [(x, y)] if name == "new" else (x, y)}
    return function(clients, num_classes=C, **others)


def packed(clients, folder=None, **others):
    return pack(clients, folder, **others)


def of_server(x, y, good):
    whole = Federation.from_clients([(good, -np.ones(12, int))], server=(good, Y))
    training = Training(TRAINING.model, server=ServerTraining(examples=(x, y)))
    return fedavg(training=training, pseudo_label="network").init(jax.random.key(0), whole)


LEARNT = ("fedct", "dsfl", "pate", "fedmd", "distributed_distillation")  # from public examples


def of_public(method, x, y, good, *, training=TRAINING, num_classes=C):
    networks = partial(network, training=training)
    given = {
        "fedct": {"learner": networks()},
        "pate": {"learner": networks(), "server_learner": networks()},
        "fedmd": {"network": networks, "public_labels": y},
    }.get(method, {"network": networks})
    made = ALGORITHMS[method](public=x, num_classes=num_classes, **given)
    return made.init(jax.random.key(0), federation(good))


def of_labeling(x, y, good):
    return checked([good, x], [Y, y], C)


def of_prediction(x, y, good):
    algorithm = fedavg(training=TRAINING)._replace(predict=lambda state, x: x)
    return Simulated(algorithm, federation(good), None, None, {}, []).predict(x)


def of_rows(x, y, good):
    return ArrayEncoder.of(good)(x)


ENTRANCES = {
    **{f"from_clients: {name}": partial(given, Federation.from_clients, name) for name in FIRST},
    **{f"pack: {name}": partial(given, pack, name) for name in FIRST[:3]},
    "ServerTraining.examples": of_server,
    "xclp: client 1": of_labeling,
    **{f"public of {name}": partial(of_public, name) for name in LEARNT},
    "predict": of_prediction,
    "rows": of_rows,
}
WRONG_EXAMPLES = {
    "nan": (X + np.float32(np.nan), "nan or infinite"),
    "beyond float32": (X * np.float64(1e39), "nan or infinite"),
    "masked": (np.ma.masked_array(X, X > 0), "a masked array"),
    "texts": (X.astype(str), "rows are|examples of type <U"),
    "objects": (pandas.DataFrame(X, dtype=object), "rows are|examples of type object"),
    "bytes among numbers": (X.astype(np.uint8), "float32 and some uint8"),
    "another width": (X[:, :2], "shape|array"),
    "ragged": ([[1.0], [2.0, 3.0]], "unequal lengths|no array"),
}
WRONG_LABELS = {
    "64 bits that wrap": (
        Y + 2**32,
        "label 4294967297 is not a class|label 4294967296 is not a class",
    ),
    "fractions": (Y + 0.4, "labels are a quantity"),
    "beyond the classes": (np.where(Y == 2, C, Y), "label 3 is not a class; use 0 to 2"),
    "names": (Y.astype(str).astype(object) + "a", "is a name"),
    "another length": (Y[:-1], r"labels of shape \(11,\)"),
}


def refused(entrance, words, *arguments, folder):
    call = ENTRANCES[entrance]
    if entrance.startswith("pack"):
        call = partial(given, partial(packed, folder=folder), entrance.removeprefix("pack: "))
    with pytest.raises(UsageError, match=words) as error:
        call(*arguments)
    text = str(error.value)
    assert "\n" not in text
    assert entrance.split(" of ")[0] in text.replace("`", "")


@pytest.mark.parametrize("wrong", WRONG_EXAMPLES)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_wrong_examples_are_one_line(entrance, wrong, tmp_path):
    x, words = WRONG_EXAMPLES[wrong]
    refused(entrance, words, x, Y, X, folder=tmp_path / "p")


WITH_LABELS = [name for name in ENTRANCES if name not in ("predict", "rows")]
WITH_LABELS = [name for name in WITH_LABELS if not name.startswith("public") or "fedmd" in name]


@pytest.mark.parametrize("wrong", WRONG_LABELS)
@pytest.mark.parametrize("entrance", WITH_LABELS)
def test_wrong_labels_are_one_line(entrance, wrong, tmp_path):
    y, words = WRONG_LABELS[wrong]
    refused(entrance, words, X, y, X, folder=tmp_path / "p")


def test_a_masked_label_is_none(tmp_path):
    """Whatever number lies under the mask."""
    y = np.ma.masked_array(Y, Y == 2)
    for found in (
        Federation.from_clients([(X, y)]).y,
        Federation.open_packed(pack([(X, y)], tmp_path / "p")).y,
        checked([X], [y], C)[1][0],
    ):
        np.testing.assert_array_equal(np.sort(found), np.sort(np.where(Y == 2, -1, Y)))


@pytest.mark.parametrize("entrance", ["ServerTraining.examples"])
@pytest.mark.parametrize("y", [np.where(Y == 2, -1, Y), Y[:0]], ids=["one without", "none"])
def test_examples_that_all_need_a_label(entrance, y):
    refused(entrance, r"\d+ examples, \d without a label", X[: len(y)], y, X, folder=None)


@pytest.mark.parametrize("dtype", [float, "i4", "i8", "u1"])
@pytest.mark.parametrize("make", [Federation.from_clients, pack], ids=["clients", "pack"])
def test_labels_of_a_kind_that_came_before(make, dtype, tmp_path):
    """What is not looked at again, array by array, is looked at together."""
    wrong = Y + 0.4 if dtype is float else np.where(Y == 2, C, Y).astype(dtype)
    folder = [tmp_path / "p"] * (make is pack)
    with pytest.raises(
        UsageError, match=r"labels are a quantity|clients\[1\]: label 3 is not a class"
    ):
        make([(X, Y.astype(dtype)), (X, wrong)], *folder, num_classes=C)


BYTES = np.rint(255 * SHARES).astype(np.uint8)
BYTES[0, 0, :2, 0] = 0, 255
SCALES = {  # examples, those to train on
    "bytes for shares": (BYTES, SHARES, "float32 and some uint8"),
    "shares for bytes": (SHARES, BYTES, "uint8 and some float32"),
    "integers for shares": (
        BYTES.astype(int),
        SHARES,
        "values .* 255, and those to train on|int64.* are not images",
    ),
    "shares for integers": (
        SHARES.reshape(12, -1),
        BYTES.astype(int).reshape(12, -1),
        "0 to 255; use one scale for all",
    ),
    "integers that are no bytes": (
        BYTES.astype(int) + 1,
        BYTES,
        "256; bytes are needed|bytes 0..255 or|int64.* are not images",
    ),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "entrance",
    [name for name in ENTRANCES if "client" not in name.split(": ")[-1] and "new" not in name],
)
def test_another_scale_than_that_to_train_on(entrance, scale, tmp_path):
    x, good, words = SCALES[scale]
    refused(entrance, words, x, Y, good, folder=tmp_path / "p")


AMONG_CLIENTS = {  # images of the second client, of the first
    "shares among 0..255": (SHARES, BYTES.astype(np.float32), "0 to 255; use one scale for all"),
    "0..255 among shares": (BYTES.astype(np.float32), SHARES, "0 to 255; use one scale for all"),
    "integers among shares": (BYTES.astype(np.int32), SHARES, "0 to 255; use one scale for all"),
}


@pytest.mark.parametrize("name", AMONG_CLIENTS)
@pytest.mark.parametrize("entrance", ["from_clients: clients", "pack: clients"])
def test_images_of_another_scale_than_another_client_has(entrance, name, tmp_path):
    x, good, words = AMONG_CLIENTS[name]
    refused(entrance, words, x, Y, good, folder=tmp_path / "p")


@pytest.mark.parametrize("clients", [(BYTES, SHARES[:0]), (SHARES[:0], BYTES)])
def test_a_client_without_examples_changes_no_type(clients, tmp_path):
    pairs = [(x, Y[: len(x)]) for x in clients]
    packed = Federation.open_packed(pack(pairs, tmp_path / "p"))
    for federation in (Federation.from_clients(pairs), packed):
        assert federation.x.dtype == np.uint8
        assert sorted(federation.sizes) == [0, len(BYTES)]


@pytest.mark.parametrize("entrance", [name for name in ENTRANCES if not name.startswith("pack")])
def test_other_forms_of_the_same_examples(entrance):
    """Lists and frames; integers are bytes where the clients' examples show that."""
    call = ENTRANCES[entrance]
    call(X, Y.astype(np.float64), X)
    call(X.tolist(), Y.tolist(), X)
    call(pandas.DataFrame(X), pandas.Series(Y), X)
    if not entrance.startswith(("public", "ServerTraining")):
        call(BYTES.reshape(12, -1).astype(int), Y, BYTES.reshape(12, -1))


@pytest.mark.parametrize("name", LEARNT)
def test_another_number_of_outputs_than_of_classes(name):
    four = Training(mlp((C,), C + 1, hidden=(4,)))
    with pytest.raises(UsageError, match="has 4 outputs and the clients have 3 classes; use"):
        of_public(name, X, Y, X, training=four)


@pytest.mark.parametrize("outputs", [C - 1, C + 1])
def test_too_few_outputs_are_refused_at_the_start(outputs):
    """More do no harm: the last classes may have no label."""
    method = fedavg(training=Training(mlp((C,), outputs, hidden=(4,))))
    if outputs > C:
        method.init(jax.random.key(0), federation())
        return
    with pytest.raises(UsageError, match="has 2 outputs and the clients have 3 classes"):
        method.init(jax.random.key(0), federation())
