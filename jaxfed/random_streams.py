"""Random streams: the numbers that keep draws of different purposes apart.

    key = jax.random.fold_in(round_key, Stream.NOISE)        rng = np.random.default_rng((seed, Stream.FOLDS))

Streams of one key or one seed are independent. The values never change, so that results do not; each is the
ASCII code of a word.
"""

from enum import IntEnum, unique


@unique
class Stream(IntEnum):
    """Purpose of a draw, with the number that is folded into a key or put beside a seed."""

    AFTER_MEAN = 0x6166746D  # uploads after the mean is known
    AUDIT_HALVES = 0x68616C66  # halves of the targets, one to choose an attack and one to judge it
    AUDIT_TARGETS = 0x74617267  # members and non-members that an audit asks about
    BATCH_ORDER = 0x6F726473  # order of a client's batches over rounds
    BATCH_STATISTICS = 0x73746174  # BatchNorm statistics that clients measure
    BEFORE_STEPS = 0x62666F72  # a client's predictions before its first step
    CLIENT_GROUPS = 0x67727073  # groups of clients that take turns in rounds
    CLIENT_STATES = 0x636C7374  # states that clients start with
    CLOCK_DRAWS = 0x636C6472  # clients drawn again in a round, or between the server's steps
    CLOCK_SPEEDS = 0x636C7370  # clients' speeds in simulated time
    COMPARED_CLIENTS = 0x636F6D70  # pairs of clients whose points XCLP compares
    EXTRA_CLIENT_NOISE = 0x72656C61  # randomized labels in an extra client's labeling
    FOLDS = 0x666F6C64  # folds of a cross-validation
    FROZEN_WEIGHTS = 0x66726F7A  # a network's weights that are not trained, and LoRA's first factor
    LATE_POINTS = 0x6C617465  # points that come after the graph, and their noise
    MODEL_GROUPS = 0x67726F75  # groups of models that FedRGD averages
    NEIGHBORING_DATA = 0x6E656967  # neighboring data sets, by which sensitivity is measured
    NEW_HEAD = 0x68656164  # the last layer in place of a pretrained one
    NOISE = 0x6E6F6973  # privacy noise on gradients, updates, prototypes, codes and labels
    OWN_EXAMPLES = 0x6F776E  # clients' own examples beside public ones
    PERTURBED_QUERIES = 0x70657274  # perturbations of label-only queries
    PUBLIC_EXAMPLES = 0x7075626C  # public examples of a federation
    RECORDS = 0x64726177  # records that take part in a step of DP-FedAvg
    SERVER_EXAMPLES = 0x73727672  # labeled examples of the server
    SERVER_TRAINING = 0x73657276  # the server's own training
    SHADOW_MODELS = 0x73686164  # memberships and training of shadow models
    SUB_CONSENSUS = 0x73756263  # groups of clients whose models RSCFed averages
    SUBSAMPLE = 0x73697A65  # the subsample of a data set
    TEACHER = 0x74636872  # the teacher that stage 1 ends with
    UPLOAD_STORE = 0x6D656D6F  # the server's store of uploads
    VIEWS = 0x76696577  # views of images, whose features are computed before training
