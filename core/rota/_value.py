# SPDX-License-Identifier: MIT
# mypy: disable-error-code="attr-defined"
"""What `typing` gives at run time, for a tenth of the time.

``rota run`` may take little longer than Python itself takes to start. Importing `typing` (with `re`) takes as long as that again, and
each `typing.NamedTuple` a third of a millisecond. Type checkers see the real ones: look how the other modules import these. (Mypy is
told above that the metaclass makes the attributes.)
"""

from __future__ import annotations

from _collections import _tuplegetter  # type: ignore[import-not-found]  # what collections.namedtuple uses, too

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self


class _Fields(type):
    """Makes a class of its annotations and defaults, without a dict for each instance."""

    def __new__(meta, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _Fields:
        fields = tuple(body.get("__annotations__", ()))
        defaults = {field: body.pop(field) for field in fields if field in body}
        body.update({field: _tuplegetter(index, "") for index, field in enumerate(fields)})
        # by the number of values given: the defaults of those that are left, or None where one of them has none
        tails = [
            tuple(defaults[field] for field in fields[n:]) if defaults.keys() >= set(fields[n:]) else None for n in range(len(fields) + 1)
        ]
        body.update(__slots__=(), __match_args__=fields, _fields=fields, _field_defaults=defaults, _tails=tails, _size=len(fields))
        return super().__new__(meta, name, bases, body)


class NamedTuple(tuple, metaclass=_Fields):  # type: ignore[type-arg]  # noqa: SLOT001 - the metaclass does
    """As `typing.NamedTuple`: fields from the annotations, defaults from the class body."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if not kwargs:
            if len(args) == cls._size:
                return tuple.__new__(cls, args)
            tail = cls._tails[len(args)] if len(args) < cls._size else None
            if tail is not None:
                return tuple.__new__(cls, args + tail)
        values = {**cls._field_defaults, **dict(zip(cls._fields, args, strict=False)), **kwargs}
        given = [*cls._fields[: len(args)], *kwargs]
        if len(args) > len(cls._fields) or len(values) != len(cls._fields) or len(set(given)) != len(given):
            raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}, not {len(args)} values and {', '.join(kwargs) or 'no names'}")
        try:
            return tuple.__new__(cls, [values[name] for name in cls._fields])
        except KeyError as missing:
            raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}; {missing} is not given") from None

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=True))})"

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, not {len(made)}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes: Any) -> Self:
        made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"{type(self).__name__} has no field {', '.join(changes)}")
        return made


class TypedDict:
    """As `typing.TypedDict`, for the names of its keys alone."""

    def __init_subclass__(cls, total: bool = True) -> None:
        pass


class Generic:
    """As `typing.Generic`, for its subscript alone."""

    __slots__ = ()

    def __class_getitem__(cls, item: object) -> type[Self]:
        return cls


def TypeVar(name: str, bound: object = None) -> object:  # noqa: N802 - the name it stands for
    """As `typing.TypeVar`."""
    return name


def cast(kind: object, value: Any) -> Any:
    """As `typing.cast`."""
    return value
