"""Every kind of wrong input we know, with the words that bring it about and what must be said of it.

Files are relative to a folder that `worlds.wrong_files.make_files` has filled.
"""

from dataclasses import dataclass

GOOD = "good"  # a finished run
STARTED = "started"  # a run that was stopped before its first checkpoint
IMAGES = ("-s", "data.source=images.npz")
ONE = ("-s", "training.batch_size=1", "-s", "model.bottleneck=null")
SHORT = (*IMAGES, "-s", "training.epochs=1", "-s", "training.batch_size=16", "--device", "cpu")


@dataclass(frozen=True)
class Wrong:
    """One kind: its name, the words, what the line must say, and the exit code."""

    name: str
    words: tuple[str, ...]
    says: str
    code: int = 2
    leaves: str | None = None  # a run that began, and failed
    ranks: int = 1  # as torchrun starts them


def _train(name: str, *words: str, says: str) -> Wrong:
    return Wrong(name, ("train", *words), says)


def _set(name: str, setting: str, *, says: str) -> Wrong:
    return Wrong(name, ("train", *SHORT, "-s", setting), says)


def _data(name: str, source: str, *words: str, says: str) -> Wrong:
    return Wrong(name, ("data", "check", source, *words), says)


COMMAND_LINE = [
    Wrong("unknown command", ("trian",), "No such command 'trian'"),
    _train("unknown option", "--epochs", "3", says="No such option: --epochs"),
    _train("option without a value", "--out", says="see `splitveil train --help`"),
    _train("option of the wrong type", "--seed", "one", says="--seed"),
    _train("option outside its choices", "--freeze", "tail", says="--freeze"),
    Wrong("missing argument", ("attack",), "Missing argument 'RUN'"),
    Wrong("one argument too many", ("evaluate", GOOD, "again"), "unexpected extra argument"),
    Wrong("number below its least", ("attack", GOOD, "--seeds", "0"), "--seeds"),
    Wrong("nothing of that name to list", ("list", "datas"), "datas"),
    _train("setting without a value", "-s", "training.epochs", says="-s wants key=value"),
    _train("setting that is not YAML", "-s", "mechanism=[{", says="not a YAML value"),
    _train("setting below a plain value", "-s", "training.lr.x=1", says="training.lr"),
    _train("place that the list does not have", "-s", "mechanism.3.std=1", says="not a place in a list"),
    _train("--out that holds a run", *SHORT, "--out", GOOD, says=f"go on with `--resume {GOOD}`"),
    _train("--out that is a file", *SHORT, "--out", "file", says="file"),
    _train("--out below a file", *SHORT, "--out", "file/run", says="choose another --out"),
    _train("--resume with settings", "--resume", STARTED, "-s", "training.lr=1", says="--resume"),
    _train("--resume with --out", "--resume", STARTED, "--out", "other", says="leave -c and --out away"),
    Wrong("demo over other files", ("demo", "--out", "pictures"), "choose another --out"),
    Wrong("demo over results of another suite", ("demo", "--out", "shown"), "was added to an earlier demo"),
    Wrong("demo over a file", ("demo", "--out", "file"), "choose another --out"),
    Wrong("demo with a negative seed", ("demo", "--seed", "-1", "--out", "new"), "seed must be ≥ 0"),
]

CONFIG = [
    _train("config that is not there", "-c", "nowhere.yaml", says="config show"),
    _train("config that is not YAML", "-c", "bad.yaml", says="bad.yaml: line"),
    _train("config that is a list", "-c", "list.yaml", says="wanted `key: value` lines"),
    _train("config that is binary", "-c", "images.npz", says="images.npz"),
    _train("config that is a folder", "-c", "pictures", says="pictures"),
    _set("unknown section", "trainig.epochs=3", says="did you mean 'training'?"),
    _set("unknown key", "training.epoch=1", says="did you mean 'epochs'?"),
    _set("unknown key two levels down", "training.augment.crops=1", says="did you mean 'crop'?"),
    _set("value of the wrong type", "training.epochs=many", says="training.epochs"),
    _set("value outside its choices", "training.optimizer=adam", says="training.optimizer"),
    _set("no epochs", "training.epochs=0", says="epochs must be ≥ 1"),
    _set("negative learning rate", "training.lr=-1", says="lr must be > 0"),
    _set("infinite learning rate", "training.lr=.inf", says="lr must be > 0 and finite"),
    _set("momentum of one", "training.momentum=1", says="momentum must lie in [0, 1)"),
    _set("milestone after the end", "training.milestones=[1.5]", says="milestones"),
    _set("negative seed", "training.seed=-1", says="seed must be ≥ 0"),
    _set("no time at all", "training.time_budget=0", says="time_budget must be > 0"),
    _set("batch larger than the set", "training.batch_size=1000", says="larger than the train role (64 images)"),
]

