"""Every mistake is refused in one line that names it, before anything exists."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from mars.comparison.plan import Plan
from mars.comparison.planning import make_plan
from mars.comparison.request import Request, resolve
from mars.comparison.study import load_study
from mars.config.errors import RefusedError
from mars.config.load import dumps
from mars.config.presets import preset


class Asked(NamedTuple):
    """A mistake on the command line, and words of the refusal."""

    name: str
    given: dict[str, Any]
    words: tuple[str, ...]


def _asked(name: str, *words: str, config: str | None = "quickstart", **given: Any) -> Asked:
    return Asked(name, {"config": config, **given}, words)


REQUESTS = [
    _asked("nothing named", "name a preset, a study or a TOML file", "--list", config=None),
    _asked("unknown name", '"zebra"', "mars train --list", "mars compare --list", config="zebra"),
    _asked("misspelt preset", '"quickstat"', "did you mean quickstart?", config="quickstat"),
    _asked("misspelt study", "did you mean gamma-study?", config="gama-study"),
    _asked("no name", 'unknown preset or study ""', config=""),
    _asked("absent file", "absent.toml: there is no such file", config="absent.toml"),
    _asked("unknown optimizer", "--optimizers", '"adam"', 'mean "adamw"?', optimizers="adam"),
    _asked("no optimizer", "--optimizers", 'got ""', optimizers=""),
    _asked("empty optimizer", "--optimizers", 'got ""', optimizers="adamw,"),
    _asked("optimizer twice", "--optimizers names adamw twice", optimizers="adamw,muon,adamw"),
    _asked("seed twice", "seeds must be different", "[0, 1, 0]", seeds="0,1,0"),
    _asked("negative seed", "seeds must be", "at least 0", "[-1]", seeds="-1"),
    _asked("word as seed", "--seeds", 'seed must be an integer, got "one"', seeds="0,one"),
    _asked("fraction as seed", "--seeds", "an integer, got 1.5", seeds="1.5"),
    _asked("no seeds", "--seeds", 'an integer, got ""', seeds=""),
    _asked("huge seed", "--seeds", "64 bits", seeds="9" * 30),
    _asked("no search seeds", "search_seeds must lie between 1", "3; got 0", search_seeds=0),
    _asked(
        "more search seeds than seeds", "number of seeds, 2; got 3", seeds="0,1", search_seeds=3
    ),
    _asked("unknown baseline", 'baseline "adam" is no arm', 'mean "adamw"?', baseline="adam"),
    _asked("baseline like none", "there are mars-adamw; mars-m; adamw; muon", baseline="zebra"),
    _asked("baseline not compared", '"nadamw" is no arm', optimizers="muon", baseline="nadamw"),
    _asked("no rates", "number of automatic rates (--rates)", "between 1 and 99, got 0", rates=0),
    _asked("too many rates", "between 1 and 99, got 10000000", rates=10**7),
    _asked("factor of one", "automatic rates (--rate-factor)", "above 1", "got 1", rate_factor=1.0),
    _asked("factor of nan", "factor between automatic rates", "got nan", rate_factor=float("nan")),
    _asked("infinite factor", "at most 1000; got inf", rate_factor=float("inf")),
    _asked("factor too near to one", "have 0.006 twice", rate_factor=1.0000001),
    _asked("rates of nobody", '--lr "1e-3,2e-3" names no optimizer', lr=("1e-3,2e-3",)),
    _asked("rates of no name", '--lr "=1e-3" names no optimizer', lr=("=1e-3",)),
    _asked("rates of a stranger", '--lr "lion"', "there are mars-adamw; ", lr=("lion=1e-3",)),
    _asked("rates of a misspelt one", '--lr "adamv"', 'mean "adamw"?', lr=("adamv=1e-3",)),
    _asked("rates twice", '--lr "adamw" is given twice', lr=("adamw=1,2,3", "adamw=1,2,3")),
    _asked("rate twice", '"adamw" have 0.001 twice', lr=("adamw=1e-3,2e-3,0.001",)),
    _asked("rate twice in six digits", '"adamw" have 1 twice', lr=("adamw=1,1.0000001,2",)),
    _asked("nan as rate", '"adamw" must be positive and finite', "nan", lr=("adamw=nan,1,2",)),
    _asked("rate of zero", '"adamw" must be positive', "0.0", lr=("adamw=0,1,2",)),
    _asked("negative rate", '"adamw" must be positive', "-1.0", lr=("adamw=-1,1,2",)),
    _asked("infinite rate", '"muon" must be', "inf", lr=("muon=inf,1,2",)),
    _asked("word as rate", "--lr adamw: optimizer.lr must be a number", "fast", lr=("adamw=fast",)),
    _asked("no rate", "--lr adamw: optimizer.lr must be a number", 'got ""', lr=("adamw=",)),
    _asked(
        "unequal searches",
        "unequal numbers of learning rates",
        "(mars-adamw: 3; mars-m: 3; adamw: 2; muon: 3)",
        lr=("adamw=1e-3,2e-3",),
    ),
    _asked(
        "automatic options without automatic rates",
        "--rates 2 has no meaning",
        optimizers="muon",
        lr=("muon=1,2",),
        rates=2,
    ),
    _asked(
        "automatic factor without automatic rates",
        "--rate-factor 3 has no meaning",
        optimizers="muon",
        lr=("muon=1,2",),
        rate_factor=3.0,
    ),
    _asked("nothing varied", '--vary "gamma" varies nothing', vary=("gamma",)),
    _asked("no values", '--vary "gamma=" varies nothing', vary=("gamma=",)),
    _asked("no key", '--vary "=1,2" varies nothing', vary=("=1,2",)),
    _asked(
        "misspelt key varied", '--vary: unknown key "gama"', "optimizer.gamma?", vary=("gama=0",)
    ),
    _asked("wrong type varied", "--vary: optimizer.gamma must be a number", vary=("gamma=0,x",)),
    _asked("array of one", "optimizer.betas must be an array of 2", vary=("betas=0.9;0.95",)),
    _asked("value twice", "optimizer.gamma is varied over 0.1 twice", vary=("gamma=0.1,0.10",)),
    _asked("key twice", "--vary optimizer.gamma is given twice", vary=("gamma=0", "gamma=1")),
    _asked(
        "key of no optimizer",
        "--vary optimizer.gamma: none of adamw, muon has it; it belongs to mars-adamw",
        optimizers="adamw,muon",
        vary=("gamma=0,1",),
    ),
    _asked("seed varied", "seed cannot be set or varied", "--seeds", vary=("seed=1,2",)),
    _asked("rate varied", "optimizer.lr cannot be set or varied", "--lr", vary=("lr=1,2",)),
    _asked("optimizer varied", "--optimizers", vary=("optimizer.name=adamw,muon",)),
    _asked("name varied", "name cannot be set or varied", vary=("name=a,b",)),
    _asked("seed set", "seed cannot be set or varied", "--seeds", settings=("seed=1",)),
    _asked("rate set", "optimizer.lr cannot be set", "--lr", settings=("optimizer.lr=1",)),
    _asked("optimizer set", "optimizer.name cannot", "--optim", settings=("optimizer.name=muon",)),
    _asked("name set", "name cannot be set", settings=("name=mine",)),
    _asked("description set", "description cannot be set", settings=("description=mine",)),
    _asked("divergence allowed", "stop_diverged cannot be set", settings=("stop_diverged=false",)),
    _asked(
        "unknown key set", "--set: unknown key", "training.steps?", settings=("training.step=1",)
    ),
    _asked("set to nothing", '--set "steps" sets nothing', settings=("steps",)),
    _asked(
        "option that some do not have",
        "optimizer.gamma = 0.1 is set for every run, and adamw has no such option",
        "--vary gamma=",
        settings=("gamma=0.1",),
    ),
    _asked(
        "set and varied",
        "--set optimizer.betas: arms of this comparison differ in it",
        settings=("betas=0.9,0.95",),
        vary=("betas=0.9,0.99",),
    ),
    _asked(
        "varied into a contradiction",
        'arm "mars-adamw, lean true": optimizer.lean = true needs optimizer.clip = "none"',
        vary=("lean=false,true",),
    ),
    _asked("varied out of range", 'arm "mars-adamw, gamma 2"', "in [0, 1]", vary=("gamma=0,2",)),
    _asked("set out of range", 'arm "mars-adamw"', "training.steps", settings=("steps=0",)),
    _asked(
        "rate below the schedule's last",
        'arm "adamw": schedule.min_lr = 0.003 is above the peak optimizer.lr = 0.002',
        optimizers="adamw",
        settings=("min_lr=3e-3",),
    ),
    _asked("optimizers of a study", "--optimizers", "its own", config="clip-study", optimizers=""),
    _asked("varied study", "--vary has no", "its own", config="clip-study", vary=("gamma=0",)),
    _asked(
        "a study's own key set",
        "--set optimizer.clip: arms of this comparison differ in it",
        config="clip-study",
        settings=("clip=none",),
    ),
    _asked(
        "an arm's own key set",
        "--set optimizer.exact",
        config="exact-study",
        settings=("exact=true",),
    ),
    _asked("a study's stranger", '"muon" is no arm', config="clip-study", baseline="muon"),
]


def refusal(**given: Any) -> str:
    """Return why a request is refused."""
    with pytest.raises(RefusedError) as refused:
        resolve(Request(**given), command="mars compare")
    return str(refused.value)


def check_line(message: str, words: tuple[str, ...]) -> None:
    assert [word for word in words if word not in message] == [], message
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.name)
def test_a_mistaken_request_is_refused_in_one_line_that_names_it(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_line(refusal(**case.given), case.words)
    assert list(tmp_path.iterdir()) == []


class Written(NamedTuple):
    """A mistake in a study's file, and words of the refusal."""

    name: str
    toml: str
    words: tuple[str, ...]


