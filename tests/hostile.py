"""What the hostile suite feeds to a public function, one argument at a time, and how it judges what comes back.

`public` finds the functions, classes and methods; `VALUES` and `like` make the values; `judge` says what is wrong with
an answer or an error. Run as a module it tries every call of the tables in a process of its own, whose memory and time
are bounded, and writes what it found as JSON.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import resource
import signal
import sys
import time
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

SECONDS, BYTES = 5.0, 1 << 30
# What is not the library: the command line, what runs and measures recipes, and the checks of arguments themselves.
NOT_LIBRARY = (
    "cookbook.__main__",
    "cookbook.arguments",
    "cookbook.cli",
    "cookbook.check",
    "cookbook.simulate",  # follows traces for the checks
    "cookbook.lab",
    "cookbook.measure",
    "cookbook.ops",
    "cookbook.products",
    "cookbook.publish",
    "cookbook.recipe",
    "cookbook.pytest_plugin",
    "cookbook.settings",
    "cookbook.testing",  # traces kernels, as the checks do
)
FREE_TEXT = {
    "title",
    "titles",
    "unit",
    "note",
    "x_title",
    "meaning",
    "highlight",
    "baseline",
    "limit",
    "axes",
    "reason",
}


# What the package makes for a reader to look at: a result is checked by what made it.
RESULTS = {
    "BankMap",
    "Candidate",
    "CountingProof",
    "ExhaustionProof",
    "Frame",
    "LinearMap",
    "Phase",
    "Problem",
    "Solution",
    "Tree",
    "TreeProof",
    "Vectors",
    "Wavefronts",
}


def library() -> list[types.ModuleType]:
    """The modules of the library; a new one is among them."""
    import cookbook

    names = [module.name for module in pkgutil.walk_packages(cookbook.__path__, "cookbook.")]
    kept = [n for n in names if not any(n == out or n.startswith(f"{out}.") for out in NOT_LIBRARY)]
    return [importlib.import_module(name) for name in kept]


def public() -> dict[str, Any]:
    """Every public function, class and method with arguments, by its dotted name.

    Exceptions are left out, and named tuples: making one checks nothing, and what takes one checks its fields.
    """
    found: dict[str, Any] = {}
    for module in library():
        for name in getattr(module, "__all__", ()) if hasattr(module, "__path__") else module.__all__:
            value, full = getattr(module, name), f"{module.__name__}.{name}"
            if getattr(value, "__module__", None) != module.__name__ or not callable(value):
                continue
            if not isinstance(value, type):
                found[full] = value
            elif not issubclass(value, BaseException):
                if not hasattr(value, "_fields") and parameters(value) and name not in RESULTS:
                    found[full] = value
                found |= {f"{full}.{method}": f for method, f in methods(value) if parameters(f) and name != "Vectors"}
    return found


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if name == "__call__" or (not name.startswith("_") and isinstance(value, (types.FunctionType, classmethod))):
            yield name, getattr(kind, name)


def parameters(function: Any) -> list[str]:
    """Names of the arguments that can be given, without `self`."""
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.name != "self" and p.kind not in (p.VAR_KEYWORD,)]


def hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    except NameError:
        return {}


class Nothing:
    """An object that is none of anything."""


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "1.5": lambda: 1.5,
    "NaN": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "7": lambda: 7,
    "2**31": lambda: 2**31,
    "2**62": lambda: 2**62,
    "2**64": lambda: 2**64,
    "10**30": lambda: 10**30,
    "10**5000": lambda: 10**5000,
    "'x'": lambda: "x",
    "''": lambda: "",
    "b'x'": lambda: b"x",
    "1j": lambda: 1j,
    "[]": list,
    "()": tuple,
    "{}": dict,
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "(1, 2.5)": lambda: (1, 2.5),
    "(True, 8)": lambda: (True, 8),
    "(-8, 8)": lambda: (-8, 8),
    "(2**62, 2**62)": lambda: (2**62, 2**62),
    "{'x': 1}": lambda: {"x": 1},
    "object": Nothing,
    "a class": lambda: int,
    "a function": lambda: len,
    "np.float64": lambda: np.float64(4.0),
    "np.bool_": lambda: np.bool_(True),
    "array of NaN": lambda: np.array([np.nan]),
    "empty array": lambda: np.zeros(0, np.int64),
    "array of str": lambda: np.array(["x"]),
    "array of object": lambda: np.array([None, 1]),
    "large array": lambda: np.zeros((1 << 11, 1 << 11), np.int64),
}
HUGE = {"2**62", "2**64", "10**30", "10**5000", "(2**62, 2**62)"}
NEGATIVE = {"-1", "(-8, 8)"}
EMPTY = {"[]", "()", "{}", "empty array"}


def like(value: Any) -> Iterator[tuple[str, Any]]:
    """Values near to a valid one; those whose label begins with "same" are equivalent to it."""
    if isinstance(value, (bool, np.bool_)):
        yield from (("same as np.bool_", np.bool_(value)), ("as int", int(value)), ("as str", str(value)))
    elif isinstance(value, int):
        if -(2**63) <= value < 2**63:
            yield "same as np.int64", np.int64(value)
        yield from (("as float", float(value)), ("as str", str(value)), ("as tuple", (value,)))
    elif isinstance(value, float):
        yield from (("same as np.float64", np.float64(value)), ("as str", str(value)))
    elif isinstance(value, str):
        yield from (("as bytes", value.encode()), ("in a list", [value]), ("with a ?", value + "?"))
    elif isinstance(value, np.ndarray):
        yield from _like_array(value)
    elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        yield from _like_sequence(value)


def _like_sequence(value: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    kind, items = type(value), list(value)
    if items and all(type(x) is int for x in items):
        yield "same of np.int64", kind(np.int64(x) for x in items)
        yield "of floats", kind(float(x) for x in items)
        for label, odd in (("-1", -1), ("True", True), ("10**30", 10**30), ("NaN", float("nan"))):
            yield f"first is {label}", kind([odd, *items[1:]])
    for label, odd in (("None", None), ("'x'", "x"), ("[]", []), ("1.5", 1.5)):
        yield f"last is {label}", kind([*items[:-1], odd])
    yield "one longer", kind([*items, *items[-1:]])
    yield "one shorter", kind(items[:-1])
    yield "nested", kind([kind(items)])


def _like_array(value: np.ndarray) -> Iterator[tuple[str, Any]]:
    if value.dtype.kind in "iu":
        yield "as floats", value.astype(float)
        yield "as NaN", np.full(value.shape, np.nan)
        yield "as bools", value.astype(bool)
        if value.dtype == np.int64 and value.size:
            yield "same as int32", value.astype(np.int32) if abs(value).max() < 2**31 else value.copy()
            yield "negative", -value - 2
            yield "huge", value + 2**62
    if value.dtype.kind == "f":
        yield "as str", value.astype(str)
        yield "as complex", value.astype(complex)
    yield "as objects", value.astype(object)
    yield "nested", value[None, None, None]
    yield "flat", value.reshape(-1)
    yield "one shorter", value[:-1]


def fits(hint: Any, value: Any) -> bool:
    """Whether a value has the type that an annotation says, told apart from the package's own checks."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(part, value) for part in inner)
    if hint in (None, type(None)):
        return value is None
    if hint is bool:
        return isinstance(value, (bool, np.bool_))
    if hint is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, complex))
    if hint is np.ndarray:
        return _numeric(value)
    if origin is Callable or hint is Callable:
        return callable(value)
    if origin in (tuple, list, Sequence, Iterable):
        return _fits_items(origin, inner, value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(inner[0], k) and fits(inner[1], v) for k, v in value.items())
    return isinstance(value, hint) if isinstance(hint, type) else True