DATA = [
    _data("set of no such name", "fashon", says="did you mean 'fashion'?"),
    _data("another size of ready-made images", "fashion", "--size", "14", says="leave size and channels out"),
    _data("people who are clothes", "fashion", "--people", says="of the same people"),
    _data("file that is not there", "nowhere.npz", says="nowhere.npz: no such file"),
    _data("file of another kind", "bad.yaml", says="is not an .npz file"),
    _data("corrupt .npz", "corrupt.npz", says="corrupt.npz: is truncated or corrupt"),
    _data("truncated .npz", "truncated.npz", says="truncated.npz: is truncated or corrupt"),
    _data("pickled objects in an .npz", "pickled.npz", says="pickled objects are refused"),
    _data("bare array", "bare.npz", says="one bare array"),
    _data(".npz without images", "nothing.npz", says="has no train_images"),
    _data(".npz without labels", "unlabeled.npz", says="has no labels"),
    _data("empty set", "empty.npz", says="images is empty"),
    _data("pixels that are not bytes", "floats.npz", says="must be uint8"),
    _data("images of a strange shape", "shape.npz", says="has shape"),
    _data("labels of another length", "labels.npz", says="must be 8 integers"),
    _data("negative labels", "negative.npz", says="must be 8 integers from 0"),
    _data("too few images of a class", "rare.npz", says="add some or remove it"),
    _data("one image in two roles", "shared.npz", says="hold the same image"),
    _data("folder without images", "no-pictures", says="holds no image set"),
    _data("class folder that is empty", "one-empty", says="has no images in it"),
    _data("image that cannot be read", "pictures", says="--skip-broken"),
    _data("images of different sizes", "sizes", says="give one size for all"),
    _data("size that is no size", "pictures", "--size", "0", says="size must be ≥ 1"),
    _data("role of no such name", "images.npz", "--role", "victim=images.npz", says="did you mean 'victims'?"),
    _data("role without a source", "images.npz", "--role", "auxiliary", says="--role wants ROLE=SOURCE"),
    _data("role with the same images", "heap.npz", "--role", "auxiliary=heap.npz", says="hold the same image"),
    _data("too few people", "images.npz", "--people", says="people"),
    _data("CIFAR-10 with a file missing", "cifar", says="batches.meta: no such file"),
    _data("CIFAR-10 file that would run code", "evil", says="batches.meta"),
    _data("TinyImageNet with a folder missing", "tiny-imagenet", says="n01443537"),
    _set("data.roles of no such name", "data.roles={victim: images.npz}", says="did you mean 'victims'?"),
    _set("images of two channels", "data.decoding.channels=2", says="channels must be 1 (gray) or 3 (color)"),
]

