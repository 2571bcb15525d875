"""Configs and overrides that must be refused, with the words that the one line must contain."""

from typing import NamedTuple


class Malformed(NamedTuple):
    """A mistake: a TOML text, then overrides of it, and words of the refusal."""

    name: str
    toml: str = ""
    settings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def _file(name: str, toml: str, *words: str) -> Malformed:
    return Malformed(name, toml=toml, words=words)


def _set(name: str, *settings: str, words: tuple[str, ...]) -> Malformed:
    return Malformed(name, settings=settings, words=words)


_SYNTAX = [
    _file("no value", "seed =", "not valid TOML", "invalid value"),
    _file("no equals sign", "seed 3\n", "line 1, column 6", "expected '='"),
    _file("open bracket", "seed = 1\n[optimizer\nlr = 1", "line 2", "expected ']'"),
    _file("open string", 'name = "run\n', "line 1", "not valid TOML"),
    _file("key given twice", "seed = 1\nseed = 2", "not valid TOML", "overwrite"),
    _file("section given twice", "[model]\n[model]", "line 2", "twice"),
    _file("comma for a point", "[optimizer]\nlr = 0,003", "line 2"),
    _file("digits without end", f"seed = {'9' * 5000}", "not valid TOML", "too long"),
    _file("arrays without end", f"seed = {'[' * 5000}", "not valid TOML", "too deeply nested"),
]

_NAMES = [
    _file("misspelt key", "[optimizer]\ngama = 0.1", '"optimizer.gama" = 0.1', "optimizer.gamma?"),
    _file("the constructor's name", "[optimizer]\nis_approx = false", "optimizer.exact = true"),
    _file("misspelt top key", "sed = 3", '"sed" = 3', "did you mean seed?"),
    _file("misspelt section", "[optimiser]\nlr = 0.1", '"optimiser"', "0.1", "[optimizer]?"),
    _file("unlike any section", "[zebra]", '"zebra"', "data, model, optimizer"),
    _file("unlike any key", "[model]\nzebra = 1", '"model.zebra" = 1', "mars train --help"),
    _file("key of another section", "[training]\nlr = 0.1", '"training.lr"', "optimizer.lr?"),
    _file("key without section", "gamma = 0.1", '"gamma" = 0.1', "optimizer.gamma?"),
    _file("other case", "[model]\nWidth = 8", '"model.Width" = 8', "did you mean model.width?"),
    _file("section as value", "optimizer = 3", "optimizer is a section, got 3", "[optimizer]"),
    _file("section as array", "[[model]]\nwidth = 8", "model is a section", '[{"width" = 8}]'),
    _file("key as section", "[optimizer.lr]\nvalue = 1", "optimizer.lr must be a number", "value"),
    _file("top key as section", "[seed]\nvalue = 1", "seed must be an integer", '"value" = 1'),
    _file("section in section", "[model.deep]\nx = 1", '"model.deep"', '{"x" = 1}'),
    _file("key in quotes", '"optimizer.lr" = 1', '"optimizer.lr" = 1', "leave out the quotes"),
    _file("line break in a key", '"a\\nb" = 1', '"a\\U0000000ab" = 1'),
]

_TYPES = [
    _file("word as integer", '[training]\nsteps = "many"', 'steps must be an integer, got "many"'),
    _file("string as integer", '[training]\nsteps = "100"', 'got "100"', "write 100"),
    _file("float as integer", "[training]\nsteps = 1e5", "an integer, got 100000.0; write 100000"),
    _file("fraction as integer", "[model]\nlayers = 1.5", "layers must be an integer, got 1.5"),
    _file("flag as integer", "seed = true", "seed must be an integer, got true"),
    _file("more than 64 bits", f"seed = 0x{'f' * 5000}", "seed must be", "0xfff", "64 bits"),
    _file("flag as number", "[optimizer]\nlr = false", "lr must be a number, got false"),
    _file("string as number", '[optimizer]\nlr = "1e-3"', 'number, got "1e-3"; write 0.001'),
    _file("date as number", "[optimizer]\nlr = 2026-01-02", "lr must be a number, got 2026-01-02"),
    _file("infinite integer", f"[optimizer]\nlr = 0x{'f' * 400}", "lr must be a number, got 0xff"),
    _file("integer as flag", "[model]\nbias = 1", "model.bias must be true or false, got 1"),
    _file("string as flag", '[model]\nbias = "True"', 'got "True"; write true'),
    _file("number as string", "name = 3", "name must be a string, got 3"),
    _file("array as string", "[data]\npath = ['a']", 'data.path must be a string, got ["a"]'),
    _file("one beta", "[optimizer]\nbetas = [0.9]", "array of 2 numbers, got [0.9]", "[0.9, 0.95]"),
    _file("number as betas", "[optimizer]\nbetas = 0.9", "optimizer.betas must", "got 0.9"),
    _file("flag among betas", "[optimizer]\nbetas = [0.9, true]", "got [0.9, true]"),
    _file(
        "words as milestones", '[schedule]\nmilestones = ["half"]', 'got ["half"]', "[0.5, 0.75]"
    ),
    _file("nested milestones", "[schedule]\nmilestones = [[0.5]]", "milestones", "got [[0.5]]"),
    _file("unknown optimizer", '[optimizer]\nname = "adam"', '"lion", "muon", got "adam"', "adamw"),
    _file("unknown schedule", '[schedule]\nkind = "cosin"', 'got "cosin"; did you mean "cosine"?'),
    _file("number as choice", "[metrics]\nwandb = 0", '"offline", "online", got 0'),
    _file("none in a file", '[optimizer]\ngamma = "none"', 'gamma must be a number, got "none"'),
]

