"""Every mistake is refused in one line that names the key, its value and the way out."""

import pytest
from malformed import MALFORMED, Malformed

from mars.config.check import check
from mars.config.errors import RefusedError
from mars.config.load import load_file, loads, override


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_a_mistake_is_refused_in_one_line_that_names_it(case: Malformed):
    with pytest.raises(RefusedError) as refusal:
        check(override(loads(case.toml), case.settings))
    message = str(refusal.value)
    assert [word for word in case.words if word not in message] == [], message
    assert message.splitlines() == [message]
    assert len(message) < 300


def test_the_mistakes_are_many_and_different():
    assert len(MALFORMED) >= 100
    assert len({case.name for case in MALFORMED}) == len(MALFORMED)
    assert len({(case.toml, case.settings) for case in MALFORMED}) == len(MALFORMED)
    assert all(case.words for case in MALFORMED)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RefusedError, match=r"absent\.toml: there is no such file; mars train --li"):
        load_file(tmp_path / "absent.toml")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="this is a directory; name a TOML file in it"):
        load_file(tmp_path)


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(RefusedError, match=r"it cannot be read \(Not a directory\)"):
        load_file(tmp_path / "run.toml" / "run.toml")


def test_a_path_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(RefusedError, match=r"U00000000b.*cannot be read"):
        load_file(tmp_path / "a\0b")


def test_a_file_that_is_not_utf8_is_refused_at_its_byte(tmp_path):
    (tmp_path / "run.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(RefusedError, match=r"run\.toml: not UTF-8 text at byte 11; save it"):
        load_file(tmp_path / "run.toml")


def test_a_syntax_error_names_file_and_line(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 1\n\nname = run\n")
    with pytest.raises(RefusedError, match=r"run\.toml, line 3, column 8: not valid TOML: invalid"):
        load_file(tmp_path / "run.toml")


def test_a_file_name_of_two_lines_is_shown_in_one(tmp_path):
    with pytest.raises(RefusedError) as refusal:
        load_file(tmp_path / "two\nlines.toml")
    assert "two\\U0000000alines.toml" in str(refusal.value)