ARM = '\n[[arms]]\noptimizer = "mars-adamw"\n'
BASE = 'base = "quickstart"\n'


def _written(name: str, toml: str, *words: str) -> Written:
    return Written(name, toml, words)


def _top(name: str, line: str, *words: str) -> Written:
    return Written(name, BASE + line + ARM, words)


def _arm(name: str, lines: str, *words: str) -> Written:
    return Written(name, BASE + ARM + lines, words)


STUDIES = [
    _written("no base", "seeds = [0]" + ARM, "base is missing", 'base = "quickstart"'),
    _written("base of a number", "base = 3" + ARM, "base must be a string, got 3"),
    _written("unknown base", 'base = "quick"' + ARM, 'mine.toml: unknown preset "quick"'),
    _written("absent base", 'base = "absent.toml"' + ARM, "absent.toml: there is no such file"),
    _written("its own base", 'base = "mine.toml"' + ARM, "mine.toml", "leads back to itself"),
    _written("bad base", 'base = "../wrong.toml"' + ARM, "wrong.toml", "did you mean seeds?"),
    _written("circle", 'base = "../circle.toml"' + ARM, "circle.toml", "leads back to itself"),
    _written("no arms", BASE, "mine.toml has no arms", "[[arms]]"),
    _written("arms in no list", BASE + "arms = 3", "arms must be an array, got 3"),
    _written("arms of numbers", BASE + "arms = [3]", "arm 1: an arm is a table, got 3"),
    _written("syntax", "base = \n", "mine.toml, line 1", "not valid TOML"),
    _top("unknown key", "zebra = 1", 'unknown key "zebra" = 1', "there are base"),
    _top("misspelt key", 'baselin = "x"', 'unknown key "baselin"', "did you mean baseline?"),
    _top("number as description", "description = 3", "description must be a string, got 3"),
    _top("number as baseline", "baseline = 3", "baseline must be a string, got 3"),
    _top("unknown baseline", 'baseline = "adamw"', 'baseline "adamw" is no arm', "mars-adamw"),
    _top("one seed without brackets", "seeds = 3", "seeds must be an array, got 3"),
    _top("text as seed", 'seeds = ["0"]', 'seed must be an integer, got "0"; write 0'),
    _top("flag as seed", "seeds = [true]", "seed must be an integer, got true"),
    _top("no seeds", "seeds = []", "seeds must be different and at least 0, got []"),
    _top("seed twice", "seeds = [1, 1]", "seeds must be different", "[1, 1]"),
    _top("negative seed", "seeds = [-1]", "at least 0", "[-1]"),
    _top("search seeds", "search_seeds = 4", "number of seeds, 3; got 4"),
    _top("fraction of search seeds", "search_seeds = 1.0", "an integer, got 1.0; write 1"),
    _top("rates in no table", "rates = 3", "rates is a table, got 3"),
    _top("misspelt count", "rates.cuont = 3", '"rates.cuont" = 3', "did you mean rates.count?"),
    _top("fraction as count", "rates.count = 1.5", "rates.count must be an integer, got 1.5"),
    _top("text as factor", 'rates.factor = "2"', "rates.factor must be a number", "write 2.0"),
    _top("no count", "rates.count = 0", "between 1 and 99, got 0"),
    _top("factor of one", "rates.factor = 1", "above 1", "got 1"),
    _top("set in no table", "set = 3", "set is a table, got 3"),
    _top("misspelt key set", "set.training.step = 3", '"training.step"', "training.steps?"),
    _top("short key set", "set.steps = 3", 'unknown key "steps"', "training.steps?"),
    _top("wrong type set", 'set.training.steps = "x"', "training.steps must be an integer"),
    _top("seed set", "set.seed = 3", "seed cannot be set or varied", "seeds in a study"),
    _top("rate set", "set.optimizer.lr = 3", "optimizer.lr cannot be set", "rates in a study"),
    _top("quoted key set", 'set."optimizer.gamma" = 0', "leave out the quotes"),
    _top("impossible setting", "set.training.steps = 0", 'arm "mars-adamw": training.steps'),
    _arm("unknown key of an arm", "zebra = 1", 'arm 1: unknown key "zebra" = 1', "optimizer"),
    _arm("misspelt key of an arm", "rate = [1]", "arm 1:", "did you mean rates?"),
    _arm("number as label", "label = 3", "arm 1: label must be a string, got 3"),
    _arm("empty label", 'label = ""', '"" cannot be an arm\'s label'),
    _arm("space around a label", 'label = " a"', '" a" cannot be an arm\'s label'),
    _arm("label of two lines", 'label = "a\\nb"', "U0000000ab", "label"),
    _arm("number as rates", "rates = 1", "arm 1: rates must be an array, got 1"),
    _arm("text as rate", 'rates = ["1"]', "optimizer.lr must be a number", "write 1.0"),
    _arm("no rates", "rates = []", '"mars-adamw" must be positive and finite, got []'),
    _arm("rate twice", "rates = [1, 1.0]", '"mars-adamw" have 1 twice'),
    _arm("negative rate", "rates = [-1]", "must be positive and finite, got [-1.0]"),
    _arm("arm's seed", "set.seed = 1", "arm 1: seed cannot be set"),
    _arm("arm's unknown key", "set.optimizer.gama = 1", "arm 1:", "optimizer.gamma?"),
    _arm("vary in no table", "vary = [1]", "arm 1: vary is a table, got [1]"),
    _arm("one value varied", "vary.optimizer.gamma = 1", '"optimizer.gamma" takes an array', "1"),
    _arm("none varied", "vary.optimizer.gamma = []", "optimizer.gamma is varied over no values"),
    _arm("value twice", "vary.optimizer.gamma = [0, 0.0]", "varied over 0 twice"),
    _arm("seed varied", "vary.seed = [1, 2]", "seed cannot be set or varied"),
    _arm("unknown varied", "vary.optimizer.gama = [1]", "optimizer.gamma?"),
    _arm("section varied", "vary.optimizer = [1]", "optimizer is a section"),
    _arm("betas without brackets", "vary.optimizer.betas = [0.9, 0.95]", "array of 2 numbers"),
    _arm(
        "varied in two ways",
        'vary = { "optimizer.gamma" = [0], optimizer.gamma = [1] }',
        "vary has optimizer.gamma twice",
    ),
    _arm(
        "set and varied",
        "set.optimizer.gamma = 0\nvary.optimizer.gamma = [1]",
        "arm 1: optimizer.gamma is both set and varied",
    ),
    _arm("two of one label", ARM, 'two arms are called "mars-adamw"', "another label"),
    _arm("unequal", ARM + 'label = "b"\nrates = [1]', "unequal numbers", "mars-adamw: 3; b: 1"),
    _arm("no optimizer", '\n[[arms]]\nlabel = "b"', "arm 2: optimizer is missing"),
    _arm("wrong optimizer", '\n[[arms]]\noptimizer = "adm"', "arm 2: optimizer.name", "adamw"),
    _arm(
        "option of another optimizer",
        '\n[[arms]]\noptimizer = "adamw"\nset.optimizer.gamma = 0',
        'arm "adamw, gamma 0": optimizer.gamma = 0.0 has no meaning for adamw',
    ),
]


