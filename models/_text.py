"""Lines and word ids of text files, for every reader of the zoo.

Files are UTF-8 with or without a byte-order mark, with Unix or Windows line ends, and are read as a stream: one line
is in memory at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edbc.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def word_id(word: str, vocab_size: int) -> int:
    """Row of a word in a table of `vocab_size` rows: its CRC-32 modulo the size, so that no vocabulary is needed."""
    return zlib.crc32(word.encode()) % vocab_size


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, line end removed.

    Raises InputError for a file that cannot be opened and for bytes that are not UTF-8.
    """
    with open_input(path) as file:
        for number, raw in enumerate(file, start=1):
            text = _decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw, path, number)
            yield number, text.removesuffix("\n").removesuffix("\r")


def split_words(line: str) -> list[str]:
    """Words between blanks. Only spaces and tabs separate: a no-break space belongs to its word.

    >>> split_words("8\\u00a01/2  women")
    ['8\\xa01/2', 'women']
    """
    return [word for word in line.replace("\t", " ").split(" ") if word]


def open_input(path: str) -> BinaryIO:
    """The file, opened for reading bytes. Raises InputError when it cannot be."""
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise InputError(f"{path}: expected a readable file, got '{error.strerror}'; check the name") from error


def _decode(raw: bytes, path: str, number: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}:{number}: expected UTF-8, got byte 0x{raw[error.start]:02x} at column {error.start + 1}; "
            "convert the file to UTF-8"
        ) from error
