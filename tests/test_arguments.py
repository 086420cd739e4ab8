"""Checks of arguments: what each takes, and the one form of what each refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from cookbook import arguments
from cookbook.arguments import Integers, checked

HUGE = 10**5000
OF_POINTS = "a mapping from a string to a sequence, each item a Point or None"


class Point(NamedTuple):
    x: float
    n: int = 0


@checked
@dataclass(frozen=True)
class Tile:
    """Checked as a dataclass is."""

    rows: int
    steps: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        arguments.integer("rows", self.rows, at_least=1)


@checked
def taken(
    count: int = 0,
    many: tuple[int, ...] = (),
    places: Integers | None = None,
    table: np.ndarray | None = None,
    *,
    flag: bool = False,
    share: float = 0.0,
    names: Iterable[str] = (),
    points: Mapping[str, Sequence[Point]] | None = None,
    call: Callable[..., Any] | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    return locals()


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"count": np.int8(3)}, 3),
        ({"count": 2**64 - 1}, 2**64 - 1),
        ({"many": [np.int64(1), 2]}, (1, 2)),
        ({"many": np.array([1, 2])}, (1, 2)),
        ({"places": [[1, 2], [3, 4]]}, np.array([[1, 2], [3, 4]])),
        ({"places": np.array([1, 2], np.uint8)}, np.array([1, 2])),
        ({"table": [1.5, 2]}, np.array([1.5, 2.0])),
        ({"table": None}, None),
        ({"flag": np.bool_(True)}, True),
        ({"share": np.float32(0.5)}, 0.5),
        ({"names": (name for name in "ab")}, ["a", "b"]),
        ({"points": {"a": [Point(1, np.int64(2))]}}, {"a": [Point(1, 2)]}),
        ({"call": len}, len),
        ({"anything": Point}, Point),
    ],
)
def test_what_is_taken_becomes_plain(given, becomes):
    ((name, _),) = given.items()
    found = taken(**given)[name]
    assert type(found) is type(becomes) and np.array_equal(found, becomes) if name != "points" else found == becomes


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"count": True}, TypeError, "count: got True; needed an integer"),
        ({"count": 4.0}, TypeError, "count: got 4.0; needed an integer"),
        ({"count": float("nan")}, TypeError, "count: got nan; needed an integer"),
        ({"count": "4"}, TypeError, "count: got '4'; needed an integer"),
        ({"count": HUGE}, ValueError, "count: got an integer of 16610 bits; needed an integer of at most 64 bits"),
        ({"many": (1, 2.5)}, TypeError, "many: got (1, 2.5); needed a sequence, each item an integer"),
        ({"many": 3}, TypeError, "many: got 3; needed a sequence, each item an integer"),
        ({"places": [1, True]}, TypeError, "places: got [1, True]; needed an array of integers or None"),
        ({"places": [1, 2**70]}, ValueError, f"places: got {2**70}; needed integers, each within 64 bits"),
        ({"places": [[1], [2, 3]]}, ValueError, "places: got [[1], [2, 3]]; needed integers"),
        ({"table": "x"}, TypeError, "table: got 'x'; needed an array of real numbers or None"),
        ({"flag": 1}, TypeError, "flag: got 1; needed True or False"),
        ({"share": float("inf")}, ValueError, "share: got inf; needed a finite number"),
        ({"names": "ab"}, TypeError, "names: got 'ab'; needed a sequence, each item a string"),
        ({"points": {"a": [Point(float("nan"))]}}, ValueError, "points.x: got nan; needed a finite number"),
        ({"points": {"a": 3}}, TypeError, f"points: got dict; needed {OF_POINTS}"),
        ({"call": 3}, TypeError, "call: got 3; needed a function or None"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(given, error, says):
    with pytest.raises(error) as caught:
        taken(**given)
    assert str(caught.value) == says and type(caught.value) is error


def test_dataclasses_and_the_limits_that_they_add():
    assert Tile(np.int64(3), [1, 2]) == Tile(3, (1, 2)) and type(Tile(np.int64(3)).rows) is int
    with pytest.raises(TypeError, match=r"steps: got \(1, 2\.5\); needed two integers"):
        Tile(3, (1, 2.5))
    with pytest.raises(ValueError, match=r"rows: got 0; needed an integer, 1 or more"):
        Tile(0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'rows'"):
        Tile()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"at_least": 8}, "n: got 7; needed an integer, 8 or more"),
        ({"at_most": 6}, "n: got 7; needed an integer, 6 at most"),
        ({"at_most": 0}, "n: got 7; needed an integer, 0 at most"),
        ({"at_least": 8, "at_most": 9}, "n: got 7; needed an integer, 8 to 9"),
        ({"one_of": (1, 2, 4)}, "n: got 7; needed 1, 2 or 4"),
        ({"multiple_of": 8}, "n: got 7; needed a multiple of 8"),
        ({"power_of_two": True}, "n: got 7; needed a power of two (nearest: 4)"),
        ({"at_least": 8, "needed": "rows"}, "n: got 7; needed rows"),
    ],
)
def test_limits_of_an_integer(limits, says):
    with pytest.raises(ValueError) as caught:
        arguments.integer("n", 7, **limits)
    assert str(caught.value) == says


def test_a_message_is_short_whatever_the_value_is():
    for value in (
        HUGE,
        "x" * 10_000,
        list(range(1000)),
        np.zeros((99, 99)),
        [[["x" * 99] * 8] * 8],
        b"\n" * 999,
        object(),
    ):
        said = arguments.shown(value)
        assert len(said) <= 80 and "\n" not in said


def test_renamed_and_broadcast():
    with pytest.raises(ValueError, match=r"^base: got -16; needed 0 or more$"), arguments.renamed(addresses="base"):
        raise ValueError("addresses: got -16; needed 0 or more")
    with pytest.raises(KeyError), arguments.renamed(addresses="base"):
        raise KeyError("addresses: got")
    with pytest.raises(ValueError, match=r"a, b: got shapes \(2,\), \(3,\); needed shapes that broadcast together"):
        arguments.broadcast(a=np.zeros(2), b=np.zeros(3))
    assert [x.shape for x in arguments.broadcast(a=np.zeros((2, 1)), b=1)] == [(2, 1), (2, 1)]
