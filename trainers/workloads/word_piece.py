"""BERT's tokenizer: lower case without accents, split at spaces and punctuation, then the longest known pieces.

Schuster and Nakajima, *Japanese and Korean voice search* (2012). Scripts without spaces are not split by character.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

_WORDS = re.compile(r"[^\W_]+|[^\w\s]|_")
#: A longer word is unknown, as in BERT.
_LONGEST = 100


class WordPiece:
    """Splits texts into the pieces of a `vocabulary`, whose places are their ids.

    Raises KeyError if it lacks BERT's marks.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: index for index, piece in enumerate(vocabulary)}
        self._unknown, self._first, self._last = (self._ids[name] for name in ("[UNK]", "[CLS]", "[SEP]"))

    def encode(self, text: str, length: int) -> list[int]:
        """Return the ids of `text` between the first and the last mark: `length` at most."""
        plain = unicodedata.normalize("NFD", text.lower())
        words = _WORDS.findall("".join(each for each in plain if unicodedata.category(each) != "Mn"))
        pieces = [piece for word in words for piece in self._pieces(word)]
        return [self._first, *pieces[: length - 2], self._last]

    def _pieces(self, word: str) -> list[int]:
        """Return the ids of the longest piece from the start on, the longest of the rest, and so on."""
        try:
            return list(self._longest_first(word)) if len(word) <= _LONGEST else [self._unknown]
        except KeyError:  # something in it is in no piece
            return [self._unknown]

    def _longest_first(self, word: str) -> Iterator[int]:
        mark = ""  # of pieces that do not begin a word: "##"
        while word:
            end = next((end for end in range(len(word), 1, -1) if mark + word[:end] in self._ids), 1)
            yield self._ids[mark + word[:end]]
            word, mark = word[end:], "##"
