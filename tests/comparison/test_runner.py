"""Who trains what: a runner on workers that follow a script."""

import json

import pytest

from comparison.comparisons import FakePool, Recorder, make_plan
from mars.comparison.board import Board
from mars.comparison.messages import Event
from mars.comparison.plan import search_trials
from mars.comparison.runner import Runner, Site, StoppedError
from mars.config.errors import FailedError, RefusedError
from mars.config.load import dumps, loads
from mars.metrics.record import Record
from mars.training.signals import StopRequest

READY = Event(kind="ready", device="cpu", room=2)
STARTED = Event(kind="started")
DIED = Event(kind="died", reason="its process was ended by SIGKILL")


def done(loss: float = 2.0) -> Event:
    return Event(kind="finished", step=40, loss=loss)


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path, tmp_path / "corpus")


def run(plan, folder, script, *, jobs=None, stop=None, keep_checkpoints=False):
    """Run the search of a plan on a scripted pool; return the runner, the pool and the view."""
    pool, view, board = FakePool(script), Recorder(), Board(plan)
    site = Site(folder=folder / "out", jobs=jobs, keep_checkpoints=keep_checkpoints)
    runner = Runner(site, pool=pool, board=board, view=view, stop=stop or StopRequest())
    error = None
    try:
        runner.run(search_trials(plan))
    except (RefusedError, FailedError, StoppedError) as raised:
        error = raised
    return runner, pool, view, error


def smoothly(pool):
    """Every worker becomes ready and finishes what it is given."""
    while True:
        for worker in list(pool.workers):
            if not worker.is_ready:
                yield worker, READY
            elif worker.trial is not None:
                yield worker, STARTED
                yield worker, Event(kind="train", step=1, loss=5.0, seconds=0.1)
                yield worker, done()
        yield None


def test_every_trial_is_given_once_with_its_own_config(plan, tmp_path):
    runner, pool, view, error = run(plan, tmp_path, smoothly, keep_checkpoints=True)
    assert error is None
    assert runner.failures == []
    trials = search_trials(plan)
    jobs = [job for worker in pool.hired for job in worker.jobs]
    assert len(jobs) == 4
    by_path = {job.path: job for job in jobs}
    for trial in trials:
        job = by_path[str(tmp_path / "out" / trial.path)]
        assert loads(job.config) == trial.config
        assert job.keep_checkpoints
    assert sorted(view.ends) == sorted((trial.path, "finished") for trial in trials)


def test_there_are_as_many_workers_as_there_is_room_for_or_as_asked(plan, tmp_path):
    for jobs, expected in ((None, 2), (1, 1), (3, 3), (9, 4)):
        _, pool, view, _ = run(plan, tmp_path, smoothly, jobs=jobs)
        assert len(pool.hired) == expected
        assert view.board.processes == (jobs or 2)
        assert [event.room for event in pool.spreads] == [2]


def test_a_second_trial_waits_until_the_first_has_started(plan, tmp_path):
    given = []

    def script(pool):
        yield pool.workers[0], READY
        yield None
        given.append([worker.trial for worker in pool.workers])  # a second worker is on its way
        yield pool.workers[1], READY
        yield None
        given.append([worker.trial for worker in pool.workers])
        yield pool.workers[0], STARTED
        yield None
        given.append([worker.trial for worker in pool.workers])
        yield from smoothly(pool)

    _, _, _, error = run(plan, tmp_path, script)
    first, second = (trial.path for trial in search_trials(plan)[:2])
    assert error is None
    assert given == [[first, None], [first, None], [first, second]]


def test_a_refusal_before_anything_has_started_stops_the_comparison(plan, tmp_path):
    def script(pool):
        yield pool.workers[0], READY
        yield pool.workers[0], Event(kind="refused", reason="data.path = 'x' does not exist")

    _, pool, _, error = run(plan, tmp_path, script)
    assert isinstance(error, RefusedError)
    assert str(error) == "data.path = 'x' does not exist"
    assert sum(len(worker.jobs) for worker in pool.hired) == 1


def test_a_device_that_is_not_there_stops_the_comparison(plan, tmp_path):
    def script(pool):
        yield pool.workers[0], Event(kind="refused", reason="training.device = 'cuda' cannot")

    assert str(run(plan, tmp_path, script)[3]) == "training.device = 'cuda' cannot"


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_a_trial_that_fails_later_is_told_and_the_others_go_on(kind, plan, tmp_path):
    def script(pool):
        yield pool.workers[0], READY
        yield pool.workers[0], STARTED
        yield pool.workers[0], done()
        failing = pool.workers[0]
        yield failing, Event(kind=kind, reason="the disk is full")
        if kind == "failed":
            yield failing, Event(kind="died", reason="its process ended with code 0")
        yield from smoothly(pool)

    runner, _, view, error = run(plan, tmp_path, script, jobs=1)
    trials = search_trials(plan)
    assert error is None
    assert runner.failures == [(trials[1].path, "the disk is full")]
    ends = [status for _, status in view.ends]
    assert ends == ["finished", "failed", "finished", "finished"]