MODELS = [
    _set("unknown network", "model.name=vgg12", says="did you mean 'vgg11'?"),
    _set("module that is not there", "model.name=nowhere.nets:make", says="nowhere.nets:make"),
    _set("factory that is not there", "model.name=json:make", says="json:make"),
    _set("factory that fails", "model.name=json:loads", says="calling json:loads failed"),
    _set("factory that makes no module", "model.name=json:JSONDecoder", says="wanted a torch nn.Module"),
    _set("own network without a cut", "model.name=worlds.wrong_files:network", says="say after which submodule"),
    _set("layer that is not there", "model.cut=features.99", says="features.99"),
    _set("layer of almost that name", "model.cut=features.pool9", says="features.pool9"),
    _set("unknown activation", "model.bottleneck.activation=tanh", says="model.bottleneck"),
    _set("bottleneck without channels", "model.bottleneck.channels=0", says="channels"),
    _set("weights that are not there", "model.init=nowhere.safetensors", says="no such weights file"),
    _set("weights that are no weights", "model.init=bad.yaml", says="not a readable safetensors file"),
    _set("weights of another network", "model.init=other.safetensors", says="the weights do not fit the network"),
    Wrong(
        "network for other images",
        ("train", *SHORT, "-s", "model.name=worlds.wrong_files:network", "-s", "model.cut=0"),
        "does not take images of shape (1, 28, 28)",
    ),
    Wrong(
        "network for another number of classes",
        ("train", *SHORT, "-s", "model.name=worlds.wrong_files:ten_classes", "-s", "model.cut=1"),
        "one score for each of 4 classes",
    ),
    Wrong(
        "batch of one for a batch norm",
        ("train", *SHORT, "-s", "model.name=worlds.wrong_files:normed", "-s", "model.cut=1", *ONE),
        "the network fails on a batch of 1",
    ),
    Wrong(
        "image sides that a network cannot divide",
        ("train", *SHORT, "-s", "data.source=odd.npz", "-s", "model.name=vit"),
        "image sides divisible by 4",
    ),
]

PENALTIES = [
    _train(
        "penalty on a frozen encoder",
        *(*SHORT, "-s", "regularizers=[{name: kmeans, weight: 0.1}]", "--freeze", "encoder"),
        says="kmeans charges the encoder, which freeze=encoder holds still",
    ),
    _set("unknown mechanism", "mechanism=[{name: gausian, std: 1}]", says="did you mean 'gaussian'?"),
    _set("mechanism without a name", "mechanism=[{std: 1}]", says="mechanism.0: wanted {name: …}"),
    _set("mechanism that is a word", "mechanism=[gaussian]", says="mechanism"),
    _set("unknown option of a mechanism", "mechanism=[{name: gaussian, sdt: 1}]", says="did you mean 'std'?"),
    _set("missing option of a mechanism", "mechanism=[{name: gaussian}]", says="needs 'std'"),
    _set(
        "mechanism option of the wrong type", "mechanism=[{name: gaussian, std: loud}]", says="mechanism.0.gaussian.std"
    ),
    _set("negative noise", "mechanism.0.std=-1", says="std must be > 0"),
    _set("clipping to nothing", "mechanism=[{name: clip, radius: 0}]", says="radius must be > 0"),
    _set("dropping everything", "mechanism=[{name: dropout, rate: 1}]", says="rate must lie in [0, 1)"),
    _set("unknown regularizer", "regularizers=[{name: kmean, weight: 1}]", says="did you mean 'kmeans'?"),
    _set("regularizer without a weight", "regularizers=[{name: plain}]", says="needs 'weight'"),
    _set("negative weight", "regularizers=[{name: plain, weight: -1}]", says="weight must be ≥ 0"),
    _set(
        "ramp without a length", "regularizers=[{name: plain, weight: 1, shape: ramp}]", says="ramp_epochs must be ≥ 1"
    ),
    _set("unknown option of a regularizer", "regularizers=[{name: kmeans, weight: 1, groups: 3}]", says="n_groups"),
    Wrong(
        "regularizer without noise",
        ("train", *SHORT, "-s", "mechanism=[]", "-s", "regularizers=[{name: plain, weight: 1}]"),
        "noise_std must be > 0",
    ),
]

DEVICES = [
    _train("device that is not here", *SHORT, "--device", "cuda:99", says="there is no device 'cuda:99'"),
    _train("device of no such kind", *SHORT, "--device", "gpu", says="there is no device 'gpu'"),
    Wrong("attack on a device that is not here", ("attack", GOOD, "--device", "cuda:99"), "there is no device"),
    Wrong(
        "batch that the processes cannot share", ("train", *SHORT), "cannot be shared by 3 processes; use 15", ranks=3
    ),
    Wrong("batch norm on CPU processes", ("train", *SHORT), "which processes on CPUs cannot share", ranks=2),
    Wrong("attack by several processes", ("attack", GOOD), "done by one process; call it without torchrun", ranks=2),
    Wrong("demo by several processes", ("demo", "--out", "new"), "call it without torchrun", ranks=2),
]

