"""The benchmark: real runs on small sizes, and the laws their figures obey. No absolute times."""

import contextlib
import importlib.util
import io
import json
import statistics
import warnings
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from rich.console import Console
from torch import nn

from mars import cli
from mars.bench import measure, memory, options, report, subjects, traffic
from mars.bench.memory import human_bytes, in_groups, needed_bytes
from mars.bench.options import BenchOptions, resolve
from mars.bench.run import run
from mars.bench.shapes import size_of
from mars.bench.subjects import BASELINE, MUON_NAME, Subject
from mars.config.errors import RefusedError
from mars.optim.options import MarsType

TINY = "40Kx10"
# Tensors that are just large enough for a compiled kernel.
LEAST_COMPILED = "400Kx10"


def bench(tmp_path_factory, *arguments: str) -> SimpleNamespace:
    """Run the command and return what it printed and what it wrote."""
    path = tmp_path_factory.mktemp("bench") / "report.json"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["bench", "--quick", *arguments, "--json", str(path)])
    assert code == 0
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]
    return SimpleNamespace(text=out.getvalue(), data=json.loads(path.read_text()))


@pytest.fixture(scope="module")
def elementwise(tmp_path_factory):
    types = ("mars-adamw", "mars-lion")
    engines = ("eager", "lean-eager")
    return bench(tmp_path_factory, "--types", *types, "--engines", *engines)


@pytest.fixture(scope="module")
def matrices(tmp_path_factory):
    types = ("mars-shampoo", "mars-m")
    engines = ("eager", "lean-eager")
    more = ("--sizes", TINY, "10Kx10", "--rounds", "2", "--threads", "1")
    return bench(tmp_path_factory, "--types", *types, "--engines", *engines, *more)


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    engines = ("fused", "lean-fused")
    more = ("--sizes", LEAST_COMPILED, "--no-ports", "--steps", "2", "--rounds", "2")
    return bench(tmp_path_factory, "--types", "mars-adamw", "--engines", *engines, *more)


@pytest.fixture(params=["elementwise", "matrices", "fused"])
def any_run(request):
    return request.getfixturevalue(request.param)


def rows(ran: SimpleNamespace, size: int = 0) -> dict[str, dict]:
    """Return the rows of a size by subject; of the baseline, that of the first group."""
    return {row["subject"]: row for row in reversed(ran.data["sizes"][size]["rows"])}


# What a run contains.


def test_the_file_says_what_ran_on_what(any_run):
    data = any_run.data
    assert data["schema"] == 1
    assert data["command"].startswith("mars bench --quick --types mars-")
    assert {"cpu", "cores", "threads", "memory_bytes", "load_average"} <= set(data["machine"])
    assert data["machine"]["threads"] == torch.get_num_threads()  # one in the tests
    assert set(data["versions"]) == {"mars", "torch", "python"}
    assert data["versions"]["torch"] == torch.__version__
    assert {"sizes", "types", "engines", "steps", "rounds"} <= set(data["options"])
    assert {"verdict", "verdict_size", "notes"} <= set(data)


def test_every_type_and_engine_is_compared_with_torch_and_the_ports(elementwise, matrices, fused):
    assert {name for name in rows(elementwise) if not name.startswith(OPTIONAL)} == {
        *("torch AdamW fused", "torch AdamW foreach"),
        *("mars-adamw eager", "mars-adamw lean-eager", "mars-lion eager", "mars-lion lean-eager"),
        *("pytorch_optimizer adamw", "pytorch_optimizer lion"),
    }
    assert set(rows(matrices)) == {
        *("torch AdamW fused", "torch AdamW foreach", MUON_NAME, "pytorch_optimizer shampoo"),
        *("mars-shampoo eager", "mars-shampoo lean-eager", "mars-m eager", "mars-m lean-eager"),
    }
    torch_s = {"torch AdamW fused", "torch AdamW foreach"}
    assert set(rows(fused)) == torch_s | {"mars-adamw fused", "mars-adamw lean-fused"}


def test_absent_ports_are_noted(elementwise, fused):
    for package in OPTIONAL:
        if importlib.util.find_spec(package) is None:
            assert f"{package} is left out: not installed" in elementwise.data["notes"]
    assert fused.data["notes"] == []  # no ports were asked for, no compiler was missing


