"""The readers of the zoo: what they accept, and what they say about what they do not."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import bilstm_tagger_char
import lattice_lstm
import lstm_nmt
import pytest
import tree_lstm
from _conllu import read_conllu
from _lattices import read_lattices, read_sentences
from _lexicon import read_lexicon
from _rare import read_counts, write_counts
from _sentences import Pair, read_pairs, read_tagged
from _text import read_lines, word_id
from _trees import Tree, read_trees

from edbc.errors import InputError, ModelError

Write = Callable[..., str]

CONLLU = "1\tI\ti\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\trun\trun\tVERB\tVBP\t_\t0\troot\t_\t_\n"
LATTICE = "1\n3\n0 3 3\n0\n1 0 7\n2 1 8 0 9\n"

READERS: dict[str, tuple[Callable[[str], list], str]] = {
    "trees": (lambda path: list(read_trees(path, 100)), "(3 (2 a) (3 b))\n"),
    "tagged": (lambda path: list(read_tagged(path)), "a|O b|I-PER\n"),
    "pairs": (lambda path: list(read_pairs(path, path, 100)), "a b\n"),
    "conllu": (lambda path: list(read_conllu(path)), CONLLU + "\n"),
    "lattices": (lambda path: list(read_lattices(path, 100)), LATTICE),
    "columns": (lambda path: list(read_sentences(path, "columns")), "科0\tO\n技1\tO\n\n"),
    "plain": (lambda path: list(read_sentences(path, "plain")), "科技\n"),
    "counts": (lambda path: list(read_counts(path).items()), "the\t12\n"),
}
READER = pytest.mark.parametrize("reader", READERS)


@READER
def test_windows_files_read_the_same(reader: str, write: Write) -> None:
    """A byte-order mark, Windows line ends and a missing last line end change nothing."""
    read, text = READERS[reader]
    expected = read(write(text))

    assert expected
    assert read(write(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())) == expected
    assert read(write(text.rstrip("\n"))) == expected


@READER
def test_empty_file_has_no_instance(reader: str, write: Write) -> None:
    """Nothing in, nothing out."""
    read, _ = READERS[reader]

    assert read(write("")) == []
    assert read(write("\n\n")) == []


@READER
def test_bytes_that_are_not_utf8_are_refused(reader: str, write: Write) -> None:
    """The message names file, line, byte and column."""
    read, text = READERS[reader]
    path = write(text.encode() + b"ab\xff\n")

    with pytest.raises(InputError) as error:
        read(path)
    line = text.count("\n") + 1
    assert str(error.value).startswith(f"{path}:{line}: expected UTF-8, got byte 0xff at column 3; ")


@READER
def test_missing_file_is_named(reader: str, tmp_path: Path) -> None:
    """A file that is not there, or is a folder, is an InputError with its name."""
    read, _ = READERS[reader]

    with pytest.raises(InputError, match=r"absent\.txt: expected a readable file, got 'No such file"):
        read(str(tmp_path / "absent.txt"))
    with pytest.raises(InputError, match="expected a readable file"):
        read(str(tmp_path))


def test_reading_is_a_stream(write: Write) -> None:
    """The first instance comes before a later line is looked at, broken though it is."""
    path = write("(3 (2 a) (3 b))\n" * 100_000 + "(broken\n")

    assert len(list(islice(tree_lstm.load(path), 5))) == 5
    with pytest.raises(InputError, match=":100001: "):
        list(tree_lstm.load(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 a) (2 b)", "expected the end of the line after one bracket, got '('; split the line"),
        ("3 a", "expected '(', got '3'; a line holds one bracket"),
        ("(3 (2 a) (3 b)", "expected 1 more ')', got the end of the line; close every bracket"),
        ("(5 a)", "expected a label 0 to 4 after '(', got '5'; write (label word) or (label child child)"),
        ("(good)", "expected a label 0 to 4 after '(', got 'good'; write (label word) or (label child child)"),
        ("()", "expected a label 0 to 4 after '(', got ')'; write (label word) or (label child child)"),
        ("((2 a))", "expected a label 0 to 4 after '(', got a bracket; write (label word) or (label child child)"),
        ("(3)", "expected one word or two children after a label, got nothing; trees are binary"),
        ("(3 a b)", "expected one word or two children after a label, got word, word; trees are binary"),
        ("(3 (2 a))", "expected one word or two children after a label, got bracket; trees are binary"),
        (
            "(3 (2 a) (2 b) (2 c))",
            "expected one word or two children after a label, got bracket, bracket, bracket; trees are binary",
        ),
    ],
)
def test_broken_tree_is_refused(line: str, message: str, write: Write) -> None:
    """The message names the line, what was expected, what was there and what to do."""
    path = write(f"(3 a)\n\n{line}\n")

    with pytest.raises(InputError) as error:
        list(read_trees(path, 100))
    assert str(error.value) == f"{path}:3: {message}"


def test_tree_is_read_as_written(write: Write) -> None:
    """Labels, word ids, children, and the phrase's bit from its words joined by one space."""
    (tree,) = read_trees(write("(4 (2 a) (3 (1 not)\t(0 b)))\n"), 100)

    bit = {text: zlib.crc32(text.encode()) & 1 for text in ("a", "not", "b", "not b", "a not b")}
    right = Tree(3, bit["not b"], 0, Tree(1, bit["not"], word_id("not", 100)), Tree(0, bit["b"], word_id("b", 100)))
    assert tree == Tree(4, bit["a not b"], 0, Tree(2, bit["a"], word_id("a", 100)), right)