RUNS = [
    Wrong("resuming what is not there", ("train", "--resume", "nowhere"), "not a run directory"),
    Wrong("resuming a folder that is no run", ("train", "--resume", "pictures"), "not a run directory"),
    Wrong("attacking what is no run", ("attack", "pictures"), "not a run directory"),
    Wrong("evaluating a run that is not finished", ("evaluate", STARTED), f"splitveil train --resume {STARTED}"),
    Wrong("diagnosing a run without penalties", ("diagnose", GOOD), "no regularizers"),
    Wrong("diagnosing a run that has not begun", ("diagnose", STARTED), "nothing is logged yet"),
    Wrong("unknown suite", ("attack", GOOD, "--suite", "chaep"), "did you mean 'cheap'?"),
    Wrong("unknown attack", ("attack", GOOD, "--attack", "ridgee"), "did you mean 'ridge'?"),
    Wrong("attack of another suite", ("attack", GOOD, "--attack", "diffusion"), "it is in full: add --suite"),
    Wrong("gate in percent", ("evaluate", GOOD, "--max-leak", "60"), "--max-leak must lie in [0, 1], got 60.0"),
    Wrong("gate that is no number", ("evaluate", GOOD, "--min-accuracy", "nan"), "--min-accuracy must lie in [0, 1]"),
    Wrong("undefended run that was not attacked", ("attack", GOOD, "--undefended", "strange"), "first"),
    Wrong("undefended run that is the run itself", ("evaluate", GOOD, "--undefended", GOOD), "is the run itself"),
    Wrong("releases that are no numbers", ("attack", GOOD, "--queries", "1,many"), "such as 1,4,16,64, got '1,many'"),
    Wrong("no release at all", ("attack", GOOD, "--queries", "0,4"), "numbers from 1 to 1024"),
    Wrong("releases with one attack", ("attack", GOOD, "--queries", "1,4", "--attack", "ridge"), "leave --attack away"),
    Wrong(
        "releases beside an undefended run",
        ("attack", GOOD, "--queries", "1,4", "--undefended", GOOD),
        "leave --undefended away",
    ),
    Wrong("probe without classes", ("attack", GOOD, "--probe", "animal"), "such as animal=2,3,4,5,6,7, got 'animal'"),
    Wrong("probe of two words", ("attack", GOOD, "--probe", "a b=1"), "such as animal=2,3,4,5,6,7, got 'a b=1'"),
    Wrong("probe for words", ("attack", GOOD, "--probe", "animal=cat,dog"), "class numbers such as animal=2,3"),
    Wrong("probe for no such class", ("attack", GOOD, "--probe", "animal=2,30"), "has no class 30"),
    Wrong("probe for every class", ("attack", GOOD, "--probe", "all=0,1,2,3"), "nothing to read"),
    Wrong("probe that is named as the label's", ("attack", GOOD, "--probe", "label=1"), "and not 'label'"),
    Wrong("two probes of one name", ("attack", GOOD, "--probe", "a=1", "--probe", "a=2"), "'a' is asked twice"),
    Wrong("probe beside releases", ("attack", GOOD, "--queries", "1,4", "--probe", "a=1"), "leave --probe away"),
    Wrong("far too many processes for an attack", ("attack", GOOD, "--workers", "65"), "--workers"),
    Wrong("no time for an attack", ("attack", GOOD, "--time-budget", "0"), "--time-budget must be > 0"),
    Wrong("run with a broken config", ("evaluate", "broken-config"), "config.yaml: line"),
    Wrong("run with a broken manifest", ("evaluate", "broken-manifest"), "manifest.json: cannot be read"),
    Wrong("run with a manifest of the wrong kind", ("evaluate", "odd-manifest"), "image_shape is [28], not three"),
    Wrong("run with a result of the wrong kind", ("evaluate", "odd-result"), "result.json: has no data as it was"),
    Wrong("run with an empty manifest", ("evaluate", "empty-manifest"), "manifest.json: has no image_shape"),
    Wrong("run without its weights", ("evaluate", "no-weights"), "encoder.safetensors: no such weights file"),
    Wrong("run with truncated weights", ("evaluate", "cut-weights"), "head.safetensors: not a readable safetensors"),
    Wrong("run whose images have changed", ("evaluate", "other-images"), "not the images"),
    Wrong("run whose images are gone", ("evaluate", "gone-images"), "gone.npz: no such file"),
    Wrong("damaged checkpoints", ("train", "--resume", "damaged"), "checkpoint.safetensors cannot be read", code=3),
    Wrong("checkpoint of another network", ("train", "--resume", "misfit"), "bottleneck.channels is 4 (was 8)"),
    Wrong("checkpoint of other settings", ("train", "--resume", "edited"), "training.lr is 0.5 (was 0.05)"),
    Wrong("checkpoint of other images", ("train", "--resume", "strange"), "not those the run began with", code=3),
    Wrong(
        "run that diverges",
        ("train", *SHORT, "-s", "training.lr=1e30", "--out", "new"),
        "loss is not finite",
        code=3,
        leaves="new",
    ),
]

