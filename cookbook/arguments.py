"""Checks of arguments: each returns the value in plain form, or raises an error of the one form that errors have.

The form is `argument: got X; needed Y`: TypeError for a wrong type, ValueError for a wrong value. A bool is no integer,
nor is a float that happens to be whole; a numpy integer is one, and becomes an int. Infinity and NaN are no numbers.
`checked` reads types off a function's annotations; the functions below it say limits as well.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar

import numpy as np

__all__ = [
    "Integers",
    "boolean",
    "broadcast",
    "checked",
    "choice",
    "instance",
    "integer",
    "integers",
    "number",
    "numbers",
    "pair",
    "renamed",
    "shown",
    "string",
    "wrong_type",
    "wrong_value",
]

Integers: TypeAlias = Annotated[np.ndarray, "of integers"]  # for `checked`: an array, or lists, of integers alone
SHOWN = 80  # characters of a value that a message repeats
INT64 = (-(2**63), 2**63 - 1)


def shown(value: Any) -> str:
    """The value as a message repeats it: one line of 80 characters at most, whatever the value is."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write out a very long one
    if isinstance(value, (str, bytes)):
        text = repr(value[:SHOWN])
    elif isinstance(value, (list, tuple)) and len(value) > 8:
        text = f"{type(value).__name__} of {len(value)} items"
    elif isinstance(value, (list, tuple)):
        inner = ", ".join(map(shown, value)) + ("," if isinstance(value, tuple) and len(value) == 1 else "")
        text = f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    elif isinstance(value, np.generic):
        text = repr(value.item())
    elif value is None or isinstance(value, (bool, int, float, complex)):
        text = repr(value)
    else:
        text = f"{'the class ' + value.__name__ if isinstance(value, type) else type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def wrong_type(name: str, value: Any, needed: str) -> NoReturn:
    """Raises the TypeError `name: got value; needed this`."""
    raise TypeError(f"{name}: got {shown(value)}; needed {needed}")


def wrong_value(name: str, value: Any, needed: str) -> NoReturn:
    """Raises the ValueError `name: got value; needed this`."""
    raise ValueError(f"{name}: got {shown(value)}; needed {needed}")


@contextlib.contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Rename an argument in the errors raised within: `renamed(word="descriptor")`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if name not in names:
            raise
        raise type(error)(names[name] + colon + rest) from None


def broadcast(**arrays: Any) -> list[np.ndarray]:
    """The arrays at one shape, as `numpy.broadcast_arrays` has them; what does not fit together is named."""
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = ", ".join(str(np.shape(array)) for array in arrays.values())
        raise ValueError(f"{', '.join(arrays)}: got shapes {shapes}; needed shapes that broadcast together") from None