@pytest.mark.parametrize("case", STUDIES, ids=lambda case: case.name)
def test_a_mistaken_study_is_refused_in_one_line_that_names_it(case, tmp_path):
    (tmp_path / "wrong.toml").write_text("base = 'quickstart'\nseed = 3")
    (tmp_path / "circle.toml").write_text("base = 'deep/mine.toml'")
    path = tmp_path / "deep" / "mine.toml"
    path.parent.mkdir()
    path.write_text(case.toml)
    with pytest.raises(RefusedError) as refused:
        make_plan(load_study(path), command="")
    check_line(str(refused.value).replace(str(tmp_path.resolve()), ""), case.words)


def test_the_mistakes_are_many_and_different():
    assert len(REQUESTS) >= 25
    assert len(STUDIES) >= 25
    for table in (REQUESTS, STUDIES):
        assert len({case.name for case in table}) == len(table)
        assert all(case.words for case in table)


@pytest.mark.parametrize("optimizers", [None, "mars-adamw,adamw"])
def test_a_file_has_no_rate_for_another_optimizer(tmp_path, optimizers):
    path = tmp_path / "mine.toml"
    path.write_text(dumps(preset("quickstart-mars-adamw")))
    other = "mars-m" if optimizers is None else "adamw"
    check_line(
        refusal(config=str(path), optimizers=optimizers),
        (f'"mine" has no learning rate for {other}', f"--lr {other}=V,V"),
    )