def _numeric(value: Any) -> bool:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return False
    if isinstance(value, np.generic):
        return array.dtype.kind in "iuf"
    kinds = "biufO" if array.size and all(isinstance(x, int) for x in array.flat) else "biuf"
    return isinstance(value, (np.ndarray, list, tuple)) and (array.dtype.kind in kinds or not array.size)


def _fits_items(origin: Any, inner: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(value, (tuple, list, range, np.ndarray)) or (isinstance(value, np.ndarray) and not value.ndim):
        return False
    if origin is tuple and inner[-1:] != (...,):
        return len(value) == len(inner) and all(fits(part, x) for part, x in zip(inner, value, strict=True))
    return all(fits(inner[0], x) for x in value)


def same(a: Any, b: Any) -> bool:
    """Whether two answers are equal."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f")
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if type(a) is type(b) and type(a).__eq__ is object.__eq__:
        return True  # an object with nothing to compare, such as a memory
    return bool(a == b)


FORM = re.compile(r"(?P<name>[\w., \[\]]+): got .*; needed .+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Try:
    """One call with one argument changed."""

    name: str  # of the function
    argument: str
    label: str  # of the value
    value: Any
    hint: Any
    default: Any = inspect.Parameter.empty


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, (int, str)) and a == b


def judge_error(one: Try, error: Exception, names: Iterable[str]) -> str:
    """What is wrong with an error; empty if it is clear: its form, and that it names the argument.

    Where the value has a right type, the message may name another argument that it no longer goes with.
    """
    if type(error).__name__ == "Unsolvable":
        return ""
    if not isinstance(error, (TypeError, ValueError)):
        return f"{type(error).__name__}: {error}"
    said = FORM.fullmatch(str(error))
    named = set(re.findall(r"\w+", said["name"])) if said else set()
    wanted = {one.argument} if not fits(one.hint, one.value) else {one.argument, *names}
    return "" if named & wanted else f"unclear {type(error).__name__}: {str(error)[:200]}"


def judge_answer(one: Try, answer: Any, valid: Any, takes: Iterable[str]) -> str:
    """What is wrong with an answer; empty if it is the valid call's, or another that the value may have."""
    if one.label in takes or _equal(one.value, one.default):
        return ""
    if one.label.startswith("same"):
        return "" if same(answer, valid) else f"another answer: {str(answer)[:80]}"
    if not fits(one.hint, one.value):
        return f"silent answer: {str(answer)[:80]}"
    text = isinstance(one.value, str) and one.argument not in FREE_TEXT
    refused = one.label in HUGE | NEGATIVE | EMPTY or "huge" in one.label or "negative" in one.label or text
    return f"silent answer: {str(answer)[:80]}" if refused else ""


# --- the process ------------------------------------------------------------------------------------------------


class OutOfTime(BaseException):
    """Not to be caught by what is tried."""


def _alarm(*_: Any) -> None:
    raise OutOfTime


def _bounded() -> None:
    """From here on this process may take that many more bytes, and a call that many seconds."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
    signal.signal(signal.SIGPROF, _alarm)
    warnings.simplefilter("error", RuntimeWarning)


def tries(name: str, function: Any, kwargs: dict[str, Any]) -> Iterator[Try]:
    known = hints(function)
    for argument in parameters(function):
        hint, default = known.get(argument, Any), inspect.signature(function).parameters[argument].default
        for label, make in VALUES.items():
            yield Try(name, argument, label, make(), hint, default)
        if argument in kwargs:
            for label, value in like(kwargs[argument]):
                yield Try(name, argument, label, value, hint, default)


def attempt(function: Any, kwargs: dict[str, Any]) -> tuple[Any, BaseException | None, float]:
    """(answer, error, seconds)."""
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        rest = dict(kwargs)
        several = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_POSITIONAL]
        given = [rest.pop(name) for name in several if name in rest]
        answer, error = function(*given, **rest), None
        if inspect.isgenerator(answer):
            answer = [one for one, _ in zip(answer, range(1000), strict=False)]
    except (Exception, OutOfTime) as raised:
        answer, error = None, raised
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return answer, error, time.process_time() - begun


def explore(calls: Mapping[str, Callable[[], dict[str, Any]]], takes: Mapping[tuple[str, str], Iterable[str]]) -> dict:
    """Every hostile call of the functions in `calls`: how many, and what was wrong with which.

    Args:
        calls: the arguments of a valid call by dotted name, made anew for each try; `self` is the object of a method.
        takes: by (dotted name, argument), the labels of values that are right to be answered.
    """
    known, wrong, count, slowest = public(), [], 0, 0.0
    for name, make in calls.items():
        if (function := known.get(name)) is None:
            wrong.append(f"{name}: there is no such public function")
            continue
        valid, error, _ = attempt(*_bound(function, make()))
        if error is not None:
            wrong.append(f"{name}: the valid call fails: {error!r}")
            continue
        for one in tries(name, function, make()):
            if one.argument == "args":
                continue
            kwargs = make()
            kwargs[one.argument] = one.value
            answer, error, seconds = attempt(*_bound(function, kwargs))
            count, slowest = count + 1, max(slowest, seconds)
            allowed = takes.get((name, one.argument), ())
            if one.label in allowed and isinstance(error, (TypeError, ValueError, type(None))):
                bad = ""
            elif error is None:
                bad = judge_answer(one, answer, valid, allowed)
            elif isinstance(error, OutOfTime):
                bad = f"over {SECONDS:g} s"
            else:
                names = {*parameters(function), *_fields(kwargs.get("self"))}
                bad = judge_error(one, error, names)
            bad = bad or (f"took {seconds:.1f} s" if seconds > SECONDS else "")
            if bad:
                wrong.append(f"{name}({one.argument}={one.label}): {bad}")
    return {"calls": count, "slowest": slowest, "wrong": wrong}


def _bound(function: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A function and its arguments; of a method, bound to its object."""
    if "self" not in kwargs:
        return function, kwargs
    rest = dict(kwargs)
    return types.MethodType(function, rest.pop("self")), rest


def _fields(value: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []


def main() -> None:
    """What is found of the calls whose dotted name begins with each of the arguments."""
    from hostile_calls import CALLS, TAKES

    chosen = {part: {n: make for n, make in CALLS.items() if n.startswith(part)} for part in sys.argv[1:]}
    public()  # imports what all of the suite looks at, torch too
    for make in [make for calls in chosen.values() for make in calls.values()]:
        make()  # imports and tables that are made once
    _bounded()
    json.dump({part: explore(calls, TAKES) for part, calls in chosen.items()}, sys.stdout)


if __name__ == "__main__":
    main()