_OVERRIDES = [
    _set("no equals", "optimizer.lr", words=('"optimizer.lr" sets nothing', "optimizer.lr=0.003")),
    _set("no key", "=3", words=('"=3" sets nothing',)),
    _set("misspelt", "optimizer.gama=0.1", words=('"optimizer.gama" = 0.1', "optimizer.gamma?")),
    _set("misspelt and short", "gama=0.1", words=('"gama" = 0.1', "optimizer.gamma?")),
    _set("section misspelt", "optimiser.lr=0.1", words=('"optimiser.lr" = 0.1', "optimizer.lr?")),
    _set(
        "section alone", "optimizer=muon", words=('"optimizer" = "muon"', "such as optimizer.name")
    ),
    _set(
        "word as number", "optimizer.lr=fast", words=('optimizer.lr must be a number, got "fast"',)
    ),
    _set("no leading zero", "gamma=.05", words=("optimizer.gamma must", '".05"; write 0.05')),
    _set("empty number", "training.steps=", words=('training.steps must be an integer, got ""',)),
    _set("none as number", "training.steps=none", words=('steps must be an integer, got "none"',)),
    _set(
        "word as array", "betas=fast", words=("optimizer.betas must", 'got "fast"', "[0.9, 0.95]")
    ),
    _set("short array", "betas=0.9", words=("optimizer.betas must", "2 numbers, got [0.9]")),
    _set("long array", "betas=1,2,3", words=("2 numbers, got [1, 2, 3]",)),
    _set("table", "optimizer.lr={x=1}", words=('optimizer.lr must be a number, got {"x" = 1}',)),
    _set("two lines", "seed=1\nname='a'", words=("seed must be an integer", "1\\U0000000aname")),
    _set("unknown choice", "wandb=on", words=('metrics.wandb must be one of "off"', 'got "on"')),
    _set("lone surrogate", "name=a\udcff", words=("a\\U0000dcff", "not valid Unicode")),
    _set("second of two", "seed=1", "lr=x", words=('optimizer.lr must be a number, got "x"',)),
]

