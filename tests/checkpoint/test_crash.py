"""Processes killed while saving: the previous checkpoint is usable at every instant."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    program = Path(__file__).with_name("crash_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path_factory.mktemp("crash"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_kill_at_a_random_moment_loses_no_completed_step(outcomes):
    assert len(outcomes["random"]) == 15
    for outcome in outcomes["random"]:
        completed, keep = outcome["completed"], outcome["keep"]
        assert outcome["newest"] in (completed, completed + 1)
        assert outcome["rejected"] == []
        assert outcome["consistent"]
        kept = range(max(1, completed - keep + 1), completed + 1)
        # The step after the last completed one may be in place, and an old one removed for it.
        assert set(kept[1:]) <= set(outcome["steps"])
        assert completed in outcome["steps"] or outcome["newest"] == completed + 1
    progress = [outcome["completed"] for outcome in outcomes["random"]]
    assert progress == sorted(set(progress))


@pytest.mark.parametrize("kind", ["new", "again"])
def test_a_kill_at_any_file_operation_leaves_good_checkpoints_alone(outcomes, kind):
    *killed, finished = outcomes[kind]
    assert not finished["killed"]
    assert finished["failed"] == 0
    assert len(killed) > 15
    for outcome in outcomes[kind]:
        assert outcome["rejected"] == []
        assert outcome["consistent"]


def test_a_kill_shows_the_old_checkpoints_until_it_shows_the_new_one(outcomes):
    *killed, finished = outcomes["new"]
    shown = [outcome["steps"] for outcome in [*killed, finished]]
    assert [shown[0], shown[-1]] == [[1, 2], [2, 3]]
    assert sorted(shown, key=[[1, 2], [1, 2, 3], [2, 3]].index) == shown
    assert [1, 2, 3] in shown


def test_a_kill_shows_the_old_contents_of_a_step_until_it_shows_the_new(outcomes):
    *killed, finished = outcomes["again"]
    tags = [outcome["tag"] for outcome in [*killed, finished]]
    assert tags == sorted(tags, reverse=True)
    assert (tags[0], tags[-1]) == ("old", "new")
    assert {outcome["newest"] for outcome in outcomes["again"]} == {2}


def test_the_next_save_clears_what_a_kill_left(outcomes):
    for outcome in outcomes["new"] + outcomes["again"]:
        newest = outcome["newest"]
        assert outcome["then"] == [f"step-{newest:08d}", "step-00000004"]