def is_integer(value: Any) -> bool:
    """Return whether it is an int or a numpy integer, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def integer(
    name: str,
    value: Any,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    one_of: Iterable[int] | None = None,
    multiple_of: int = 1,
    power_of_two: bool = False,
    needed: str = "",
) -> int:
    """The int, if it is one and within the limits.

    Args:
        name: of the argument, for the message.
        needed: what the message says is needed; made of the limits if left out.

    >>> integer("width", np.int64(4), one_of=(1, 2, 4))
    4
    """
    if not is_integer(value):
        wrong_type(name, value, needed or _needed("an integer", at_least, at_most, one_of, multiple_of, power_of_two))
    found = int(value)
    wrong = (at_least is not None and found < at_least) or (at_most is not None and found > at_most)
    wrong = wrong or (one_of is not None and found not in one_of) or found % multiple_of != 0
    if wrong or (power_of_two and (found < 1 or found & (found - 1))):
        said = "an integer"
        if power_of_two and found > 0 and not wrong:
            said += f" (nearest: {1 << found.bit_length() - 1})"
        wrong_value(name, found, needed or _needed(said, at_least, at_most, one_of, multiple_of, power_of_two))
    return found


def _needed(what: str, at_least, at_most, one_of, multiple_of: int, power_of_two: bool) -> str:
    if one_of is not None:
        *others, last = map(str, one_of)
        return f"{', '.join(others)} or {last}" if others else last
    if power_of_two:
        what = what.replace("an integer", "a power of two")
    if multiple_of != 1:
        what = what.replace("an integer", f"a multiple of {multiple_of}")
    if at_least is not None and at_most is not None:
        return f"{what}, {at_least} to {at_most}"
    if at_most is not None:
        return f"{what}, {at_most} at most"
    return what + (f", {at_least} or more" if at_least is not None else "")


def integers(
    name: str,
    value: Any,
    *,
    shape: tuple[int | None, ...] | None = None,
    ndim: int | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
    needed: str = "",
) -> np.ndarray:
    """The integers as an int64 array; lists and arrays of any integer dtype are taken.

    Args:
        shape: None stands for any extent.
        needed: what the message says is needed; made of the limits if left out.
    """
    limits = (INT64[0] if at_least is None else at_least), (INT64[1] if at_most is None else at_most)
    if not needed:
        size = f" of shape {_shape(shape)}" if shape is not None else f" of {ndim} dimensions" if ndim else ""
        needed = _needed(f"integers{size}", at_least, at_most, None, 1, False)
    found = np.asarray(value) if isinstance(value, np.integer) else _array(name, value, needed)
    if found.dtype == object and found.size and all(map(is_integer, found.flat)):
        for beyond in (int(x) for x in found.flat if not INT64[0] <= int(x) <= INT64[1]):
            wrong_value(name, beyond, f"{needed}, each within 64 bits")
        found = found.astype(np.int64)
    if not (np.issubdtype(found.dtype, np.integer) or found.size == 0) or _has_bools(value):
        wrong_type(name, value, needed)
    _check_shape(name, found, shape, ndim, needed)
    if found.size and not limits[0] <= int(found.min()) <= int(found.max()) <= limits[1]:
        outside = found.min() if int(found.min()) < limits[0] else found.max()
        wrong_value(name, int(outside), needed)
    return found.astype(np.int64)


def numbers(name: str, value: Any, ndim: int) -> np.ndarray:
    """The real numbers as an array of their own dtype, float or integer, with this many dimensions."""
    needed = f"real numbers of {ndim} dimensions"
    found = _array(name, value, needed)
    if not (np.issubdtype(found.dtype, np.integer) or np.issubdtype(found.dtype, np.floating)) or _has_bools(value):
        wrong_type(name, value, needed)
    _check_shape(name, found, None, ndim, needed)
    return found


def _array(name: str, value: Any, needed: str) -> np.ndarray:
    if not isinstance(value, (np.ndarray, list, tuple, range)):
        wrong_type(name, value, needed)
    try:
        return np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal lengths
        wrong_value(name, value, needed)


def _has_bools(value: Any) -> bool:
    """Return whether a list has a bool among its integers, which numpy takes for 0 or 1."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_bools, value))
    return isinstance(value, (bool, np.bool_)) or (isinstance(value, np.ndarray) and value.dtype == bool)


def _check_shape(name: str, found: np.ndarray, shape, ndim: int | None, needed: str) -> None:
    fits = ndim is None or found.ndim == ndim
    if shape is not None:
        same = (want is None or want == have for want, have in zip(shape, found.shape, strict=False))
        fits = fits and len(shape) == found.ndim and all(same)
    if not fits:
        raise ValueError(f"{name}: got shape {found.shape}; needed {needed}")