def test_samples_are_steps_times_rounds_and_few_where_matrices_are_orthogonalised(
    elementwise, matrices, fused
):
    assert {row["samples"] for row in rows(elementwise).values()} == {3}
    assert {row["samples"] for row in rows(fused).values()} == {4}
    for row in matrices.data["sizes"][0]["rows"]:
        assert row["samples"] == (6 if row["group"] == 0 else 3)


# The laws of the figures.


def test_medians_and_quartiles_are_those_of_the_steps(any_run):
    for size in any_run.data["sizes"]:
        for row in size["rows"]:
            assert len(row["step_ms"]) == row["samples"]
            assert min(row["step_ms"]) > 0
            assert row["median_ms"] == pytest.approx(statistics.median(row["step_ms"]))
            lower, _, upper = statistics.quantiles(row["step_ms"], n=4, method="inclusive")
            assert (row["lower_ms"], row["upper_ms"]) == pytest.approx((lower, upper))


def test_ratios_are_to_the_baseline_of_the_same_group(any_run):
    for size in any_run.data["sizes"]:
        for index in range(len(size["copy_gb_per_s"])):
            group = [row for row in size["rows"] if row["group"] == index]
            assert group[0]["subject"] == BASELINE
            assert group[0]["ratio"] == 1
            assert len(group) > 1
            for row in group:
                ratio = row["median_ms"] / group[0]["median_ms"]
                assert row["ratio"] == pytest.approx(ratio)


def test_bandwidth_is_bytes_over_time_and_over_that_of_copying(any_run):
    for size in any_run.data["sizes"]:
        for row in size["rows"]:
            moved = row["bytes_per_parameter"] * size["parameters"]
            assert row["gb_per_s"] == pytest.approx(moved / row["median_ms"] / 1e6)
            copying = size["copy_gb_per_s"][row["group"]]
            assert row["copy_share"] == pytest.approx(row["gb_per_s"] / copying)


MOVED_AND_KEPT = {
    "torch AdamW fused": (28, 8),
    "torch AdamW foreach": (28, 8),
    "mars-adamw eager": (44, 12),
    "mars-adamw fused": (44, 12),
    "mars-adamw lean-eager": (28, 8),
    "mars-adamw lean-fused": (28, 8),
    "mars-lion eager": (36, 8),
    "mars-lion lean-eager": (20, 4),
    "mars-shampoo eager": (44, 8),
    "mars-shampoo lean-eager": (28, 4),
    "mars-m eager": (44, 8),
    "mars-m lean-eager": (28, 4),
    MUON_NAME: (28, 4),
    "pytorch_optimizer adamw": (44, 12),
    "pytorch_optimizer lion": (36, 12),
    "pytorch_optimizer shampoo": (44, 12),
}
# Ports that the tests do not need.
OPTIONAL = ("heavyball",)


def test_bytes_moved_and_kept_a_parameter(any_run):
    for name, row in rows(any_run).items():
        if name.startswith(OPTIONAL):
            continue
        kept = row["bytes_per_parameter"], row["state_bytes_per_parameter"]
        assert kept == MOVED_AND_KEPT[name], name


def test_memory_of_a_step_is_within_the_estimate(any_run):
    found, _ = subjects.subjects(resolve(BenchOptions(quick=True)))
    by_name = {subject.name: subject for subject in found}
    for size in any_run.data["sizes"]:
        for row in size["rows"]:
            subject = by_name[row["subject"]]
            estimate = 4 * size["parameters"] * subject.scratch_copies + memory._FIXED_BYTES
            assert 0 <= row["peak_extra_bytes"] <= estimate


def test_torch_foreach_holds_a_copy_of_the_model_and_fused_steps_hold_nothing(any_run):
    size = any_run.data["sizes"][0]
    for name, row in rows(any_run).items():
        if name == "torch AdamW foreach":
            assert row["peak_extra_bytes"] >= 4 * size["parameters"]
        if name.endswith("fused"):
            assert row["peak_extra_bytes"] < 0.01 * 4 * size["parameters"]


# The verdict.


def test_a_budget_is_met_if_the_measured_figure_is_at_most_the_limit(any_run):
    assert any_run.data["verdict"]
    for verdict in any_run.data["verdict"]:
        assert verdict["met"] == (verdict["measured"] <= verdict["limit"])
        assert verdict["aim"] is None or verdict["aim"] < verdict["limit"]


