"""TensorBoard and Weights & Biases, for real: their own files are read back."""

import json
import math
import struct
import sys
import time

import pytest

from mars.config.errors import RefusedError
from mars.metrics.record import Record
from mars.metrics.tensorboard import TensorBoardSink
from mars.metrics.wandb import WandbSink


def record(step, *, split="train", session=0):
    return Record(
        step=step,
        split=split,
        loss=step + session / 4,
        lr=0.5,
        seconds=step / 8,
        count=16 * step,
        extra={"grad_norm": step / 2},
    )


def scalars(directory, tag):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


@pytest.fixture
def tensorboard():
    return pytest.importorskip("tensorboard")


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_reads_every_measure_back(tmp_path):
    sink = TensorBoardSink(tmp_path)
    for step in (1, 2):
        sink.write(record(step))
    sink.write(record(2, split="val", session=1))
    sink.close()
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 2.0)]
    assert scalars(tmp_path, "train/grad_norm") == [(1, 0.5), (2, 1.0)]
    assert scalars(tmp_path, "train/lr") == [(1, 0.5), (2, 0.5)]
    assert scalars(tmp_path, "train/tokens") == [(1, 16.0), (2, 32.0)]
    assert scalars(tmp_path, "val/loss") == [(2, 2.25)]


@pytest.mark.usefixtures("tensorboard")
def test_a_flushed_event_is_readable_before_the_end(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write(record(1))
    sink.flush()
    assert scalars(tmp_path, "train/loss") == [(1, 1.0)]
    sink.close()


@pytest.mark.usefixtures("tensorboard")
def test_a_resumed_run_shows_each_step_once_in_tensorboard(tmp_path, monkeypatch):
    first = TensorBoardSink(tmp_path)
    for step in range(1, 7):
        first.write(record(step))
    first.close()
    started = time.time()
    monkeypatch.setattr(time, "time", lambda: started + 60)  # files sort by second
    resumed = TensorBoardSink(tmp_path, resumed_from=4)
    for step in range(5, 9):
        resumed.write(record(step, session=1))
    resumed.close()
    kept = [(step, float(step)) for step in range(1, 5)]
    again = [(step, step + 0.25) for step in range(5, 9)]
    assert scalars(tmp_path, "train/loss") == kept + again


@pytest.mark.usefixtures("tensorboard")
def test_a_loss_that_is_not_a_number_reaches_tensorboard_as_such(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write(Record(step=1, split="train", loss=math.nan, lr=0.5, seconds=1.0, count=8))
    sink.close()
    assert [math.isnan(value) for _, value in scalars(tmp_path, "train/loss")] == [True]


def test_a_missing_tensorboard_names_the_extra(tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RefusedError, match=r"pip install 'mars-optimizer\[track\]'"):
        TensorBoardSink(tmp_path / "events")
    assert not (tmp_path / "events").exists()


def test_a_missing_wandb_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RefusedError, match=r"pip install 'mars-optimizer\[track\]'"):
        WandbSink(tmp_path, project="mars", name="run")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def wandb(tmp_path_factory, monkeypatch):
    """W&B without an account, its settings and caches in a folder of the test."""
    package = pytest.importorskip("wandb")
    home = tmp_path_factory.mktemp("wandb")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(home))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    yield package
    package.teardown()  # ends W&B's own process


def history(file):
    """Return the rows of a transaction log: a 7-byte head, then blocks of 32 kB of records."""
    from wandb.proto.wandb_internal_pb2 import Record as Logged

    data, rows, at = file.read_bytes(), [], 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            break
        logged = Logged()
        # A record over two blocks is none of ours: they are small.
        if kind == 1:
            logged.ParseFromString(data[at + 7 : at + 7 + length])
        if logged.WhichOneof("record_type") == "history":
            items = logged.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        at += 7 + length
    return rows


def log_offline(wandb, directory, records):
    sink = WandbSink(directory, project="mars", name="run", config={"seed": 0})
    for each in records:
        sink.write(each)
    sink.flush()
    location = sink.location
    sink.close()
    wandb.teardown()  # its process has written everything once it has ended
    return location.removeprefix("wandb sync ")


def test_wandb_offline_holds_each_step_once_after_a_resume(wandb, tmp_path):
    first = log_offline(
        wandb,
        tmp_path,
        [*(record(step) for step in range(1, 7)), record(6, split="val", session=1)],
    )
    # The checkpoint was at step 4: steps 5 and 6 come again.
    time.sleep(max(0.0, 1.0 - time.time() % 1))  # its folders are named by the second
    second = log_offline(
        wandb,
        tmp_path,
        [
            record(5),
            record(6),
            record(6, split="val"),
            record(7),
            record(8),
            record(8, split="val"),
        ],
    )
    assert first != second
    logs = [history(next((tmp_path / part).glob("*.wandb"))) for part in (first, second)]
    assert [row["_step"] for log in logs for row in log] == list(range(1, 9))
    assert [row["train/loss"] for log in logs for row in log] == [float(s) for s in range(1, 9)]
    assert [row.get("val/loss") for row in logs[0]] == [None] * 5 + [6.25]
    assert [row.get("val/loss") for row in logs[1]] == [None, 8.0]
    state = json.loads((tmp_path / "wandb-run.json").read_text())
    assert state["logged"] == {"train": 8, "val": 8}
    assert all(part.endswith(state["id"]) for part in (first, second))


def test_wandb_offline_leaves_the_terminal_to_the_display(wandb, tmp_path, capfd):
    stdout = sys.stdout
    log_offline(wandb, tmp_path, [record(1), record(2)])
    assert sys.stdout is stdout
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.usefixtures("wandb")
def test_wandb_online_without_an_account_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(RefusedError, match=r"cannot start: .* set metrics\.wandb to offline"):
        WandbSink(tmp_path, project="mars", name="run", mode="online")
    assert not (tmp_path / "wandb-run.json").exists()


@pytest.mark.parametrize("text", ["", "{}", '{"id": "a", "logged": 3}', "[]"])
@pytest.mark.usefixtures("wandb")
def test_a_damaged_run_id_is_refused(tmp_path, text):
    (tmp_path / "wandb-run.json").write_text(text)
    with pytest.raises(RefusedError, match=r"wandb-run\.json is damaged; remove it"):
        WandbSink(tmp_path, project="mars", name="run")