_VALUES = [
    _set("no steps", "steps=0", words=("training.steps must be at least 1, got 0",)),
    _set("negative layers", "layers=-2", words=("model.layers must be at least 1, got -2",)),
    _set("no heads", "heads=0", words=("model.heads must be at least 1, got 0",)),
    _set("no context", "context_length=0", words=("model.context_length", "got 0")),
    _set("no vocabulary", "vocab_size=0", words=("model.vocab_size", "got 0")),
    _set("heads and width", "heads=5", words=("model.width = 768", "model.heads = 5", "use 770")),
    _set("negative seed", "seed=-1", words=("seed must be at least 0, got -1",)),
    _set("negative workers", "workers=-1", words=("data.workers must be at least 0, got -1",)),
    _set("dropout of all", "dropout=1", words=("model.dropout must be in [0, 1), got 1.0",)),
    _set("dropout that is no number", "dropout=nan", words=("model.dropout", "got nan")),
    _set(
        "strong gamma", "gamma=1.7", words=("optimizer.gamma must be in [0, 1], got 1.7; 0 turns",)
    ),
    _set("negative gamma", "gamma=-0.1", words=("optimizer.gamma", "got -0.1")),
    _set(
        "beta of one", "betas=0.9,1", words=("optimizer.betas must be in [0, 1), got [0.9, 1.0]",)
    ),
    _set("negative 1-D beta", "betas_1d=-1,0", words=("optimizer.betas_1d", "got [-1.0, 0.0]")),
    _set("no learning rate", "lr=0", words=("optimizer.lr must be positive and finite, got 0.0",)),
    _set("learning rate nan", "lr=nan", words=("optimizer.lr", "got nan")),
    _set("learning rate inf", "lr=inf", words=("optimizer.lr", "got inf")),
    _set("negative 1-D rate", "lr_1d=-1", words=("optimizer.lr_1d", "not negative, got -1.0")),
    _set("negative decay", "weight_decay=-0.1", words=("optimizer.weight_decay", "got -0.1")),
    _set("negative eps", "eps=-1e-8", words=("optimizer.eps", "got -1e-08")),
    _set("no norm", "max_norm=0", words=("optimizer.max_norm", "got 0.0", "turns the clip off")),
    _set("negative clip", "grad_clip=-1", words=("training.grad_clip", "got -1.0; 0 is no limit")),
    _set("micro-batch", "micro_batch_size=7", words=("micro_batch_size = 7", "batch_size = 480")),
    _set("no micro-batch", "micro_batch_size=0", words=("micro_batch_size", "got 0; leave it out")),
    _set("long warm-up", "warmup_steps=9", "steps=5", words=("warmup_steps = 9", "steps = 5")),
    _set("negative warm-up", "warmup_steps=-1", words=("schedule.warmup_steps", "got -1")),
    _set("rising schedule", "min_lr=1", words=("schedule.min_lr = 1.0", "optimizer.lr = 0.003")),
    _set("negative min_lr", "min_lr=-1", words=("schedule.min_lr", "got -1.0")),
    _set(
        "milestones fall", "milestones=0.7,0.5", words=("milestones = [0.7, 0.5] do not increase",)
    ),
    _set("milestones repeat", "milestones=0.5,0.5", words=("schedule.milestones = [0.5, 0.5]",)),
    _set("milestone at the end", "milestones=0.5,1", words=("in (0, 1), got [0.5, 1.0]",)),
    _set("no milestone", "kind=multistep", "milestones=[]", words=("schedule.milestones = []",)),
    _set("no decay part", "decay_fraction=0", words=("schedule.decay_fraction", "(0, 1], got 0.0")),
    _set("decay that grows", "decay_factor=2", words=("schedule.decay_factor", "got 2.0")),
    _set("keep none", "keep=0", words=("checkpoint.keep must be at least 1, got 0",)),
    _set("checkpoint never", "checkpoint.every=0", words=("checkpoint.every", "got 0")),
    _set("log never", "log_every=0", words=("metrics.log_every", "got 0")),
    _set("validate never", "validate_every=-5", words=("training.validate_every", "got -5")),
    _set("validate on nothing", "validation_sequences=0", words=("validation_sequences", "got 0")),
    _set("no name", "name=", words=('name = ""', "directory")),
    _set("name with a path", "name=../run", words=('name = "../run"', "letters")),
    _set("name of a parent", "name=..", words=('name = ".."', "directory")),
    _set("name in lines", 'name="a\\nb"', words=('name = "a\\U0000000ab"', "directory")),
    _set("endless name", f"name={'a' * 256}", words=('name = "aaa', "255 bytes")),
    _set("no data", "data.path=", words=('data.path = ""', "mars prepare")),
    _set("no project", "wandb_project=", "wandb=online", words=('wandb_project = ""',)),
    _set("unknown device", "device=gpu", words=('training.device = "gpu"', "cuda")),
    _set("device number", "device=cuda:first", words=('training.device = "cuda:first"',)),
    _set("device without number", "device=cuda:", words=('training.device = "cuda:"', "cuda:1")),
    _set("any device by number", "device=auto:0", words=('training.device = "auto:0"',)),
]

_OPTIMIZERS = [
    _set(
        "gamma of AdamW",
        *("optimizer.name=adamw", "gamma=0.05"),
        words=("optimizer.gamma = 0.05 has no meaning for adamw", "mars-adamw, mars-lion"),
    ),
    _set(
        "two foreign options",
        *("optimizer.name=nadamw", "lean=true", "lr_1d=0.1"),
        words=("optimizer.lr_1d = 0.1", "mars-m, muon", "optimizer.lean too"),
    ),
    _set("eps of Lion", "optimizer.name=lion", "eps=1e-8", words=("eps = 1e-08", "for lion")),
    _set("clip of Muon", "optimizer.name=muon", "clip=none", words=('clip = "none"', "for muon")),
    _set(
        "second moment of MARS-Lion",
        *("optimizer.name=mars-lion", "second_moment=gradient"),
        words=('second_moment = "gradient"', "for mars-lion; it belongs to mars-adamw"),
    ),
    _set(
        "second moment of MARS-M",
        *("optimizer.name=mars-m", "second_moment=gradient"),
        words=('second_moment = "gradient"', "for mars-m", "optimize_1d = true"),
    ),
    _set("norm, no clip", "clip=none", "max_norm=2", words=("max_norm = 2.0", 'clip = "none"')),
    _set("lean, clipped", "lean=true", words=("optimizer.lean = true", 'optimizer.clip = "none"')),
    _set("lean, corrected", "lean=true", "clip=none", words=('second_moment = "gradient"',)),
    _set(
        "exact, scaled",
        *("exact=true", "precision=float16"),
        words=('training.precision = "float16"', "optimizer.exact", "bfloat16"),
    ),
    _set(
        "scaled, no skipping",
        *("precision=float16", "skip_nonfinite=false"),
        words=("training.skip_nonfinite = false", "float16"),
    ),
    _set("lean, exact", "lean=true", "exact=true", words=("lean = true", "exact = false")),
    _set(
        "lean with a stored gradient",
        *("optimizer.name=mars-lion", "lean=true", "clip=none", "last_grad_dtype=bfloat16"),
        words=('last_grad_dtype = "bfloat16"', "lean = true"),
    ),
]

MALFORMED = [*_SYNTAX, *_NAMES, *_TYPES, *_OVERRIDES, *_VALUES, *_OPTIMIZERS]
