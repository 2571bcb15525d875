"""A whole comparison: both phases on real workers, what is left, and what is used again."""

import json
from dataclasses import replace

import pytest

from comparison.comparisons import FakePool, Recorder, make_plan
from mars.comparison import conduct as conducting
from mars.comparison.conduct import conduct
from mars.comparison.messages import Event
from mars.comparison.runner import Site
from mars.config.errors import FailedError, RefusedError
from training.runs import make_corpus, records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("comparison")
    make_corpus(made)
    return made


@pytest.fixture(scope="module")
def plan(folder):
    return make_plan(folder, folder / "corpus")


@pytest.fixture(scope="module")
def compared(folder, plan):
    """A comparison of two arms with two rates on one seed, and the best of each on a second."""
    view = Recorder()
    site = Site(folder=folder / "out", jobs=2, keep_checkpoints=False)
    return site.folder, view, conduct(plan, site, view=view)


def trials(out) -> list[dict]:
    return json.loads((out / "comparison.json").read_text())["trials"]


def changed(out) -> dict[str, int]:
    """Return when the records of each trial were last written."""
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in out.rglob("metrics.jsonl")}


def test_the_search_comes_first_and_the_best_rates_on_the_other_seeds_then(compared):
    out, view, done = compared
    best = {each.arm.label: each.best_lr for each in done.analysis.arms}
    assert best["adamw"] == 0.01
    planned = [(trial["arm"], trial["lr"], trial["seed"]) for trial in trials(out)]
    assert planned[:4] == [
        *(("mars-adamw", 0.01, 0), ("adamw", 0.01, 0)),
        *(("mars-adamw", 0.02, 0), ("adamw", 1000.0, 0)),
    ]
    assert planned[4:] == [("mars-adamw", best["mars-adamw"], 1), ("adamw", 0.01, 1)]
    ended = [path for path, _ in view.ends]
    assert sorted(ended[:4]) == sorted(trial["path"] for trial in trials(out)[:4])
    assert sorted(ended[4:]) == sorted(trial["path"] for trial in trials(out)[4:])
    assert len(changed(out)) == 6


def test_the_best_rate_is_that_of_the_lowest_final_loss(compared):
    out, _, done = compared
    arm = next(each for each in done.analysis.arms if each.arm.label == "mars-adamw")
    losses = {
        lr: records(out / f"runs/mars-adamw/lr-{lr:g}/seed-0")[-1]["loss"] for lr in (0.01, 0.02)
    }
    assert arm.best_lr == min(losses, key=losses.get)


def test_runs_of_one_seed_begin_with_the_same_weights_and_data(compared):
    out, _, _ = compared
    first = {}
    for trial in trials(out):
        begun = records(out / trial["path"])[0]
        first.setdefault(trial["seed"], set()).add(begun["loss"])
        assert (begun["step"], begun["split"]) == (1, "train")
    assert [len(losses) for losses in first.values()] == [1, 1]
    assert first[0] != first[1]


def test_a_rate_that_diverges_ends_early(compared):
    out, view, _ = compared
    path = "runs/adamw/lr-1000/seed-0"
    last = records(out / path)[-1]
    assert (last["step"] < 40, last["diverged"]) == (True, 1.0)
    assert (path, "diverged") in view.ends
    assert [status for _, status in view.ends].count("finished") == 5


def test_results_and_page_are_written_and_nothing_else_stays(compared):
    out, view, done = compared
    names = {path.name for path in out.iterdir()}
    assert names == {
        *(".lock", "comparison.json", "runs", "results.json", "report.html", "workers.log"),
    }
    assert json.loads((out / "results.json").read_text()) == done.analysis.as_json()
    assert (out / "report.html").read_text().startswith("<!")
    assert not list(out.rglob("checkpoints"))
    assert done.failures == ()
    assert view.is_closed
    assert (view.board.over, view.board.total, view.board.processes) == (6, 6, 2)


