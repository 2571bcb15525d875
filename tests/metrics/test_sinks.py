import pytest

from mars.metrics.record import Record
from mars.metrics.sinks import Sinks

RECORD = Record(step=1, split="train", loss=1.0, lr=0.1, seconds=1.0, count=8)


class Notes:
    def __init__(self, *, fails=False):
        self.calls, self._fails = [], fails

    def write(self, record):
        self.calls.append(record)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")
        if self._fails:
            raise OSError(f"sink {id(self)}")


def test_every_sink_gets_every_call_in_order():
    notes = [Notes(), Notes()]
    with Sinks(notes) as sinks:
        sinks.write(RECORD)
        sinks.flush()
    assert [note.calls for note in notes] == [[RECORD, "flush", "close"]] * 2


@pytest.mark.parametrize("broken", [{0}, {1}, {2}, {0, 2}])
def test_all_are_closed_even_if_one_fails(broken):
    notes = [Notes(fails=index in broken) for index in range(3)]
    with pytest.raises(OSError, match="sink"):
        Sinks(notes).close()
    assert [note.calls for note in notes] == [["close"]] * 3


def test_an_error_inside_closes_too():
    notes = Notes()
    with pytest.raises(KeyboardInterrupt), Sinks([notes]):
        raise KeyboardInterrupt
    assert notes.calls == ["close"]


def test_no_sinks_take_records():
    sinks = Sinks([])
    assert (sinks.write(RECORD), sinks.flush(), sinks.close()) == (None, None, None)