def measured(ran: SimpleNamespace) -> dict[str, float]:
    return {verdict["budget"]: verdict["measured"] for verdict in ran.data["verdict"]}


def test_the_verdict_takes_its_figures_from_the_rows(elementwise, matrices, fused):
    ratio = rows(elementwise)["mars-adamw eager"]["ratio"]
    assert measured(elementwise)["step: mars-adamw eager / torch AdamW fused"] == ratio
    found = measured(fused)
    for engine in ("fused", "lean-fused"):
        ratio = rows(fused)[f"mars-adamw {engine}"]["ratio"]
        assert found[f"step: mars-adamw {engine} / torch AdamW fused"] == ratio
    for name in ("mars-m eager", "mars-shampoo eager"):
        over = rows(matrices)[name]["median_ms"] / rows(matrices)[MUON_NAME]["median_ms"]
        assert measured(matrices)[f"step: {name} / {MUON_NAME}"] == pytest.approx(over)


def test_state_is_judged_at_12_10_and_8_bytes(elementwise, fused):
    for ran in (elementwise, fused):
        state = {k: v for k, v in measured(ran).items() if k.startswith("state")}
        assert state == {
            "state a parameter: mars-adamw": 12,
            "state a parameter: mars-adamw lean": 8,
            "state a parameter: mars-adamw, bfloat16 last_grad": 10,
        }


def test_extra_memory_is_judged_on_the_worst_of_ours(matrices):
    (budget,) = [b for b in measured(matrices) if b.startswith("extra memory")]
    ours = [row for row in matrices.data["sizes"][0]["rows"] if row["subject"].startswith("mars-")]
    worst = max(row["peak_extra_bytes"] for row in ours)
    largest = matrices.data["sizes"][0]["largest_tensor_bytes"]
    assert largest == 4 * 4000
    assert measured(matrices)[budget] == worst / (largest + 64 * 2**20)


# What is printed.


def test_the_tables_are_plain_and_fit_100_columns(any_run):
    assert "\x1b" not in any_run.text
    assert max(map(len, any_run.text.splitlines())) <= 100
    assert "…" not in any_run.text
    for name in rows(any_run):
        assert any(line.startswith(f"{name} ") for line in any_run.text.splitlines())


def test_growth_is_shown_if_there_are_several_sizes(elementwise, matrices):
    assert "Growth" not in elementwise.text
    growth = matrices.text[matrices.text.index("Growth") :]
    assert "40Kx10 (10)" in growth
    assert "10Kx10 (10)" in growth
    row = rows(matrices, size=1)["mars-m eager"]
    line = next(line for line in growth.splitlines() if line.startswith("mars-m eager"))
    assert line.endswith(f"({row['ratio']:.2f})")


def test_another_size_than_the_budgets_are_set_for_is_called_so(elementwise):
    assert elementwise.data["verdict_size"] == "1M"
    assert "they are set for small" in elementwise.text


def test_columns_survive_figures_of_any_size():
    values = [report._digits(value) for value in (0.0012, 0.05, 0.123456, 9.876, 99.96, 123456.7)]
    assert values == ["0.001", "0.050", "0.123", "9.88", "100", "123457"]
    assert [human_bytes(b) for b in (12, 1000, 2_100_000, 999_999, 1.5e9, 5e12)] == [
        *("12 B", "1 kB", "2.1 MB", "1 MB", "1.5 GB", "5e+03 GB"),
    ]


# Options and sizes.


def test_the_types_are_those_of_the_library():
    assert get_args(options.MarsType) == get_args(MarsType)


def test_quick_changes_defaults_and_not_what_is_asked_for():
    plan = resolve(BenchOptions(quick=True))
    assert (plan.sizes, plan.steps, plan.rounds) == (("1M",), 3, 1)
    plan = resolve(BenchOptions(quick=True, sizes=("medium",), steps=5, rounds=4))
    assert (plan.sizes, plan.steps, plan.rounds) == (("medium",), 5, 4)
    plan = resolve(BenchOptions())
    assert (plan.sizes, plan.steps, plan.rounds) == (("small",), 10, 3)


def test_what_is_asked_for_twice_is_measured_once():
    plan = resolve(BenchOptions(sizes=("1M", "2M", "1M"), types=("mars-m", "mars-m")))
    assert (plan.sizes, plan.types) == (("1M", "2M"), ("mars-m",))