def test_what_is_finished_is_used_again_without_a_worker(compared, plan, folder, monkeypatch):
    out, _, _ = compared
    before, results = changed(out), (out / "results.json").read_bytes()
    monkeypatch.setattr(conducting.Pool, "add", lambda _: pytest.fail("a worker was started"))
    view = Recorder()
    conduct(plan, Site(folder=folder / "out", jobs=2, keep_checkpoints=False), view=view)
    assert changed(out) == before
    assert (out / "results.json").read_bytes() == results
    assert view.ends == []
    assert view.board.reused == 6


def test_more_seeds_add_only_their_own_runs(compared, plan, folder):
    out, _, _ = compared
    before = changed(out)
    site = Site(folder=folder / "out", jobs=1, keep_checkpoints=True)
    done = conduct(replace(plan, seeds=(0, 1, 2)), site, view=Recorder())
    after = changed(out)
    assert {path: at for path, at in after.items() if path in before} == before
    new = sorted(set(after) - set(before))
    best = {each.arm.label: each.best_lr for each in done.analysis.arms}
    assert new == [
        f"runs/{arm}/lr-{best[arm]:g}/seed-2/metrics.jsonl" for arm in ("adamw", "mars-adamw")
    ]
    assert all(each.loss.count == 3 for each in done.analysis.arms)
    assert len(list(out.rglob("step-00000040"))) == 2  # asked to be kept this time


def test_another_config_is_refused_before_anything_changes(compared, folder):
    out, _, _ = compared
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    other = make_plan(folder, folder / "corpus", steps=50)
    site = Site(folder=out, jobs=1, keep_checkpoints=False)
    with pytest.raises(RefusedError, match=r"with another config: training.steps \(was 40, is 50"):
        conduct(other, site, view=Recorder())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_trial_that_fails_is_told_and_the_others_count(folder, tmp_path):
    plan = make_plan(
        tmp_path,
        folder / "corpus",
        rates={"nadamw": (0.01, 0.02), "adamw": (0.01, 1e30)},
        seeds=(0,),
        settings={"training.skip_nonfinite": False},
    )
    view = Recorder()
    site = Site(folder=tmp_path / "out", jobs=1, keep_checkpoints=False)
    done = conduct(plan, site, view=view)
    path = "runs/adamw/lr-1e+30/seed-0"
    assert [failure.path for failure in done.failures] == [path]
    reason = done.failures[0].reason
    assert reason.startswith("the gradients' norm is nan; lower optimizer.lr")
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["failures"] == [{"path": path, "reason": reason}]
    assert sorted(status for _, status in view.ends) == ["failed", *3 * ["finished"]]
    assert [each.best_lr is not None for each in done.analysis.arms] == [True, True]
    assert "NonfiniteError" in (tmp_path / "out" / "workers.log").read_text()


def failing(pool):
    """Every trial starts, and fails."""
    while True:
        for worker in list(pool.workers):
            if not worker.is_ready:
                yield worker, Event(kind="ready", device="cpu", room=1)
            elif worker.trial is not None:
                yield worker, Event(kind="started")
                yield worker, Event(kind="failed", reason="no luck")
        yield None


class OpenPool(FakePool):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.workers.clear()


def test_where_every_run_fails_there_is_no_page(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(conducting, "Pool", lambda *_, **__: OpenPool(failing))
    plan = make_plan(tmp_path, folder / "corpus")
    view = Recorder()
    with pytest.raises(FailedError) as failure:
        conduct(plan, Site(folder=tmp_path / "out", jobs=1, keep_checkpoints=False), view=view)
    assert str(failure.value) == (
        "all 4 runs failed; the first, runs/mars-adamw/lr-0.01/seed-0: no luck"
    )
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len(written["failures"]) == 4
    assert not (tmp_path / "out" / "report.html").exists()
    assert view.is_closed