def test_no_break_space_belongs_to_its_word(write: Write) -> None:
    """Only spaces and tabs separate words."""
    (tree,) = read_trees(write("(2 8\u00a01\\/2)\n"), 10**6)

    assert tree.word == word_id("8\u00a01\\/2", 10**6)
    assert list(read_tagged(write("8\u00a01/2|O\n"))) == [["8\u00a01/2"]]


def test_chain_of_ten_thousand_is_read(write: Write) -> None:
    """Depth is no limit of the reader."""
    path = write("(2 (2 a) " * 10_000 + "(2 b)" + ")" * 10_000 + "\n")

    (tree,) = read_trees(path, 100)
    assert sum(1 for _ in tree) == 20_001


def test_word_ends_at_the_last_bar(write: Write) -> None:
    """A word may hold a bar itself."""
    assert list(read_tagged(write("a|b|O |||O\n"))) == [["a|b", "||"]]


@pytest.mark.parametrize("item", ["word", "|O", "word|"])
def test_untagged_word_is_refused(item: str, write: Write) -> None:
    """A word or a tag is missing."""
    with pytest.raises(InputError, match=r":2: expected word\|TAG, got "):
        list(read_tagged(write(f"a|O\nb|O {item}\n")))


def test_translations_go_side_by_side(write: Write) -> None:
    """Line i of one file with line i of the other; a line blank in both is left out."""
    source, target = write("a b\n\nc\n", "source"), write("x\n\ny z\n", "target")
    a, b, c, x, y, z = (word_id(word, 100) for word in "abcxyz")

    assert list(lstm_nmt.load(source, target, vocab_size=100)) == [Pair([a, b], [x]), Pair([c], [y, z])]


def test_translations_that_do_not_pair_are_refused(write: Write) -> None:
    """One file is shorter, one line is blank on one side only, or there are not two files."""
    long, short, blank = write("a\nb\nc\n", "long"), write("x\n", "short"), write("x\n\nz\n", "blank")

    with pytest.raises(InputError, match=r"short:2: expected a line to go with .*long:2, got the end"):
        list(read_pairs(long, short, 100))
    with pytest.raises(InputError, match=r"short:2: expected a line to go with .*long:2, got the end"):
        list(read_pairs(short, long, 100))
    with pytest.raises(InputError, match=r"blank:2: expected a translation, got a blank line"):
        list(read_pairs(long, blank, 100))
    with pytest.raises(InputError, match="expected two files, source and target, got 1"):
        lstm_nmt.load(long)


def test_ranges_and_decimals_are_skipped(write: Write) -> None:
    """CoNLL-U lines whose id is a range or a decimal are no words."""
    rest = "\t".join(["x", "_", "_", "_", "_", "_", "_", "_", "_"])
    words = CONLLU.splitlines()
    path = write("\n".join(["# text = I run", f"1-2\t{rest}", words[0], f"1.1\t{rest}", words[1], ""]))

    ((first, second),) = read_conllu(path)
    assert (first.form, first.head, first.relation) == ("I", 2, "nsubj")
    assert (second.form, second.tag, second.head) == ("run", "VERB", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\tI\n", ":1: expected 10 columns separated by tabs, got 2; "),
        (CONLLU.replace("2\trun", "3\trun"), ":2: expected word 2, got '3'; "),
        (CONLLU.replace("1\tI", "1\t"), ":1: expected a word in column 2, got nothing; "),
        (CONLLU.replace("_\t2\t", "_\t-1\t"), ":1: expected the number of a word in column 7, got '-1'; "),
        (CONLLU.replace("_\t2\t", "_\t9\t"), ":3: expected heads up to 2 in the sentence that ends here, got 9 "),
    ],
)
def test_broken_conllu_is_refused(text: str, message: str, write: Write) -> None:
    """Columns, numbering, forms and heads are checked."""
    path = write(text)

    with pytest.raises(InputError) as error:
        list(read_conllu(path))
    assert str(error.value).startswith(path + message)


