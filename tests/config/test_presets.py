"""The shipped runs: all of them possible, and those of the papers with the papers' figures."""

import math
import tomllib
from dataclasses import replace
from importlib import resources
from itertools import product
from typing import get_args

import pytest

from mars.config import presets
from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.load import differences, dumps, loads
from mars.config.presets import constants, describe, names, preset, sibling, stem
from mars.config.schema import OptimizerName

OPTIMIZERS = get_args(OptimizerName)
SIZES = ("small", "medium", "large", "xl")
CORPORA = ("openwebtext", "fineweb-edu")
ALIASES = ("quickstart", "digits")
TEXT = [name for name in names() if preset(name).vision.network is None]

# The papers' table, by size: layers/heads/width, then rates of AdamW, Muon, MARS-AdamW and of the
# AdamW beside the latter two, the last rate, and MARS-M's rates on the two corpora. Weight decay
# is 0.1 for AdamW and MARS-M, 0 for Muon, 0.01 for MARS-AdamW.
PUBLISHED = """
small   12/12/768   6e-4  2e-2     6e-3  3e-3    3e-5  6e-3  1e-2
medium  24/16/1024  3e-4  1e-2     3e-3  1.5e-3  6e-5  5e-3  5e-3
large   36/20/1280  2e-4  6.67e-3  2e-3  1e-3    1e-5  5e-3  5e-3
xl      48/25/1600  2e-4  -        2e-3  1e-3    1e-5  -     3e-3
"""
TABLE = {row.split()[0]: row.split()[1:] for row in PUBLISHED.strip().splitlines()}
DECAY = {"adamw": 0.1, "muon": 0.0, "mars-adamw": 0.01, "mars-m": 0.1}


def test_the_presets_are_the_promised_ones():
    expected = ["quickstart"]
    expected += [f"quickstart-{optimizer}" for optimizer in OPTIMIZERS]
    expected += [f"wikitext2-{optimizer}" for optimizer in OPTIMIZERS]
    expected += [f"gpt2-{'-'.join(member)}" for member in product(SIZES, CORPORA, OPTIMIZERS)]
    assert expected == TEXT
    assert len(TEXT) == 1 + 8 + 8 + 64
    datasets, networks = ("cifar10", "cifar100"), ("resnet18", "vit")
    images = ["digits", *(f"digits-{optimizer}" for optimizer in OPTIMIZERS)]
    images += ["-".join(member) for member in product(datasets, networks, OPTIMIZERS)]
    images += ["-literal-".join(member) for member in product(datasets, OPTIMIZERS)]
    assert names() == expected + images


@pytest.mark.parametrize("name", names())
def test_a_preset_is_possible_described_and_survives_dumps(name):
    run = preset(name)
    check(run)
    assert loads(dumps(run)) == run
    assert name in (run.name, *ALIASES)
    assert name.endswith(f"-{run.optimizer.name}") or name in ALIASES
    assert describe(name) == run.description
    assert f"with {run.optimizer.name}" in describe(name)
    assert describe(name).endswith(".")
    assert "{" not in dumps(run)


def test_quickstart_is_its_mars_adamw():
    assert preset("quickstart") == preset("quickstart-mars-adamw")


@pytest.mark.parametrize(("size", "corpus"), list(product(SIZES, CORPORA)))
def test_gpt2_has_the_papers_recipe(size, corpus):
    layers, heads, width = map(int, TABLE[size][0].split("/"))
    for optimizer in OPTIMIZERS:
        run = preset(f"gpt2-{size}-{corpus}-{optimizer}")
        model, training, schedule = run.model, run.training, run.schedule
        assert (model.layers, model.heads, model.width) == (layers, heads, width)
        assert (model.context_length, model.vocab_size) == (1024, 50304)
        assert (model.bias, model.dropout, model.scale_attention_by_layer) == (False, 0.0, True)
        assert (training.steps, training.batch_size, training.grad_clip) == (100_000, 480, 1.0)
        assert (schedule.kind, schedule.warmup_steps) == ("cosine", 2000)
        assert (training.precision, training.compile) == ("bfloat16", True)
        assert (training.validate_every, run.checkpoint.every) == (1000, 1000)
        assert run.data.path == f"data/{corpus}"
        assert run.data.prepare is None