BUILD = ("memory", "build", "keys.npy", "values.npy", "--out", "new")
PRIVATE = ("--epsilon", "1", "--public", "public.npy")


def _memory(name: str, *words: str, says: str) -> Wrong:
    return Wrong(name, ("memory", *words), says)


MEMORIES = [
    _memory("memory of keys that are not there", "build", "no.npy", *BUILD[3:], *PRIVATE, says="no.npy"),
    _memory("memory of a file that is no array", "build", "bad.yaml", *BUILD[3:], *PRIVATE, says="bad.yaml"),
    _memory("memory of words", "build", "words.npy", *BUILD[3:], *PRIVATE, says="words.npy"),
    _memory("memory of more keys than values", "build", "queries.npy", *BUILD[3:], *PRIVATE, says="they must agree"),
    _memory("memory of rows that are not finite", "build", "nan.npy", *BUILD[3:], *PRIVATE, says="finite"),
    Wrong("memory without a budget", BUILD, "Missing option '--epsilon'"),
    Wrong("memory with a negative budget", (*BUILD, "--epsilon", "-1", *PRIVATE[2:]), "epsilon must be > 0"),
    Wrong("memory with a certain failure", (*BUILD, *PRIVATE, "--delta", "1"), "delta"),
    Wrong("memory with nothing public", (*BUILD, "--epsilon", "1"), "--public"),
    Wrong("memory with public rows of another width", (*BUILD, "--epsilon", "1", "--public", "wide.npy"), "wide.npy"),
    Wrong("memory of unknown features", (*BUILD, *PRIVATE, "--features", "fourier"), "--features"),
    Wrong("memory with too few document ids", (*BUILD, *PRIVATE, "--units", "queries.npy"), "queries.npy"),
    Wrong("memory over a memory", (*BUILD[:-1], "memory", *PRIVATE), "holds a memory already"),
    _memory("query of no memory", "query", "pictures", "queries.npy", "--out", "new.npz", says="pictures"),
    _memory("answers that are no .npz", "query", "memory", "queries.npy", "--out", "new.npy", says="ends in .npz"),
    _memory("query of another width", "query", "memory", "wide.npy", "--out", "new.npz", says="wide.npy"),
    _memory("report of no memory", "report", "nowhere", says="nowhere"),
    _memory("report of a damaged memory", "report", "broken-memory", says="broken-memory"),
    _memory("audit of a damaged memory", "audit", "broken-memory", says="broken-memory"),
]

SECTIONS = {
    "Command line": COMMAND_LINE,
    "Config": CONFIG,
    "Images": DATA,
    "Networks": MODELS,
    "Mechanisms and regularizers": PENALTIES,
    "Devices and processes": DEVICES,
    "Runs": RUNS,
    "Private memories": MEMORIES,
}
EVERY = [wrong for section in SECTIONS.values() for wrong in section]