def test_the_trial_of_a_dead_worker_goes_on_once_before_all_others(plan, tmp_path):
    def script(pool):
        first = pool.workers[0]
        yield first, READY
        yield first, STARTED
        yield first, DIED
        yield from smoothly(pool)

    runner, pool, view, error = run(plan, tmp_path, script, jobs=1)
    trials = search_trials(plan)
    assert error is None
    assert runner.failures == []
    paths = [[job.path for job in worker.jobs] for worker in pool.hired]
    own = [str(tmp_path / "out" / trial.path) for trial in trials]
    assert paths == [own[:1], own]
    assert view.messages == [
        f"{trials[0].path}: its process was ended by SIGKILL; it goes on from its checkpoint"
    ]


def test_a_trial_whose_workers_die_twice_has_failed(plan, tmp_path):
    def script(pool):
        for _ in range(2):
            yield pool.workers[0], READY
            yield pool.workers[0], STARTED
            yield pool.workers[0], DIED
        yield from smoothly(pool)

    runner, _, view, error = run(plan, tmp_path, script, jobs=1)
    path = search_trials(plan)[0].path
    log = tmp_path / "out" / "workers.log"
    assert error is None
    assert runner.failures == [(path, f"its process was ended by SIGKILL, twice; see {log}")]
    assert [status for _, status in view.ends] == ["failed", *3 * ["finished"]]


def test_workers_that_cannot_even_start_end_the_comparison(plan, tmp_path):
    def script(pool):
        while True:
            yield pool.workers[0], DIED

    _, pool, _, error = run(plan, tmp_path, script)
    assert isinstance(error, FailedError)
    assert str(error).startswith("no worker could start: its process was ended by SIGKILL; see ")
    assert len(pool.hired) == 2


def test_a_signal_lets_every_worker_save_and_starts_no_more(plan, tmp_path):
    stop = StopRequest()

    def script(pool):
        yield pool.workers[0], READY
        yield pool.workers[0], STARTED
        stop.name = "SIGTERM"
        yield None

    _, pool, view, error = run(plan, tmp_path, script, stop=stop)
    assert isinstance(error, StoppedError)
    assert error.signal.name == "SIGTERM"
    assert pool.is_stopped
    assert view.messages == ["SIGTERM: saving what runs; Ctrl-C leaves at once, without saving"]


def test_workers_save_even_where_the_terminal_is_gone(plan, tmp_path, monkeypatch):
    stop = StopRequest()

    def script(pool):
        pools.append(pool)
        yield pool.workers[0], READY
        stop.name = "SIGHUP"
        yield None

    def gone(*_):
        raise OSError(5, "Input/output error")

    pools = []
    monkeypatch.setattr(Recorder, "message", gone)
    with pytest.raises(OSError, match="Input/output error"):
        run(plan, tmp_path, script, stop=stop)
    assert pools[0].is_stopped


def test_a_line_for_people_is_shown_once(plan, tmp_path):
    def script(pool):
        yield pool.workers[0], READY
        for text in ("preparing", "preparing", "done"):
            yield pool.workers[0], Event(kind="message", reason=text)
        yield from smoothly(pool)

    assert run(plan, tmp_path, script)[2].messages == ["preparing", "done"]


def leave(folder, trial, *, digest="a", **record) -> None:
    """Leave a trial as a run would, with one record."""
    path = folder / "out" / trial.path
    path.mkdir(parents=True)
    (path / "run.toml").write_text(dumps(trial.config))
    (path / "manifest.json").write_text(json.dumps({"data": {"digest": digest}}))
    fields = {"step": 40, "split": "val", "loss": 1.5, "lr": 0.1, "seconds": 1.0, "count": 40}
    line = Record(**{**fields, **record}).as_json()
    (path / "metrics.jsonl").write_text(f"{line}\n")


def test_finished_trials_are_not_run_again(plan, tmp_path):
    first, second, third, fourth = search_trials(plan)
    leave(tmp_path, first)
    leave(tmp_path, second, step=25, extra={"diverged": 1.0})
    leave(tmp_path, third, step=25)  # validated on the way, then killed
    leave(tmp_path, fourth, split="train")  # the last step was taken, its validation was not
    _, pool, view, error = run(plan, tmp_path, smoothly, jobs=1)
    assert error is None
    given = [job.path for worker in pool.hired for job in worker.jobs]
    assert given == [str(tmp_path / "out" / trial.path) for trial in (third, fourth)]
    states = [view.board.states[trial.path] for trial in search_trials(plan)]
    assert [state.status for state in states] == ["finished", "diverged", "finished", "finished"]
    assert (states[0].validation, states[1].step) == (1.5, 25)
    assert view.board.reused == 2


def test_nothing_is_started_where_all_is_finished(plan, tmp_path):
    for trial in search_trials(plan):
        leave(tmp_path, trial)
    _, pool, view, error = run(plan, tmp_path, lambda _: iter(()))
    assert (error, pool.hired, view.ends) == (None, [], [])


def test_trials_on_different_data_are_refused(plan, tmp_path):
    first, second, *_ = search_trials(plan)
    leave(tmp_path, first)
    leave(tmp_path, second, step=20, digest="b")
    _, _, _, error = run(plan, tmp_path, smoothly, jobs=1)
    assert isinstance(error, RefusedError)
    assert str(error).startswith(
        f"{second.path} and {first.path} of {tmp_path / 'out'} are trained"
    )