def _shape(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"


def number(name: str, value: Any) -> float:
    """The finite real number: an int or a float of Python or numpy, no bool, neither infinite nor NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        wrong_type(name, value, "a finite number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        wrong_value(name, value, "a finite number")
    return value.item() if isinstance(value, np.generic) else value


def pair(name: str, value: Any, *, of: str = "", **limits: Any) -> tuple[int, int]:
    """Two integers, each within the limits of `integer`.

    Args:
        of: what the two are, such as "rows, columns".
    """
    needed = f"({of or 'two integers'})" + (", two integers" if of else "")
    if not isinstance(value, (tuple, list, np.ndarray)):
        wrong_type(name, value, needed)
    if len(np.shape(value) if isinstance(value, np.ndarray) else (0,)) != 1 or len(value) != 2:
        wrong_value(name, value, needed)
    first, second = value
    try:
        return integer(name, first, **limits), integer(name, second, **limits)
    except TypeError:
        wrong_type(name, value, needed)


def boolean(name: str, value: Any) -> bool:
    """The bool, of Python or numpy; a number is none."""
    if not isinstance(value, (bool, np.bool_)):
        wrong_type(name, value, "True or False")
    return bool(value)


def string(name: str, value: Any, needed: str = "a string") -> str:
    """The string."""
    if not isinstance(value, str):
        wrong_type(name, value, needed)
    return value


def choice(name: str, value: Any, choices: Iterable[str], needed: str = "") -> str:
    """The string, if it is one of the choices."""
    choices = tuple(choices)
    needed = needed or f"one of {', '.join(map(repr, choices))}"
    if not isinstance(value, str):
        wrong_type(name, value, needed)
    if value not in choices:
        wrong_value(name, value, needed)
    return value


def instance(name: str, value: Any, kind: type | tuple[type, ...], needed: str = "") -> Any:
    """The value, if it is an instance of `kind`.

    Args:
        needed: what the message says is needed; "a <kind>" if left out.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wrong_type(name, value, needed or " or ".join(f"a {k.__name__}" for k in kinds))
    return value


# --- types, as annotations say them -----------------------------------------------------------------------------

Rule = Callable[[str, Any], Any]  # (name of the argument, value) -> the value in plain form
Target = TypeVar("Target", bound=Callable[..., Any])
WORD = 2**64  # no argument counts further; a descriptor is a word of 64 bits


def checked(target: Target) -> Target:
    """Has a function, or a dataclass, check the types of its arguments by their annotations before it begins.

    Integers become int and pairs tuples; `np.ndarray` takes lists of numbers too. What is annotated as `Any` is let
    through. Limits of values are for the function itself.
    """
    if isinstance(target, type):
        made: Any = target  # a class whose __init__ is another one now is still that class
        made.__init__ = _guarded(target.__init__, lambda: _rules(target, made.__init__))
        return made
    return _guarded(target, lambda: _rules(target, target))


def _guarded(function: Callable[..., Any], read: Callable[[], dict[str, Rule]]) -> Any:
    rules = functools.cache(read)  # at the first call: annotations may name what is defined further down

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        known = rules()
        given = [known[name](name, value) for name, value in zip(known, args, strict=False)]
        named = {name: known[name](name, value) if name in known else value for name, value in kwargs.items()}
        return function(*given, *args[len(given) :], **named)

    return guarded


def _rules(hinted: Any, called: Callable[..., Any]) -> dict[str, Rule]:
    """The rule of each parameter, positional ones first and in order."""
    hints = typing.get_type_hints(hinted, include_extras=True)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in inspect.signature(called).parameters.values() if p.kind in (*positional, p.KEYWORD_ONLY)]
    return {p.name: _as_given if p.name == "self" else _rule(hints.get(p.name, Any)) for p in taken}


def _as_given(name: str, value: Any) -> Any:
    return value


@functools.cache
def _rule(hint: Any) -> Rule:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar) or hint is object:
        return _as_given
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is typing.Annotated:
        return integers if hint == Integers else _rule(inner[0])
    if origin in (typing.Union, types.UnionType):
        return _union(inner)
    if origin is tuple and (len(inner) != 2 or inner[1] is not ...):
        return _fixed(hint, inner)
    if origin in (tuple, list, Sequence, Iterable):
        return _sequence(hint, _rule(inner[0]))
    if origin in (dict, Mapping):
        return _mapping(hint, *map(_rule, inner))
    if origin is Callable or hint is Callable:
        return _function
    return _record(hint) if hasattr(hint, "_fields") else lambda name, value: instance(name, value, hint, said(hint))