def test_gpt2_has_its_published_number_of_parameters():
    small, medium = size_of("small"), size_of("medium")
    assert (small.elements, len(small.shapes)) == (124_439_808, 148)
    assert (medium.elements, len(medium.shapes)) == (354_823_168, 292)
    assert small.largest_bytes == 4 * 50257 * 768
    hidden = sum(shape.elements for shape in small.shapes if shape.role == "matrix")
    assert hidden == 12 * 12 * 768**2


@pytest.mark.parametrize(
    ("name", "elements", "tensors", "shape"),
    [
        ("1M", 10**6, 10, (250, 400)),
        ("10Mx1000", 10**7, 1000, (100, 100)),
        ("10Mx10", 10**7, 10, (1000, 1000)),
        ("355M", 355 * 10**6, 10, None),
        ("600x1", 600, 1, (24, 25)),
    ],
)
def test_elements_are_spread_over_equal_matrices(name, elements, tensors, shape):
    size = size_of(name)
    assert size.elements == elements
    assert len(size.shapes) == tensors
    assert len({s.shape for s in size.shapes}) == 1
    assert shape in (None, size.shapes[0].shape)


# Traffic.


def test_traffic_is_counted_from_the_passes():
    assert traffic.Traffic(("a b -> c", "d ->")).moved == 16
    moved = {name: rule.moved for name, rule in traffic.BUFFERED.items()}
    assert moved == {"mars-adamw": 44, "mars-lion": 36, "mars-shampoo": 44, "mars-m": 44}
    moved = {name: rule.moved for name, rule in traffic.LEAN.items()}
    assert moved == {"mars-adamw": 28, "mars-lion": 20, "mars-shampoo": 28, "mars-m": 28}
    assert (traffic.ADAMW.moved, traffic.MUON.moved, traffic.UNCLIPPED.moved) == (28, 28, 36)


def test_traffic_of_gpt2_is_weighted_by_role():
    found = {s.name: s for s in subjects.subjects(resolve(BenchOptions()))[0]}
    small = size_of("small")
    hidden = sum(s.elements for s in small.shapes if s.role == "matrix")
    vectors = sum(s.elements for s in small.shapes if s.role == "vector")
    assert found["mars-m fused"].moved_bytes(small) == 44 * hidden + 28 * (small.elements - hidden)
    expected = 44 * (small.elements - vectors) + 28 * vectors
    assert found["mars-adamw fused"].moved_bytes(small) == expected


# Subjects.


def every_subject() -> list[Subject]:
    found, _ = subjects.subjects(resolve(BenchOptions(engines=("eager", "lean-eager"))))
    return found


UNCOMPILED = [name for name in MOVED_AND_KEPT if not (name[:4] == "mars" and "fused" in name)]
ROLES = (((8, 6), "matrix"), ((6, 8), "matrix"), ((20, 6), "embedding"), ((6,), "vector"))


def owned_and_gradients():
    generator = torch.Generator().manual_seed(0)
    owned = [(nn.Parameter(torch.randn(s, generator=generator)), role) for s, role in ROLES]
    return owned, [torch.randn(s, generator=generator) for s, _ in ROLES]


@pytest.mark.parametrize("name", UNCOMPILED)
def test_every_subject_moves_every_parameter_and_leaves_shared_gradients(name):
    (subject,) = [s for s in every_subject() if s.name == name]
    owned, grads = owned_and_gradients()
    kept = [grad.clone() for grad in grads]
    before = [param.detach().clone() for param, _ in owned]
    contender = measure.Contender(subject, owned, grads)
    for _ in range(2):
        contender.prepare()
        contender.step()
    assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))
    for (param, _), old in zip(owned, before, strict=True):
        assert not torch.equal(param, old)


def test_every_subject_has_the_same_learning_rate_and_decay():
    for subject in every_subject():
        groups = [g for o in subject.build(owned_and_gradients()[0]) for g in o.param_groups]
        assert {(group["lr"], group["weight_decay"]) for group in groups} == {(1e-4, 0.1)}


def test_muon_takes_hidden_matrices_and_adamw_the_rest():
    owned, _ = owned_and_gradients()
    (muon_subject,) = [s for s in every_subject() if s.name == MUON_NAME]
    muon, adamw = muon_subject.build(owned)
    assert [p.shape for p in muon.param_groups[0]["params"]] == [(8, 6), (6, 8)]
    assert [p.shape for p in adamw.param_groups[0]["params"]] == [(20, 6), (6,)]


