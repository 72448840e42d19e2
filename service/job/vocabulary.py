"""Enumerations in answers. A newer service may send words that this release does not know."""

from enum import StrEnum
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

#: The context in which a client validates an answer.
MAY_BE_NEWER = object()


class Vocabulary(StrEnum):
    """An enumeration that newer releases may extend.

    A client reads an unknown word as an instance that is not a member. A service refuses it.
    """

    def __reduce_ex__(self, protocol: object) -> Any:
        """Let an unknown word survive pickling."""
        return _unpickled, (type(self), str(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(cls._read, handler(source))

    @classmethod
    def _read(cls, word: Any, known: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Self:
        try:
            read: Self = known(word)
        except ValidationError:
            if info.context is not MAY_BE_NEWER or not isinstance(word, str):
                raise
            read = cls._unknown(word)
        return read

    @classmethod
    def _unknown(cls, word: str) -> Self:
        read = str.__new__(cls, word)
        read._name_ = read._value_ = word  # as Enum does, so that it is written and compared as the others are
        return read


def _unpickled(kind: type[Vocabulary], word: str) -> Vocabulary:
    return kind(word) if word in kind._value2member_map_ else kind._unknown(word)