@pytest.mark.parametrize(
    ("size", "corpus", "optimizer"),
    list(product(SIZES, CORPORA, ("adamw", "mars-adamw", "mars-m"))),
)
def test_gpt2_has_the_published_rates(size, corpus, optimizer):
    _, adamw, _, mars, beside, last, *mars_m = TABLE[size]
    run = preset(f"gpt2-{size}-{corpus}-{optimizer}")
    rates = {"adamw": adamw, "mars-adamw": mars, "mars-m": mars_m[CORPORA.index(corpus)]}
    if rates[optimizer] == "-":
        rates[optimizer] = mars_m[1]
        assert "not published" in run.description
    assert run.optimizer.lr == float(rates[optimizer])
    assert run.schedule.min_lr == float(last)
    assert run.optimizer.weight_decay == DECAY[optimizer]
    # The authors' MARS-M has one rate for all parameters.
    assert (
        run.optimizer.lr_1d
        == {
            "adamw": None,
            "mars-adamw": float(beside),
            "mars-m": run.optimizer.lr,
        }[optimizer]
    )


@pytest.mark.parametrize(("size", "corpus"), list(product(SIZES, CORPORA)))
def test_gpt2_muon_takes_the_published_step(size, corpus):
    """The published rate times sqrt(max(1, rows / cols)) is ours times 0.2 sqrt(max(rows, cols)).

    So it is for the attention's matrices and the first of the feed-forward, where rows >= cols.
    """
    run = preset(f"gpt2-{size}-{corpus}-muon")
    published = TABLE[size][2]
    if published == "-":
        published = TABLE["large"][2]
        assert "not published" in run.description
    width = run.model.width
    for rows in (width, 3 * width, 4 * width):
        step = run.optimizer.lr * 0.2 * math.sqrt(max(rows, width))
        # Rates are written with three digits.
        assert step == pytest.approx(float(published) * math.sqrt(rows / width), rel=2e-3)
    assert run.optimizer.weight_decay == DECAY["muon"]
    assert run.optimizer.lr_1d == float(TABLE[size][4])
    assert run.schedule.min_lr == float(TABLE[size][5])


@pytest.mark.parametrize("name", TEXT)
def test_constants_go_with_the_optimizer(name):
    options = preset(name).optimizer
    if options.name.startswith("mars-"):
        assert (options.betas, options.gamma) == ((0.95, 0.99), 0.025)
    if options.name in ("adamw", "nadamw"):
        assert options.betas == (0.9, 0.95)
    if options.name.startswith("mars-") or options.name == "muon":
        assert options.betas is not None
        assert options.betas[0] == 0.95
        assert (options.betas_1d, options.weight_decay_1d) == ((0.9, 0.95), 0.1)
        assert options.lr_1d is not None


@pytest.mark.parametrize("size", SIZES)
def test_what_is_not_published_says_so(size):
    for corpus in CORPORA:
        for optimizer in ("mars-lion", "mars-shampoo", "nadamw", "lion"):
            assert "not published" in describe(f"gpt2-{size}-{corpus}-{optimizer}")
    published = {"mars-adamw", "adamw", "mars-m"}
    said = {
        (corpus, optimizer)
        for corpus, optimizer in product(CORPORA, OPTIMIZERS)
        if "as published" in describe(f"gpt2-{size}-{corpus}-{optimizer}")
    }
    on = {"small": CORPORA, "medium": CORPORA[:1], "large": CORPORA[:1], "xl": CORPORA[1:]}[size]
    also = {("fineweb-edu", "mars-m")}  # MARS-M's table has all sizes there
    assert said == set(product(on, published)) | also


def test_quickstart_has_the_tuned_rates():
    rates = {
        optimizer: preset(f"quickstart-{optimizer}").optimizer.lr
        for optimizer in OPTIMIZERS
        if "untuned" not in describe(f"quickstart-{optimizer}")
    }
    assert rates == {"mars-adamw": 6e-3, "mars-m": 1.6e-2, "adamw": 4e-3, "muon": 1.6e-2}


def test_quickstart_is_the_run_of_the_learning_curves():
    run = preset("quickstart")
    model, training = run.model, run.training
    assert (model.layers, model.heads, model.width, model.context_length) == (4, 4, 128, 128)
    assert (model.vocab_size, training.batch_size, training.steps) == (257, 16, 500)
    assert (run.data.path, run.data.prepare) == ("data/stdlib", "stdlib")
    assert (run.schedule.kind, run.schedule.warmup_steps, run.schedule.min_lr) == ("cosine", 50, 0)
    for optimizer in OPTIMIZERS:
        options = preset(f"quickstart-{optimizer}").optimizer
        assert options.weight_decay == (0.01 if optimizer.startswith("mars-") else 0.1)


