"""Corpora from the hub, with a folder in the place of a repository: the same code reads it."""

import builtins
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.row_files import make, write_rows
from mars.config.errors import FailedError, RefusedError
from mars.data import corpora, hub
from mars.data.corpora import CorpusRequest, Published, prepare_corpus

DOCUMENTS = [f"document {number}" for number in range(90)]
README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
  - split: test
    path: sample/test/*
---
"""


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A folder laid out as FineWeb-Edu is, and no network."""
    root = tmp_path / "repository"
    for number in range(3):
        documents = DOCUMENTS[30 * number : 30 * number + 30]
        write_rows(documents, root / "sample" / "10BT", "parquet", name=f"00{number}_00000")
    write_rows(DOCUMENTS[:40], root / "sample" / "test", "parquet")
    write_rows(DOCUMENTS[:50], root / "data" / "CC-MAIN-2013-20", "parquet", name="train-00000")
    (root / "README.md").write_text(README)
    monkeypatch.setitem(corpora.PUBLISHED, "fineweb-edu", Published(str(root), "sample-10BT", 0.2))

    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return root


def fetch(out: Path, *, tell=lambda line: None, **options):
    defaults = {"tokenizer": "bytes", "processes": 1, "validation_fraction": 0.2}
    request = CorpusRequest("fineweb-edu", out, **(defaults | options))
    return prepare_corpus(request, tell=tell, watch=lambda progress: None)


def test_streamed_downloaded_and_local_give_the_same_tokens(tmp_path, repository):
    told: list[str] = []
    made = [
        fetch(tmp_path / "streamed", streaming=True, processes=2),
        fetch(tmp_path / "downloaded", tell=told.append),
        make(repository / "sample" / "10BT", tmp_path / "local"),
    ]
    assert len({corpus.digest for corpus in made}) == 1
    # Whether it was kept on the way is nothing to the corpus.
    assert made[0].manifest == made[1].manifest
    assert told[:2] == [
        f"asking the hub for the files of {repository}",
        f"downloading 3 files, {made[0].manifest.source['bytes'] / 1e6:,.0f} MB",
    ]


def test_subset_and_split_choose(tmp_path, repository):
    default = fetch(tmp_path / "default", subset="default")
    assert default.manifest.source["measured"]["rows"] == 50
    test = fetch(tmp_path / "test", split="test")
    assert test.manifest.source["measured"]["rows"] == 40
    source = test.manifest.source
    assert [source[key] for key in ("repository", "subset", "split", "files")] == [
        str(repository),
        "sample-10BT",
        "test",
        1,
    ]


@pytest.mark.usefixtures("repository")
def test_what_is_not_there_is_refused_with_what_is(tmp_path):
    with pytest.raises(RefusedError, match=r"'nope' not found.*sample-10BT.*--subset"):
        fetch(tmp_path / "out", subset="nope")
    with pytest.raises(RefusedError, match=r"no split 'validation' but train, test; .*--split"):
        fetch(tmp_path / "out", split="validation")
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]


def test_a_stop_and_another_revision_go_on_with_the_first(tmp_path, repository, monkeypatch):
    asked: list[str | None] = []
    found = hub.find_files(str(repository), subset="sample-10BT", split="train", revision=None)
    first, second = "a" * 40, "b" * 40

    def find(*_: str, revision: str | None, **__: str) -> hub.HubFiles:
        asked.append(revision)
        return hub.HubFiles(found.addresses, revision or (first if len(asked) == 1 else second))

    monkeypatch.setattr(corpora, "find_files", find)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mars.data.building.SECONDS_BETWEEN_COMMITS", -1.0)
    request = CorpusRequest(
        "fineweb-edu",
        tmp_path / "out",
        tokenizer="bytes",
        processes=1,
        validation_fraction=0.2,
        piece_bytes=10,
    )
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(request, tell=lambda line: None, watch=stop)
    corpus = prepare_corpus(request, tell=lambda line: None, watch=lambda progress: None)
    assert asked == [None, first]
    assert corpus.manifest.source["revision"] == first
    assert corpus.manifest.source["measured"]["rows"] == 90


def test_the_revision_is_that_of_the_addresses(monkeypatch):
    revision = "0123456789abcdef0123456789abcdef01234567"
    addresses = [f"hf://datasets/a/b@{revision}/c/00{number}.parquet" for number in range(2)]

    builder = SimpleNamespace(config=SimpleNamespace(data_files={"train": addresses}))
    monkeypatch.setattr(hub, "_builder", lambda repository, *, subset, revision: builder)
    found = hub.find_files("a/b", subset=None, split="train", revision=None)
    assert found == hub.HubFiles(tuple(addresses), revision)


def test_a_repository_with_a_script_is_read_as_the_hub_converted_it(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(repository, *, name, revision):
        asked.append((repository, name, revision))
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported")
        return "builder"

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    assert hub._builder("a/b", subset=None, revision=None) == "builder"
    assert asked == [("a/b", None, None), ("a/b", None, "refs/convert/parquet")]


def test_no_network_is_one_line_with_the_way_out(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach\nthe hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    with pytest.raises(RefusedError, match="Skylion007/openwebtext cannot be reached") as refusal:
        prepare_corpus(
            CorpusRequest("openwebtext", tmp_path / "out", tokenizer="bytes"),
            tell=lambda line: None,
            watch=lambda progress: None,
        )
    assert "--input" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("repository")
def test_a_download_that_fails_says_that_it_can_go_on(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def download(*_: object) -> None:
        raise OSError("connection\nlost")

    monkeypatch.setattr(datasets.DownloadManager, "download", download)
    with pytest.raises(
        FailedError, match=r"could not be fetched \(connection lost\); run the same"
    ):
        fetch(tmp_path / "out")


def test_a_fetched_file_that_breaks_off_fails_and_goes_on_later(tmp_path, repository):
    path = repository / "sample" / "10BT" / "002_00000.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-50] + bytes(50))
    with pytest.raises(FailedError, match=r"its footer could not be fetched .* again to go on"):
        fetch(tmp_path / "out", streaming=True)
    path.write_bytes(content)
    assert fetch(tmp_path / "out", streaming=True).manifest.source["measured"]["rows"] == 90


@pytest.mark.parametrize("missing", ["datasets", "pyarrow"])
def test_a_missing_package_is_one_line_naming_the_extra(tmp_path, monkeypatch, missing):
    write_rows(DOCUMENTS, tmp_path, "parquet")
    imported = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *arguments, **options)

    for name in [each for each in sys.modules if each.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    inputs = (tmp_path / "rows.parquet",) if missing == "pyarrow" else ()
    request = CorpusRequest("openwebtext", tmp_path / "out", inputs=inputs, tokenizer="bytes")
    with pytest.raises(RefusedError, match=r"need.* the extra 'data': pip install"):
        prepare_corpus(request, tell=lambda line: None, watch=lambda progress: None)