def test_a_port_is_left_out_with_the_reason(tmp_path, monkeypatch):
    assert subjects._absence("no_such_package_at_all") == "not installed"
    (tmp_path / "broken_port.py").write_text("raise RuntimeError('no operator')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert subjects._absence("broken_port") == "it does not import here (RuntimeError)"
    assert subjects._absence("json") is None


def test_ports_are_timed_for_the_types_they_have(monkeypatch):
    monkeypatch.setattr(subjects, "_absence", lambda package: None)

    def names(*types):
        found, notes = subjects.subjects(resolve(BenchOptions(types=types, engines=("eager",))))
        assert notes == []
        return [s.name for s in found if not s.name.startswith(("torch", "mars"))]

    ports = ["pytorch_optimizer adamw", "heavyball AdamW mars"]
    assert names("mars-adamw") == ports
    assert names("mars-m") == []


def test_a_subject_that_compiles_all_tensors_at_once_is_spared_a_thousand_of_them(monkeypatch):
    slow = Subject("slow", lambda owned: [], {}, most_tensors=300)
    assert slow.takes(size_of("small"))
    assert not slow.takes(size_of("10Mx1000"))
    real = subjects.subjects(resolve(BenchOptions(types=("mars-lion",), engines=("eager",))))[0]
    monkeypatch.setattr("mars.bench.run.subjects", lambda plan: ([*real, slow], []))
    plan = resolve(BenchOptions(quick=True, sizes=("1Kx500",), steps=1))
    done = run(plan, command="", tell=lambda line: None)
    assert "slow" not in {row.subject for row in done.sizes[0].rows}
    assert done.notes == ("1Kx500: slow is left out, it compiles 500 tensors into one function",)


# Measuring.


def test_steps_are_taken_in_turn():
    calls: list[str] = []

    def turn(name):
        return (lambda: calls.append(f"prepare {name}"), lambda: calls.append(name))

    seconds = measure.in_turn({name: turn(name) for name in "abcd"}, steps=20, seed=0)
    assert {name: len(times) for name, times in seconds.items()} == dict.fromkeys("abcd", 20)
    assert calls[::2] == [f"prepare {name}" for name in calls[1::2]]
    turns = ["".join(calls[1::2][i : i + 4]) for i in range(0, 80, 4)]
    assert {"".join(sorted(turn)) for turn in turns} == {"abcd"}
    assert len(set(turns)) > 10  # of 24 orders, so that nobody always follows the same one


def test_memory_is_what_a_step_holds_beyond_what_it_found():
    kept = []

    def step():
        scratch = torch.empty(1000)
        kept.append(torch.empty(500))
        del scratch
        torch.empty(2000)

    assert measure.held_bytes(step) == (4 * 2500, 4 * 500)


def test_counts_are_no_state_and_nested_state_is():
    param = nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.SGD([param])
    optimizer.state[param] = {"step": torch.tensor(1.0), 0: {"m": torch.ones(3, 2), "set": {1}}}
    assert measure.state_bytes([optimizer]) == 24


def test_quartiles_of_one_sample_are_that_sample():
    assert measure.quartiles([2.0]) == (2, 2, 2)
    assert measure.quartiles([1.0, 2.0, 3.0]) == (1.5, 2, 2.5)


class Greedy(torch.optim.SGD):
    """Writes to gradients, then drops them, and says something about it once."""

    has_warned = False

    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                assert float(param.grad.abs().max()) < 0.01
                param.grad.fill_(7.0)
                param.grad = None
        if not self.has_warned:
            warnings.warn("fell back to something slow\nat length", UserWarning, stacklevel=2)
            warnings.warn("old-fashioned", DeprecationWarning, stacklevel=2)
        self.has_warned = True


def test_a_subject_that_takes_its_gradients_gets_its_own_and_its_warnings_are_kept():
    def build(owned):
        return [Greedy([p for p, _ in owned])]

    rule = dict.fromkeys(("matrix", "embedding", "vector"), traffic.ADAMW)
    group = [every_subject()[0], Subject("greedy", build, rule, own_gradients=True)]
    told: list[str] = []
    done = measure.measure(size_of("1Kx2"), group, steps=2, rounds=2, tell=told.append)
    assert [len(one.seconds) for one in done.subjects] == [4, 4]
    assert [one.warnings for one in done.subjects] == [(), ("fell back to something slow",)]
    assert len(done.copy_seconds) == 4
    assert done.copied_bytes == 2 * 4 * 1000
    assert told[-1] == "1Kx2, round 2 of 2: 2 steps of each in turn"


def test_a_step_of_minutes_is_taken_once_and_its_memory_is_without_the_state(monkeypatch):
    monkeypatch.setattr(measure, "_SLOW_SECONDS", -1.0)
    size = size_of("100Kx10")
    found = [s for s in every_subject() if s.name in (BASELINE, "torch AdamW foreach")]
    done = measure.measure(size, found, steps=3, rounds=1, tell=lambda line: None)
    fused, foreach = done.subjects
    assert [len(one.seconds) for one in done.subjects] == [1, 1]
    assert fused.state_bytes == foreach.state_bytes == 8 * size.elements
    assert fused.peak_extra_bytes < 0.1 * size.elements
    assert 4 * size.elements <= foreach.peak_extra_bytes < 8 * size.elements


def test_threads_are_given_back(monkeypatch):
    before = torch.get_num_threads()
    asked = resolve(BenchOptions(quick=True, sizes=("1Kx2",), types=("mars-lion",), threads=2))
    monkeypatch.setattr("mars.bench.run.subjects", lambda plan: (every_subject()[:2], []))
    done = run(asked, command="", tell=lambda line: None)
    assert done.machine["threads"] == 2
    assert torch.get_num_threads() == before


# Memory.


def test_all_subjects_share_a_group_if_they_fit():
    found = every_subject()
    groups = in_groups(size_of("small"), found, available=10**12)
    assert len(groups) == 2
    assert {s.name for s in groups[0]} | {s.name for s in groups[1]} == {s.name for s in found}
    assert not any(s.orthogonalizes for s in groups[0])
    assert all(s.orthogonalizes for s in groups[1][1:])


def test_groups_stay_within_memory_and_each_has_the_baseline():
    found, size, available = every_subject(), size_of("small"), 10**10
    groups = in_groups(size, found, available=available)
    assert len(groups) > 2
    assert all(group[0].name == BASELINE and len(group) > 1 for group in groups)
    assert all(needed_bytes(size, group) <= available for group in groups)
    measured_once = [s.name for group in groups for s in group[1:]]
    assert sorted(measured_once) == sorted(s.name for s in found[1:])


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(RefusedError, match=r"medium \(354,823,168 parameters\) does not fit") as e:
        in_groups(size_of("medium"), every_subject(), available=4 * 10**9)
    assert "3.2 GB can be used" in str(e.value)


def test_nothing_is_measured_if_one_size_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "mars.bench.run.measure", lambda *_, **__: pytest.fail("measured before the refusal")
    )
    path = tmp_path / "report.json"
    assert cli.main(["bench", "--sizes", "1M", "900G", "--no-ports", "--json", str(path)]) == 2
    assert not path.exists()
    assert "900G" in capsys.readouterr().err