@pytest.mark.parametrize("family", ["quickstart", "wikitext2"])
def test_shampoo_takes_the_step_of_mars_m(family):
    shampoo, mars_m = preset(f"{family}-mars-shampoo"), preset(f"{family}-mars-m")
    scale = 0.2 * math.sqrt(shampoo.model.width)
    assert shampoo.optimizer.lr == pytest.approx(mars_m.optimizer.lr * scale, rel=0.01)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_wikitext2_halves_the_rates_of_quickstart(optimizer):
    small, wide = preset(f"quickstart-{optimizer}"), preset(f"wikitext2-{optimizer}")
    assert wide.model.width == 2 * small.model.width
    # MARS-Shampoo's direction shrinks with the root of the width beside AdamW's.
    factor = math.sqrt(0.5) if optimizer == "mars-shampoo" else 0.5
    assert wide.optimizer.lr == pytest.approx(factor * small.optimizer.lr, rel=0.01)
    assert "untuned" in wide.description


def test_members_of_a_family_differ_in_their_axes_alone():
    small = preset("gpt2-small-openwebtext-adamw")
    changed = differences(small, preset("gpt2-small-fineweb-edu-adamw"))
    assert [change.key for change in changed] == ["name", "description", "data.path"]
    changed = differences(small, preset("gpt2-small-openwebtext-nadamw"))
    assert [change.key for change in changed] == ["name", "description", "optimizer.name"]


@pytest.mark.parametrize("name", TEXT)
def test_siblings_differ_in_the_optimizer_and_what_goes_with_it_alone(name):
    run = preset(name)
    for optimizer in OPTIMIZERS:
        other = sibling(name, optimizer=optimizer)
        assert other.optimizer.name == optimizer
        assert other.name == f"{stem(name)}-{optimizer}"
        assert other == sibling(stem(name), optimizer=optimizer)
        changed = {key for key, *_ in differences(run, other) if not key.startswith("optimizer.")}
        # Lion's rates end at 0: see the family's file.
        assert changed <= {"name", "description", "schedule.min_lr"}
    assert sibling(name, optimizer=run.optimizer.name) == run


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart", "quickstart"),
        ("quickstart-mars-m", "quickstart"),
        ("wikitext2", "wikitext2"),
        ("gpt2-xl-fineweb-edu-mars-adamw", "gpt2-xl-fineweb-edu"),
        ("gpt2-small-openwebtext", "gpt2-small-openwebtext"),
    ],
)
def test_a_stem_is_a_name_without_its_optimizer(name, expected):
    assert stem(name) == expected


def test_a_stem_of_no_preset_is_refused_with_the_nearest_name():
    with pytest.raises(RefusedError, match=r'unknown preset "quickstat"; did you mean quickstart'):
        stem("quickstat")
    with pytest.raises(RefusedError, match='unknown preset "gpt2"'):
        sibling("gpt2", optimizer="muon")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_constants_are_what_all_presets_of_an_optimizer_share(optimizer):
    shared = constants(optimizer)
    assert shared.name == optimizer
    for name in ("quickstart", "wikitext2"):
        own = sibling(name, optimizer=optimizer).optimizer
        assert replace(own, lr=shared.lr, lr_1d=None, fused=True) == shared
    for size, corpus in product(SIZES, CORPORA):
        own = sibling(f"gpt2-{size}-{corpus}", optimizer=optimizer).optimizer
        assert (own.betas, own.gamma, own.betas_1d) == (shared.betas, shared.gamma, shared.betas_1d)


def cases() -> list[tuple[str, dict]]:
    """Return the special cases of every file, with the file's name."""
    folder = resources.files("mars.config") / "presets"
    files = {path.name: tomllib.loads(path.read_text()) for path in folder.iterdir()}
    return [(name, case) for name, tables in files.items() for case in tables["when"]]


@pytest.mark.parametrize(("file", "case"), cases())
def test_every_special_case_describes_some_member_and_not_all(file, case):
    own = tomllib.loads((resources.files("mars.config") / "presets" / file).read_text())
    axes = {"optimizer": OPTIMIZERS, **own.get("axes", {})}
    members = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    among = [member for member in members if presets._is_among(member, case["if"])]
    assert 0 < len(among) < len(members)
    for axis, allowed in case["if"].items():
        assert {allowed} if isinstance(allowed, str) else set(allowed) <= set(axes[axis])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quickstrat", r'unknown preset "quickstrat"; did you mean quickstart\? mars train --list'),
        ("Quickstart", r"did you mean quickstart\?"),
        ("gpt2-smal-openwebtext-muon", r"did you mean gpt2-small-openwebtext-muon\?"),
        ("zebra", r'^unknown preset "zebra"; mars train --list shows all$'),
        ("", r'^unknown preset ""; mars train --list shows all$'),
        ("two\nlines", r'^unknown preset "two\\U0000000alines"; mars train --list shows all$'),
    ],
)
def test_an_unknown_preset_is_refused_with_the_nearest_name(name, message):
    with pytest.raises(RefusedError, match=message):
        preset(name)