def said(hint: Any) -> str:
    """A type in words, as in "needed two integers or None"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin is typing.Annotated:
        return "an array of integers" if hint == Integers else said(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(said(part) for part in inner)
    if origin is tuple and inner[-1:] != (...,):
        same = len(set(inner)) == 1 and inner[0] is int and len(inner) in (2, 3)
        return f"{('two', 'three')[len(inner) - 2]} integers" if same else f"({', '.join(map(said, inner))})"
    if origin in (tuple, list, Sequence, Iterable):
        return "a sequence, each item " + said(inner[0])
    if origin in (dict, Mapping):
        return f"a mapping from {said(inner[0])} to {said(inner[1])}"
    if origin is Callable or hint is Callable:
        return "a function"
    return f"a {hint.__name__}"


def _word(name: str, value: Any) -> int:
    if not is_integer(value):
        wrong_type(name, value, "an integer")
    if not -WORD < value < WORD:
        wrong_value(name, int(value), "an integer of at most 64 bits")
    return int(value)


def _none(name: str, value: Any) -> None:
    if value is not None:
        wrong_type(name, value, "None")


def _real(name: str, value: Any) -> np.ndarray:
    needed = WORDS[np.ndarray]
    found = np.asarray(value) if isinstance(value, np.generic) else _array(name, value, needed)
    if (found.dtype.kind not in "biuf" and found.size) or isinstance(value, np.bool_):
        wrong_type(name, value, needed)
    return found


def _function(name: str, value: Any) -> Any:
    if not callable(value):
        wrong_type(name, value, "a function")
    return value


SCALARS: dict[Any, Rule] = {
    int: _word,
    float: number,
    bool: boolean,
    str: string,
    None: _none,
    types.NoneType: _none,
    np.ndarray: _real,
}
WORDS = {
    int: "an integer",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    None: "None",
    types.NoneType: "None",
    np.ndarray: "an array of real numbers",
}


def _union(parts: tuple[Any, ...]) -> Rule:
    rules = [_rule(part) for part in parts]
    needed = " or ".join(map(said, parts))

    def rule(name: str, value: Any) -> Any:
        for part in rules:
            try:
                return part(name, value)
            except TypeError:
                continue
        return wrong_type(name, value, needed)

    return rule


def _fixed(hint: Any, parts: tuple[Any, ...]) -> Rule:
    rules = [_rule(part) for part in parts]

    def rule(name: str, value: Any) -> tuple:
        items = _items(name, value, said(hint))
        if len(items) != len(rules):
            wrong_value(name, value, said(hint))
        return tuple(_each(name, value, zip(rules, items, strict=True), said(hint)))

    return rule


def _sequence(hint: Any, each: Rule) -> Rule:
    made = tuple if typing.get_origin(hint) is tuple else list

    def rule(name: str, value: Any) -> Any:
        items = _items(name, value, said(hint), lazy=typing.get_origin(hint) is Iterable)
        return made(_each(name, value, ((each, item) for item in items), said(hint)))

    return rule


def _mapping(hint: Any, key_rule: Rule, value_rule: Rule) -> Rule:
    def rule(name: str, value: Any) -> dict:
        if not isinstance(value, Mapping):
            wrong_type(name, value, said(hint))
        return {key_rule(name, key): value_rule(name, item) for key, item in value.items()}

    return rule


def _record(kind: type) -> Rule:
    """A named tuple, its fields checked as well: making one checks nothing."""

    def rule(name: str, value: Any) -> Any:
        instance(name, value, kind, f"a {kind.__name__}")
        hints = typing.get_type_hints(kind)
        fields = (_rule(hints[field])(f"{name}.{field}", x) for field, x in zip(kind._fields, value, strict=True))
        return kind(*fields)

    return rule


def _items(name: str, value: Any, needed: str, lazy: bool = False) -> list[Any]:
    plain = isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if plain or (lazy and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))):
        return list(value)
    return wrong_type(name, value, needed)


def _each(name: str, whole: Any, pairs: Iterable[tuple[Rule, Any]], needed: str) -> Iterable[Any]:
    """Each item by its rule; where one has a wrong type, the message repeats the whole."""
    try:
        return [rule(name, item) for rule, item in pairs]
    except TypeError as error:
        if str(error).startswith(f"{name}."):  # a field of a record says it better
            raise
        return wrong_type(name, whole, needed)