def test_a_mistake_in_a_files_study_names_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(BASE + "sead = [1]" + ARM)
    check_line(refusal(config=str(path)), (f"{path}: ", '"sead" = [1]', "did you mean seeds?"))


TEXTS = st.text(max_size=12)
SCRAPS = st.sampled_from(
    ["gamma", "betas", "=", ",", ";", "0", "0.5", "nan", "none", "seed", "auto", "adamw", "lr", ""]
)
WORDS = st.lists(SCRAPS | TEXTS, max_size=6).map("".join)
MANY = st.lists(WORDS, max_size=2).map(tuple)


def refused_or_planned(ask: Callable[[], Plan]) -> str:
    """Return why there is no plan, or the labels of its arms; pass on any error but a refusal."""
    try:
        return " ".join(arm.label for arm in ask().arms)
    except RefusedError as error:
        return str(error)


@given(
    st.fixed_dictionaries(
        {"config": st.sampled_from(["quickstart", "clip-study"]) | WORDS},
        optional={
            "optimizers": WORDS,
            "lr": MANY,
            "rates": st.integers(),
            "rate_factor": st.floats(),
            "seeds": WORDS,
            "search_seeds": st.integers(),
            "vary": MANY,
            "settings": MANY,
            "baseline": WORDS,
        },
    )
)
@example({"config": "a\0b"})
@example({"config": "quickstart", "vary": ("gamma=\ud800",)})
@example({"config": "quickstart", "settings": ("\ud800=1",)})
@example({"config": "\ud800"})
@settings(max_examples=300)
def test_no_request_raises_anything_but_a_refusal(given):
    assert refused_or_planned(lambda: resolve(Request(**given), command="")).isprintable()


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 6), TEXTS), max_size=4))
@settings(max_examples=200)
def test_no_edit_of_a_study_raises_anything_but_a_refusal(tmp_path_factory, edits):
    text = BASE + "search_seeds = 1\nrates.count = 2\n[set]\ntraining.steps = 60\n" + ARM
    text += 'set.optimizer.clip = "none"\nvary = { "optimizer.gamma" = [0, 0.1] }\n'
    for position, deleted, inserted in edits:
        text = text[:position] + inserted + text[position + deleted :]
    path: Path = tmp_path_factory.mktemp("study") / "mine.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert refused_or_planned(lambda: make_plan(load_study(path), command="")).isprintable()
