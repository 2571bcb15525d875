"""``mars prepare``: a corpus of tokens, from text to a folder."""

from collections.abc import Callable

from rich.console import Console

from mars.commands.options import PrepareOptions
from mars.config.errors import RefusedError
from mars.data.corpus import Corpus
from mars.data.prepare import prepare_stdlib, prepare_text


def prepare(options: PrepareOptions, console: Console) -> None:
    """Make the corpus and say what it holds."""

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    _show(_prepared(options, tell), console)


def _prepared(options: PrepareOptions, tell: Callable[[str], None]) -> Corpus:
    if options.corpus == "stdlib":
        _refuse_text_options(options)
        return prepare_stdlib(options.out, tell=tell)
    if not options.input:
        raise RefusedError("mars prepare text needs --input: files or folders of text")
    return prepare_text(
        options.input,
        options.out,
        tokenizer=options.tokenizer or "gpt2",
        validation=options.validation,
        bpe=options.bpe,
        separator=options.separator,
        validation_fraction=options.validation_fraction,
        tell=tell,
    )


def _refuse_text_options(options: PrepareOptions) -> None:
    """Refuse what has no meaning for the standard library."""
    given = {
        "--input": options.input,
        "--validation": options.validation,
        "--tokenizer": options.tokenizer,
        "--bpe": options.bpe,
        "--separator": options.separator,
        "--validation-fraction": options.validation_fraction,
    }
    for name, value in given.items():
        if value:
            raise RefusedError(f"{name} is an option of mars prepare text, not of stdlib")


def _show(corpus: Corpus, console: Console) -> None:
    """Print what a corpus holds and what to do with it."""
    manifest = corpus.manifest
    console.print(f"{corpus.path}", style="bold", highlight=False, soft_wrap=True)
    rows = {"tokenizer": f"{manifest.tokenizer}, {manifest.vocab_size} tokens"}
    for split, files in manifest.splits.items():
        rows[split] = f"{files.tokens:,} tokens in {files.documents:,} documents"
    rows["digest"] = corpus.digest
    for label, value in rows.items():
        console.print(f"  {label:10}  {value}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"Next: mars train PRESET --set data.path={corpus.path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
