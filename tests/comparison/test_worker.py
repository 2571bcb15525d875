"""A worker: what it tells of the trials it trains, and when it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from comparison.comparisons import make_plan
from mars import checkpoint
from mars.comparison import worker
from mars.comparison.messages import Event, Job
from mars.comparison.plan import search_trials
from mars.config.load import assign, dumps
from mars.training.run_directory import RunDirectory
from training.runs import make_corpus, records


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def trials(tmp_path, corpus):
    """The four trials of a search: mars-adamw and adamw at 0.01, at 0.02 and at 1000."""
    return search_trials(make_plan(tmp_path, corpus))


def job(out, trial, *, keep_checkpoints: bool = False, **values) -> Job:
    config = assign(trial.config, {key.replace("__", "."): each for key, each in values.items()})
    return Job(path=str(out), config=dumps(config), keep_checkpoints=keep_checkpoints)


def served(given: Job) -> tuple[list[Event], bool]:
    """Do a job in this process; return its events, and whether another could follow."""
    events: list[Event] = []
    is_fit = worker._serve(given, events.append)
    return events, is_fit


def test_a_trial_is_told_from_its_start_to_its_end(tmp_path, trials):
    out = tmp_path / "run"
    events, is_fit = served(job(out, trials[0]))
    assert is_fit
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    told = [(e.step, e.loss) for e in events if e.kind in ("train", "validation")]
    assert told == [(record["step"], record["loss"]) for record in records(out)]
    assert kinds.count("validation") == 2
    assert (events[-1].step, events[-1].loss) == told[-1]
    assert not events[-1].is_diverged
    assert events[-1].seconds > 0


def test_checkpoints_are_removed_unless_asked_for(tmp_path, trials):
    served(job(tmp_path / "removed", trials[0]))
    served(job(tmp_path / "kept", trials[0], keep_checkpoints=True))
    assert not (tmp_path / "removed" / "checkpoints").exists()
    assert checkpoint.newest_step(tmp_path / "kept" / "checkpoints") == 40
    assert records(tmp_path / "removed") == records(tmp_path / "kept")


def test_a_diverged_trial_is_finished(tmp_path, trials):
    events, is_fit = served(job(tmp_path / "run", trials[3]))
    assert is_fit
    last = events[-1]
    assert (last.kind, last.is_diverged) == ("finished", True)
    assert last.step < 40
    assert records(tmp_path / "run")[-1]["diverged"] == 1.0
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_trial_goes_on_from_its_checkpoint(tmp_path, trials):
    out = tmp_path / "run"
    served(job(out, trials[0], keep_checkpoints=True))
    whole = records(out)
    shutil.rmtree(out / "checkpoints" / "step-00000040")
    events, _ = served(job(out, trials[0]))
    assert events[0] == Event(kind="started", step=36)
    assert records(out) == whole


def test_what_is_refused_is_told_in_a_line_and_leaves_nothing(tmp_path, trials):
    events, is_fit = served(job(tmp_path / "run", trials[0], data__path="nowhere"))
    assert is_fit
    assert [event.kind for event in events] == ["refused"]
    assert events[0].reason.startswith("data.path = 'nowhere' does not exist; ")
    assert not (tmp_path / "run").exists()


def test_what_fails_is_told_in_a_line_and_the_process_is_not_used_again(
    tmp_path, trials, monkeypatch, capfd
):
    def failing(*_, **__):
        raise RuntimeError("something\nin two lines")

    monkeypatch.setattr(worker, "assemble", failing)
    events, is_fit = served(job(tmp_path / "run", trials[0]))
    assert not is_fit
    assert events == [Event(kind="failed", reason="RuntimeError: something in two lines")]
    assert "Traceback" in capfd.readouterr().err


def test_a_failure_of_training_has_its_own_words(tmp_path, trials):
    values = {"training__skip_nonfinite": False, "optimizer__lr": 1e30}
    events, is_fit = served(job(tmp_path / "run", trials[1], **values))
    assert not is_fit
    assert events[-1].kind == "failed"
    assert events[-1].reason.startswith("the gradients' norm is nan; lower optimizer.lr")


def test_a_lack_of_memory_has_its_own_words(tmp_path, trials, monkeypatch):
    def failing(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(worker, "assemble", failing)
    events, _ = served(job(tmp_path / "run", trials[0]))
    assert events[-1].kind == "failed"
    assert events[-1].reason.startswith("there is not enough memory; ")


def test_a_run_that_another_process_still_trains_is_waited_for(tmp_path, trials, monkeypatch):
    out = tmp_path / "run"
    served(job(out, trials[0], keep_checkpoints=True))
    monkeypatch.setattr(worker, "_ASK_AGAIN_SECONDS", 0.01)
    lock = RunDirectory(out).lock()
    threading.Timer(0.3, lock.close).start()
    began = time.monotonic()
    events, _ = served(job(out, trials[0], keep_checkpoints=True))
    assert events[-1].kind == "finished"
    assert time.monotonic() - began >= 0.3
    monkeypatch.setattr(worker, "_PATIENCE_SECONDS", 0.05)
    with RunDirectory(out).lock():
        events, _ = served(job(out, trials[0]))
    assert [event.kind for event in events] == ["refused"]
    assert "another process is training in" in events[0].reason


def test_room_is_what_can_train_without_sharing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert worker._room(torch.device("cuda")) == 4
    assert worker._room(torch.device("cuda", 1)) == 1
    assert worker._room(torch.device("mps")) == 1
    assert worker._room(torch.device("cpu")) == len(os.sched_getaffinity(0))


class Process:
    """A worker in a process of its own."""

    def __init__(self, log) -> None:
        self.log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mars.comparison.worker", "cpu"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            # It limits itself to one thread, whatever it finds here.
            env={k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"},
        )

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        self.log.close()

    def give(self, given: Job) -> None:
        self.process.stdin.write(given.as_json().encode() + b"\n")
        self.process.stdin.flush()

    def until(self, kind: str) -> Event:
        for line in self.process.stdout:
            event = Event.from_json(line)
            if event.kind == kind:
                return event
        raise AssertionError(f"it ended without {kind}")


def test_a_process_serves_one_trial_after_another_and_saves_when_asked(tmp_path, trials):
    # The second has no end, so that a signal finds it training.
    endless = {"training__steps": 10**6, "checkpoint__every": 10**6}
    with Process(tmp_path / "log") as served_by:
        ready = served_by.until("ready")
        assert (ready.device, ready.room) == ("cpu", len(os.sched_getaffinity(0)))
        served_by.give(job(tmp_path / "first", trials[0]))
        assert served_by.until("finished").step == 40
        served_by.give(job(tmp_path / "second", trials[0], **endless))
        served_by.until("train")
        served_by.process.send_signal(signal.SIGTERM)
        stopped = served_by.until("stopped")
        assert served_by.process.wait(30) == 0
    assert checkpoint.newest_step(tmp_path / "second" / "checkpoints") == stopped.step
    manifest = json.loads((tmp_path / "first" / "manifest.json").read_text())
    assert manifest["hardware"]["threads"] == 1
    assert manifest["data"]["train_tokens"] > 0


def test_the_end_of_its_input_ends_a_process_in_the_middle_of_a_step(tmp_path, trials):
    with Process(tmp_path / "log") as served_by:
        # It is given before the process is ready, and waits for it.
        served_by.give(job(tmp_path / "run", trials[0], training__steps=10**6))
        served_by.until("train")
        served_by.process.stdin.close()
        began = time.monotonic()
        assert served_by.process.wait(10) == 0
        assert time.monotonic() - began < 5


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    events: list[Event] = []
    monkeypatch.setattr(worker, "private_output", lambda: events.append)
    monkeypatch.setattr(worker, "_jobs", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["worker", "cuda:99"])
    worker.main()
    assert [event.kind for event in events] == ["refused"]
    assert events[0].reason.startswith("training.device = 'cuda:99' cannot be used here")


def test_nothing_but_events_is_written_to_the_output():
    program = """
import os
from mars.comparison.messages import Event, private_output
emit = private_output()
print("printed", flush=True)
os.write(1, b"written\\n")
os.system("echo from a child")
emit(Event(kind="message", reason="told"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert Event.from_json(done.stdout) == Event(kind="message", reason="told")
    for words in (b"printed", b"written", b"from a child"):
        assert words in done.stderr


def test_an_output_that_nobody_reads_ends_the_process():
    program = """
from mars.comparison.messages import Event, private_output
emit = private_output()
while True:
    emit(Event(kind="message", reason="told"))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
