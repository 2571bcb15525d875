"""Which process of how many this is, and what so many cannot share."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from mars import checkpoint
from mars.config.check import check
from mars.config.errors import FailedError, RefusedError
from mars.config.load import computed_differences, override
from mars.config.schema import Run
from mars.training.failures import LostError, failures_told
from mars.training.launch import Launch, check_launch, read_launch, refused_once
from mars.training.run_directory import RunDirectory, command, of_this_job
from mars.training.signals import StopRequest
from mars.training.step import NonfiniteError
from mars.training.streams import restore_streams_, seed_streams_
from mars.training.world import World, is_lost, one_line

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "night",
}
PAIR = Launch(rank=1, size=2, local_rank=1, local_size=2, job="test")
NODES = Launch(rank=0, size=8, local_size=4, job="test")


def test_torchrun_says_which_process_this_is():
    launch = read_launch(TORCHRUN)
    assert launch == Launch(5, 8, 1, 4, 2, "night")
    assert (launch.nodes, launch.is_first, launch.label) == (2, False, "rank 5 of 8")


def test_without_torchrun_a_process_is_alone():
    assert read_launch({}) == read_launch({"WORLD_SIZE": "1"}) == Launch()
    assert (Launch().is_first, Launch().job, Launch().nodes) == (True, "", 1)


def test_a_launch_without_a_name_is_known_by_its_launcher():
    unnamed = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
    assert read_launch(unnamed).job.endswith(f":{os.getppid()}")
    assert read_launch(unnamed) == read_launch(unnamed)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_half_an_environment_is_refused(missing):
    rest = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(RefusedError, match=f"incomplete: '{missing}'; start them with torchrun"):
        read_launch(rest)


@pytest.mark.parametrize(
    ("settings", "launch", "mode"),
    [
        ((), Launch(), "none"),
        ((), PAIR, "ddp"),
        (("parallel=fsdp2",), PAIR, "fsdp2"),
        (("parallel=fsdp2",), Launch(job="test"), "none"),
        (("parallel=hsdp", "replicas=2"), PAIR, "hsdp"),
    ],
)
def test_processes_share_as_the_config_says(settings, launch, mode):
    config = override(Run(), settings)
    check_launch(config, launch)
    assert launch.mode(config) == mode


@pytest.mark.parametrize(
    ("settings", "launch", "reason"),
    [
        (("parallel=ddp",), Launch(), 'training.parallel = "ddp" is for several processes'),
        (("batch_size=5",), PAIR, "batch_size = 5 is not divisible by 2 processes; use 6"),
        (
            ("batch_size=12", "micro_batch_size=4"),
            PAIR,
            "micro_batch_size = 4 does not divide the 6 sequences .* use 3$",
        ),
        (("validation_sequences=1",), PAIR, "validation_sequences = 1 is fewer than one .* use 2$"),
        (("device=cuda:1",), PAIR, 'names one device for 2 processes; "cuda" gives each its own'),
        (("device=mps",), PAIR, "in one process alone; several use cpu or cuda"),
        (("parallel=hsdp",), PAIR, "on one node needs training.replicas"),
        (("parallel=hsdp", "replicas=3"), NODES, "replicas = 3 does not divide 8 processes; use 1"),
    ],
)
def test_what_the_processes_cannot_share_is_refused_with_a_way_out(settings, launch, reason):
    with pytest.raises(RefusedError, match=reason):
        check_launch(override(Run(), settings), launch)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("replicas=2", 'replicas = 2 has no meaning without training.parallel = "hsdp"'),
        ("timeout_seconds=0", "timeout_seconds must be from 1 to 86400, got 0"),
    ],
)
def test_keys_of_sharing_that_mean_nothing_are_refused(setting, reason):
    with pytest.raises(RefusedError, match=reason):
        check(override(Run(), [setting]))


def test_replicas_are_the_nodes_unless_the_config_says_otherwise():
    assert NODES.replicas(override(Run(), ["parallel=hsdp"])) == 2
    assert NODES.replicas(override(Run(), ["parallel=hsdp", "replicas=4"])) == 4


def test_how_processes_share_a_run_is_not_another_run():
    shared = override(Run(), ["parallel=hsdp", "replicas=2", "timeout_seconds=5"])
    assert computed_differences(Run(), shared) == []


def test_one_process_a_machine_tells_what_all_refuse():
    for local_rank, error in ((0, RefusedError), (1, SystemExit)):
        launch = replace(PAIR, local_rank=local_rank)
        with pytest.raises(error) as caught, refused_once(launch):
            raise RefusedError("no such preset")
        assert str(caught.value) == ("no such preset" if local_rank == 0 else "2")


def test_the_command_to_go_on_starts_as_many_processes(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert command("train", "--resume") == (
        "torchrun --nnodes 2 --nproc-per-node 4 -m mars train --resume"
    )
    assert "torchrun" not in command("sample", "run")


def test_processes_that_are_started_again_find_the_run_they_began(tmp_path):
    for name, job in (("a", "other"), ("b", "test")):
        made = {"tokenizer": "bytes", "data": {}, "seed": 0, "job": job}
        RunDirectory(tmp_path / name).create(Run(), made, tokenizer={})
    candidates = [tmp_path / name for name in ("missing", "a", "b")]
    assert of_this_job(candidates, PAIR) == tmp_path / "b"
    assert of_this_job(candidates[:2], PAIR) is None


def drawn(seed, step, world):
    seed_streams_(seed, step=step, world=world)
    return torch.rand(4)


def test_every_process_draws_numbers_of_its_own():
    worlds = [World(replace(PAIR, rank=rank)) for rank in (0, 1)]
    streams = [drawn(seed, step, world) for seed in (0, 1) for step in (0, 7) for world in worlds]
    for i, one in enumerate(streams):
        assert not any(torch.equal(one, other) for other in streams[:i])
    assert torch.equal(drawn(1, 7, worlds[1]), streams[-1])
    # One process draws what it always drew.
    torch.manual_seed(3)
    expected = torch.rand(4)
    assert torch.equal(drawn(3, 0, World()), expected)


@pytest.mark.parametrize("world", [World(), World(PAIR)], ids=["alone", "pair"])
def test_streams_go_on_where_they_were_saved_and_else_begin_anew(world, tmp_path):
    torch.manual_seed(11)
    state = {"random": checkpoint.capture_random_state()}
    expected = torch.rand(4)
    empty = {"step": 7, "model": {}, "path": tmp_path, "about": {}}
    alone = world.size == 1
    saved = checkpoint.Loaded(
        training=state if alone else {}, own=None if alone else state, **empty
    )
    restore_streams_(saved, seed=0, world=world)
    assert torch.equal(torch.rand(4), expected)
    other = checkpoint.Loaded(training={} if alone else state, own=None, **empty)
    restore_streams_(other, seed=0, world=world)
    assert torch.equal(torch.rand(4), drawn(0, 7, world))


def test_a_process_alone_asks_nobody():
    world = World()
    loss = torch.tensor(2.0)
    assert world.after_step(loss, "SIGINT") == (loss, "SIGINT")
    assert world.sums(1.0, 2.0) == [1.0, 2.0]
    assert world.told("here") == "here"
    assert world.in_turn(lambda: 4) == 4
    with pytest.raises(KeyError), world.agreed():
        raise KeyError("as it is")


LOST = RuntimeError(
    "[/pytorch/third_party/gloo/pair.cc:547] Connection closed by peer [::1]:4711. This is "
    "typically caused by a remote worker crashing.\nMore lines"
)


def test_a_lost_process_is_told_from_other_errors():
    save = checkpoint.SaveError("saving failed")
    save.__cause__ = LOST
    assert is_lost(LOST)
    assert is_lost(save)
    assert not is_lost(RuntimeError("size mismatch"))
    assert not is_lost(FailedError("the connection to the server was refused"))
    assert one_line(save) == "Connection closed by peer [::1]:4711"


def ending(error, launch, directory):
    """Return how a process of a launch ends after an error at step 37."""
    with failures_told(World(launch), directory) as reached:
        reached.step = lambda: 37
        raise error


def test_a_process_that_lost_the_others_says_where_it_was_and_how_to_go_on(tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(LostError) as caught:
        ending(LOST, PAIR, directory)
    assert str(caught.value) == (
        "rank 1 of 2 lost its connection to the others at step 37: Connection closed by peer "
        "[::1]:4711; nothing was made yet"
    )
    directory.config.touch()
    with pytest.raises(LostError, match="there is no checkpoint yet; resume with mars train --res"):
        ending(LOST, PAIR, directory)
    (directory.checkpoints / "step-00000030").mkdir(parents=True)
    with pytest.raises(LostError, match=r"the last checkpoint is step 30: .*step-00000030; resume"):
        ending(LOST, PAIR, directory)


@pytest.mark.parametrize(
    ("error", "code"),
    [(NonfiniteError("inf"), 1), (checkpoint.SaveError("full"), 1), (RefusedError("no"), 2)],
)
def test_what_all_processes_come_to_is_told_by_the_first(error, code, tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(type(error)):
        ending(error, replace(PAIR, rank=0), directory)
    with pytest.raises(SystemExit) as left:
        ending(error, PAIR, directory)
    assert left.value.code == code


def test_what_ends_one_process_is_told_with_its_rank(tmp_path):
    directory = RunDirectory(tmp_path)
    for error in (FailedError("there is not enough memory"), OSError("there is not enough memory")):
        with pytest.raises(FailedError, match=r"^rank 1 of 2: there is not enough memory$"):
            ending(error, PAIR, directory)
        with pytest.raises(type(error), match=r"^there is"):
            ending(error, Launch(), directory)
    with pytest.raises(KeyError):
        ending(KeyError("a mistake of ours"), PAIR, directory)


@pytest.mark.parametrize("is_shared", [False, True])
def test_one_of_several_that_fails_has_time_to_say_why(is_shared):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with StopRequest(is_shared=is_shared):
            pass
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(RuntimeError), StopRequest(is_shared=is_shared):
            raise LOST
        deaf = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert deaf == is_shared
    finally:
        signal.signal(signal.SIGTERM, before)