def test_lattice_is_read_as_written(write: Write) -> None:
    """Arcs by position, character first, ids modulo the vocabulary; line ends stand anywhere."""
    expected = [[[(0, 7)], [(1, 8), (0, 9)]]]

    assert list(lattice_lstm.load(write(LATTICE))) == expected
    assert list(lattice_lstm.load(write(LATTICE.replace("\n", "  ")))) == expected
    assert list(lattice_lstm.load(write(LATTICE), vocab_size=8)) == [[[(0, 7)], [(1, 0), (0, 1)]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LATTICE.replace("2 1 8", "2 2 8"), ":6: expected a position below 2, got 2; "),
        (LATTICE.replace("1 0 7", "0"), ":5: expected an arc into position 1, got none; "),
        (LATTICE.replace("1 0 7", "1 0 x"), ":5: expected an id, got 'x'; "),
        (LATTICE.replace("\n0\n", "\n1 0 0\n"), ":4: expected no arcs into position 0, got some; "),
        (LATTICE.replace("\n3\n", "\n1\n"), ":2: expected at least 2 positions, got 1; "),
        (LATTICE.replace(" 0 9", ""), ":6: expected the position that an arc comes from, got the end of the file; "),
        (LATTICE + "4\n", ":7: expected the end of the file after the last lattice, got more; "),
        (LATTICE.replace("1\n3", "2\n3"), ":6: expected the number of positions, got the end of the file; "),
        ("1\n99999999999\n", ":2: expected the number of positions, got '99999999999'; "),
        ("-1\n", ":1: expected the number of lattices, got '-1'; "),
    ],
)
def test_broken_lattice_is_refused(text: str, message: str, write: Write) -> None:
    """Counts, positions and ids are checked, and nothing is allocated on a count's word."""
    path = write(text)

    with pytest.raises(InputError) as error:
        list(read_lattices(path, 100))
    assert str(error.value).startswith(path + message)


def test_character_columns_are_read(write: Write) -> None:
    """A number follows the character, which may be a digit itself or what the corpus could not encode."""
    path = write("科0\tO\n310\tB-PER.NAM\n\ufffd\ufffd0\tO\n\n技1\tO\n")

    assert list(read_sentences(path, "columns")) == [["科", "3", "\ufffd\ufffd"], ["技"]]


@pytest.mark.parametrize("line", ["科\tO", "科0", "科0 O", "科0\t", "\tO", "科0\tO\tO"])
def test_broken_character_line_is_refused(line: str, write: Write) -> None:
    """Each part of the line is required."""
    with pytest.raises(InputError, match=":2: expected a character, a number, a tab and a tag, got "):
        list(read_sentences(write(f"科0\tO\n{line}\n"), "columns"))


def test_unknown_form_of_text_is_refused(write: Write) -> None:
    """`--set text=` takes two values."""
    with pytest.raises(ModelError, match="expected 'columns' or 'plain', got 'xml'"):
        list(lattice_lstm.load(write("x"), lexicon=write("科技 3 n\n", "dict"), text="xml"))


def test_lexicon_line_of_four_items_is_refused(write: Write) -> None:
    """A line is a word, perhaps its frequency and part of speech."""
    with pytest.raises(InputError, match=":2: expected 'word frequency part-of-speech', got 4 items"):
        read_lexicon(write("科技 3 n\n科技 3 n x\n"))


def test_counts_file_decides_which_words_are_spelled(write: Write, tmp_path: Path) -> None:
    """Words seen fewer than five times are tuples of characters, others are rows; the file is made by write_counts."""
    corpus = write("often|O " * 5 + "seldom|O\n")
    counts = str(tmp_path / "counts.tsv")
    write_counts(counts, read_tagged(corpus))

    assert Path(counts).read_text() == "often\t5\nseldom\t1\n"
    (words,) = bilstm_tagger_char.load(write("often|O seldom|O never|O\n"), counts=counts, vocab_size=10)
    assert words[0] == word_id("often", 10)
    assert words[1] == tuple(word_id(letter, 256) for letter in "seldom")
    assert words[2] == tuple(word_id(letter, 256) for letter in "never")


def test_without_counts_long_words_are_spelled(write: Write) -> None:
    """More than five characters; the same in both formats, and whatever else the file holds."""
    (tagged,) = bilstm_tagger_char.load(write("never|O seldom|O\n"))
    (parsed,) = bilstm_tagger_char.load(write(CONLLU.replace("run", "seldom"), "s.conllu"))

    assert isinstance(tagged[0], int)
    assert tagged[1] == parsed[1] == tuple(word_id(letter, 256) for letter in "seldom")


@pytest.mark.parametrize("line", ["the", "the\tmany", "\t3", "the\t-3"])
def test_broken_counts_are_refused(line: str, write: Write) -> None:
    """A word, a tab and a whole number."""
    with pytest.raises(InputError, match=":2: expected word<TAB>count, got "):
        read_counts(write(f"a\t1\n{line}\n"))


def test_repeated_count_is_refused(write: Write) -> None:
    """Two counts of one word contradict each other."""
    with pytest.raises(InputError, match=":2: expected each word once, got 'a' again"):
        read_counts(write("a\t1\na\t2\n"))


def test_long_lines_are_whole(write: Write) -> None:
    """A line is a line however long it is, and only line ends separate lines."""
    text = "x" * 300_000 + "\u2028\x0b\x0cy"

    assert list(read_lines(write(text + "\r\n\n"))) == [(1, text), (2, "")]