def test_a_container_that_allows_less_than_the_machine_has_counts(tmp_path, monkeypatch):
    machine = memory.available_bytes()
    assert 0 < machine <= (memory.total_bytes() or machine)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    assert memory.available_bytes() == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 3000


def test_several_groups_of_a_kind_are_noted(monkeypatch):
    chosen = [s for s in every_subject() if not s.orthogonalizes][:3]
    monkeypatch.setattr("mars.bench.run.subjects", lambda plan: (chosen, []))
    monkeypatch.setattr(
        "mars.bench.run.in_groups", lambda size, found: [[found[0], s] for s in found[1:]]
    )
    plan = resolve(BenchOptions(quick=True, sizes=("1Kx2",), steps=1))
    done = run(plan, command="", tell=lambda line: None)
    assert done.notes == ("1Kx2: measured in 2 groups, because of memory",)
    assert [row.subject for row in done.sizes[0].rows].count(BASELINE) == 2
    console = Console(file=io.StringIO(), width=100)
    report.show(done, console)
    assert console.file.getvalue().count(BASELINE) >= 2


def test_importing_is_compared_in_fresh_processes(monkeypatch):
    imported = []
    monkeypatch.setattr(measure, "_run", imported.append)
    ours, torchs = measure.import_seconds(pairs=4)
    assert sorted(imported) == ["from mars import MARS"] * 4 + ["import torch"] * 4
    assert min(ours, torchs) > 0
