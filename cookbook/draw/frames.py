"""Pictures that move: frames shown one after another by a style sheet, with no script."""

from __future__ import annotations

from collections.abc import Sequence

from cookbook.arguments import checked
from cookbook.draw import svg

__all__ = ["animate", "build_up"]


@checked
def animate(frames: Sequence[str], seconds: float = 1.0, still: int = -1) -> list[str]:
    """SVG elements that show each of `frames` for `seconds`, over and over; the pointer on the picture stops it.

    A reader who asked for reduced motion sees frame `still` and nothing moves; so does one whose viewer drops style
    sheets, for the other frames are hidden by an attribute that only the animation overrides.

    Args:
        frames: SVG elements as text, at least one.
        seconds: how long each is shown; at least 0.4, for three flashes a second are harmful to some (WCAG 2.3.1).
        still: the index of the frame that says most on its own; negative counts from the end.
    """
    count = _checked(frames, seconds)
    if not -count <= still < count:
        raise ValueError(f"still: got {still}; needed {-count} <= still < {count}")
    name = f"ckf-{count}-{svg.num(1000 * seconds)}"  # the same name means the same rules, wherever on the page
    parts = [f"<style>{_rules(name, count, count * seconds)}</style>"]
    for number, frame in enumerate(frames):
        hidden = "" if number == still % count else ' opacity="0"'
        delay = f"animation-delay:{svg.num((number - count) * seconds)}s"
        parts.append(f'<g class="{name}" data-frame="{number}"{hidden} style="{delay}">{frame}</g>')
    return parts


@checked
def build_up(frames: Sequence[str], seconds: float = 1.0) -> list[str]:
    """As `animate`, in step with it, but what a frame shows stays until all begin again: draw only what is new.

    With reduced motion, or with no style sheet, everything is there from the start.
    """
    count = _checked(frames, seconds)
    name = f"ckb-{count}-{svg.num(1000 * seconds)}"
    rules, parts = [], []
    for number, frame in enumerate(frames):
        start = f"0%{{opacity:0}}{svg.num(100 * number / count)}%{{opacity:1}}" if number else "0%{opacity:1}"
        rules.append(f"@keyframes {name}-{number}{{{start}100%{{opacity:1}}}}")
        style = f"animation-name:{name}-{number}"
        parts.append(f'<g class="{name}" data-from="{number}" style="{style}">{frame}</g>')
    run = f".{name}{{animation:{svg.num(count * seconds)}s step-end infinite}}.ckd:hover .{name}{{{_PAUSED}}}"
    return [f"<style>{''.join(rules)}{run}{_still(name)}</style>", *parts]


_PAUSED = "animation-play-state:paused"


def _checked(frames: Sequence[str], seconds: float) -> int:
    if len(frames) < 1:
        raise ValueError("frames: got none; needed at least one")
    if not 0.4 <= seconds <= 10:
        raise ValueError(f"seconds: got {seconds}; needed 0.4 to 10")
    return len(frames)


def _still(name: str) -> str:
    return f"@media (prefers-reduced-motion:reduce){{.{name}{{animation:none!important}}}}"


def _rules(name: str, count: int, cycle: float) -> str:
    """Each frame is seen during the first 1/count of the cycle; its delay says when its cycle begins."""
    seen = f"@keyframes {name}{{0%{{opacity:1}}{svg.num(100 / count)}%{{opacity:0}}100%{{opacity:0}}}}"
    run = f".{name}{{animation:{name} {svg.num(cycle)}s step-end infinite}}" if count > 1 else ""
    return f"{seen}{run}.ckd:hover .{name}{{{_PAUSED}}}{_still(name)}"
