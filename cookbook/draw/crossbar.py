"""The switch between the lanes of a warp and the banks: which crosspoints an access closes, and in which wavefront."""

from __future__ import annotations

from collections.abc import Sequence

from cookbook.arguments import checked, integer
from cookbook.draw import frames, svg

__all__ = ["crossbar", "wavefronts"]

_LEFT, _TOP = 112.0, 78.0


@checked
def wavefronts(words: Sequence[int], banks: int) -> list[int]:
    """The wavefront in which each lane is served, from 0: a bank gives one word in each, to every lane that wants it.

    Args:
        words: the word address that each lane asks for; word w lies in bank w mod `banks`.
        banks: how many banks there are.

    >>> wavefronts([0, 8, 3, 0], banks=8)  # words 0 and 8 share bank 0; two lanes want word 0
    [0, 1, 0, 0]
    """
    integer("banks", banks, at_least=1, at_most=1 << 20)
    for word in words:
        integer("words", word, at_least=0)
    queues: dict[int, list[int]] = {}
    served = []
    for word in words:
        queue = queues.setdefault(word % banks, [])
        if word not in queue:
            queue.append(word)
        served.append(queue.index(word))
    return served


def _check(words: Sequence[int], banks: int) -> list[int]:
    words = [int(word) for word in words]
    if not 1 <= len(words) <= 32:
        raise ValueError(f"words: got {len(words)} lanes; needed 1 to 32")
    if not 1 <= banks <= 32:
        raise ValueError(f"banks: got {banks}; needed 1 to 32")
    if min(words) < 0:
        raise ValueError(f"words: got {min(words)}; needed word addresses >= 0")
    return words


def _wires(words: list[int], banks: int, step: float) -> list[str]:
    """Every wire and every crosspoint, none closed yet."""
    right, bottom = _LEFT + banks * step, _TOP + len(words) * step
    parts = [svg.text(_LEFT - 10, _TOP - 12, "lane: word", 10, "soft", "end")]
    for lane, word in enumerate(words):
        y = _TOP + (lane + 0.5) * step
        parts.append(svg.line(_LEFT, y, right, y))
        parts.append(svg.text(_LEFT - 10, y, f"{lane}: {word}", min(11, step * 0.75), "ink", "end"))
    for bank in range(banks):
        x = _LEFT + (bank + 0.5) * step
        parts.append(svg.line(x, _TOP, x, bottom + 6))
        fill = svg.GROUPS[bank * 8 // banks % 8]
        parts.append(svg.cell(x - step / 2, bottom + 6, step, 22, bank, fill, size=min(11, step * 0.62), column=bank))
        for lane in range(len(words)):
            parts.append(svg.rect(x - 2, _TOP + (lane + 0.5) * step - 2, 4, 4, "soft", crosspoint=f"{lane},{bank}"))
    parts.append(svg.text(_LEFT - 10, bottom + 17, "bank", 10, "soft", "end"))
    return parts


def _closed(words: list[int], served: list[int], banks: int, step: float, only: int | None) -> list[str]:
    """The way of each lane's word, its crosspoint labelled with the wavefront; of wavefront `only`, or of all."""
    bottom = _TOP + len(words) * step + 6
    crowded = {word % banks for word, wavefront in zip(words, served, strict=True) if wavefront}
    parts = []
    for lane, (word, wavefront) in enumerate(zip(words, served, strict=True)):
        if only not in (None, wavefront):
            continue
        bank, size = word % banks, step * 0.8
        x, y = _LEFT + (bank + 0.5) * step, _TOP + (lane + 0.5) * step
        conflict = bank in crowded
        colour = svg.CONFLICT if conflict else "ink"
        parts += [svg.line(_LEFT, y, x, y, colour, 2), svg.line(x, y, x, bottom, colour, 2)]
        fill, ink = (svg.CONFLICT, svg.ON_CONFLICT) if conflict else (svg.GROUPS[bank * 8 // banks % 8], svg.ON_COLOUR)
        place = (x - size / 2, y - size / 2, size, size, wavefront + 1, fill, ink, size * 0.6)
        state = "conflict" if conflict else "free"
        parts.append(svg.cell(*place, lane=lane, bank=bank, wavefront=wavefront, state=state))
    return parts


@checked
def crossbar(words: Sequence[int], banks: int = 8, title: str | None = None, animated: bool = False) -> svg.Picture:
    """Lanes on the left, banks below, a crosspoint wherever two wires meet; the closed ones say in which wavefront.

    A wavefront closes at most one crosspoint a lane, and several above one bank if all of them want the same word.
    Above a bank that is asked for several words they are red.

    Args:
        words: the word address that each lane asks for, 1 to 32 lanes; word w lies in bank w mod `banks`.
        banks: 1 to 32.
        animated: one wavefront after another (see `cookbook.draw.frames.animate`) instead of all at once.
    """
    words = _check(words, banks)
    served, step = wavefronts(words, banks), 30.0 if max(len(words), banks) <= 16 else 20.0
    count = max(served) + 1
    bottom = _TOP + len(words) * step
    parts = _wires(words, banks, step)
    if animated:
        each = []
        for wavefront in range(count):
            lanes = [lane for lane, at in enumerate(served) if at == wavefront]
            said = f"wavefront {wavefront + 1} of {count}: " + _lanes(lanes)
            heading = svg.text(_LEFT, bottom + 42, said, 12, "ink", "start", bold=True)
            each.append("".join([*_closed(words, served, banks, step, wavefront), heading]))
        parts += frames.animate(each, still=0)
    else:
        parts += _closed(words, served, banks, step, None)
        parts.append(svg.text(_LEFT, bottom + 42, f"wavefronts: {count}", 12, "ink", "start", bold=True))
    size = f"{len(words)} lanes x {banks} banks: {len(words) * banks} crosspoints"
    title = title or f"{size}, {count} wavefront{'s' if count > 1 else ''}"
    width = max(_LEFT + banks * step + 24, _LEFT + 300)
    described = f"{size}; served in {count} wavefronts, by lane: {' '.join(str(at + 1) for at in served)}."
    notes = {42: "square: closed crosspoint, with its wavefront"}
    return svg.picture(width, bottom + 60, title, described, parts, notes)


def _lanes(lanes: list[int]) -> str:
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return "lanes " + ", ".join(map(str, lanes))
