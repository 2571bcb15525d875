"""``mars prepare``: a corpus of tokens, from text to a folder."""

from collections.abc import Callable

from rich.console import Console

from mars.commands.options import PrepareOptions
from mars.commands.prepare_display import watching
from mars.commands.prepare_images import CIFAR, IMAGES, prepare_images
from mars.config.errors import RefusedError
from mars.data.corpora import MAX_MALFORMED, CorpusRequest, prepare_corpus
from mars.data.corpus import Corpus
from mars.data.manifest import Manifest
from mars.data.prepare import prepare_stdlib, prepare_text

_CORPORA = ("openwebtext", "fineweb-edu")
_HUB = ("subset", "split", "streaming")  # what chooses among the hub's files
# The options that only some corpora have.
_WHOSE = {
    "input": ("text", *_CORPORA, *CIFAR),
    "validation": ("text",),
    **dict.fromkeys(("tokenizer", "bpe", "separator", "validation_fraction"), ("text", *_CORPORA)),
    **dict.fromkeys((*_HUB, "column", "processes", "max_malformed"), _CORPORA),
}


def prepare(options: PrepareOptions, console: Console) -> None:
    """Make the corpus and say what it holds."""

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    _refuse_what_others_have(options)
    if options.corpus in IMAGES:
        prepare_images(options, tell=tell)
        return
    if options.corpus == "stdlib":
        corpus = prepare_stdlib(options.out, tell=tell)
    elif options.corpus == "text":
        corpus = _prepared_text(options, tell)
    else:
        request = _request(options)
        try:
            with watching(console) as watch:
                corpus = prepare_corpus(request, tell=tell, watch=watch)
        except KeyboardInterrupt:
            tell("stopped; the same command goes on from here")
            raise
    _show(corpus, tell, console)


def _refuse_what_others_have(options: PrepareOptions) -> None:
    """Refuse options that have no meaning for the corpus."""
    for name, corpora in _WHOSE.items():
        if options.corpus not in corpora and getattr(options, name) not in (None, (), False):
            raise RefusedError(
                f"--{name.replace('_', '-')} is an option of mars prepare {'|'.join(corpora)}, "
                f"not of {options.corpus}"
            )
    for name in _HUB:
        if options.input and getattr(options, name):
            raise RefusedError(
                f"--{name} chooses from the hub, --input reads local files; give one"
            )


def _prepared_text(options: PrepareOptions, tell: Callable[[str], None]) -> Corpus:
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


def _request(options: PrepareOptions) -> CorpusRequest:
    assert options.corpus == "openwebtext" or options.corpus == "fineweb-edu"
    malformed = options.max_malformed
    return CorpusRequest(
        options.corpus,
        options.out,
        inputs=options.input,
        subset=options.subset,
        split=options.split or "train",
        streaming=options.streaming,
        column=options.column or "text",
        separator=options.separator,
        tokenizer=options.tokenizer or "gpt2",
        bpe=options.bpe,
        validation_fraction=options.validation_fraction,
        max_malformed=MAX_MALFORMED if malformed is None else malformed,
        processes=options.processes,
    )


def _show(corpus: Corpus, tell: Callable[[str], None], console: Console) -> None:
    """Print what a corpus holds and what to do with it."""
    console.print(f"{corpus.path}", style="bold", highlight=False, soft_wrap=True)
    for label, value in _rows(corpus.manifest).items():
        tell(f"  {label:10}  {value}")
    for example in corpus.manifest.source.get("measured", {}).get("malformed_examples", ()):
        tell(f"  {'':10}  {example}")
    tell(f"Next: mars train PRESET --set data.path={corpus.path}")


def _rows(manifest: Manifest) -> dict[str, str]:
    rows = {"tokenizer": f"{manifest.tokenizer}, {manifest.vocab_size} tokens"}
    for split, files in manifest.splits.items():
        rows[split] = f"{files.tokens:,} tokens in {files.documents:,} documents"
    rows["digest"] = manifest.digest
    left_out = [f"{count:,} {why}" for why, count in manifest.skipped.items() if count]
    if left_out:
        rows["left out"] = ", ".join(left_out)
    return rows
