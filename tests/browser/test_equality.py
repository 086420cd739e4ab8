"""The playground's modules, run in a real browser, give what the Python modules of the same names give."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from cookbook import atoms, banks
from cookbook.draw import timeline
from cookbook.draw.crossbar import wavefronts as served_in
from cookbook.layouts import Layout, SmemLayout
from cookbook.solve.design import kernel_code, solve
from cookbook.solve.instructions import NAMES, Instruction
from cookbook.solve.proofs import Unsolvable
from cookbook.swizzle import Swizzle

from .conftest import ROOT, served

CASES, REFUSED = 5_000, 500  # accesses that there are, and that there are not
PLAYGROUND = ROOT / "docs" / "playground"

# Of each case: the tile's addresses, the lanes' addresses, the wavefronts; or that there are none.
COMPUTED = """async (text) => {  // JSON both ways: the driver's own encoding of so many objects is slow
  const [layouts, accesses, banks, swizzles] = await Promise.all(
    ["layout", "access", "banks", "swizzle"].map((name) => import(`/${name}.js`)));
  const one = ({ layout, bits, swizzle, access, at, load, offsets, n }) => {
    const s = new swizzles.Swizzle(...swizzle);
    const images = offsets.map((each) => s.apply(each));
    const elements = s.inElements(bits)?.toString() ?? null;
    const found = { text: String(s), period: s.period, images, matrix: s.matrix(n), elements };
    const tile = layouts.tileOf(layouts.parseLayout(layout), bits);
    const bytes = layouts.byteAddresses(tile, s);
    found.tile = [tile.rows, tile.columns, tile.transposed];
    found.sum = bytes.reduce((sum, each, i) => (sum * 31 + each + i) % 1000003, 7);
    try {
      const parsed = accesses.parse(access);
      const most = accesses.lastStart(parsed, tile);
      if (at[0] > most[0] || at[1] > most[1]) throw new RangeError("start");
      const places = accesses.movedTo(accesses.lanePlaces(parsed, bits), at);
      const lanes = accesses.laneAddresses(places, parsed.width, tile, bytes);
      const counted = banks.wavefronts(lanes, parsed.width, load);
      const { actual, atMost, exact, ideal, excess } = counted;
      const steps = banks.service(lanes, parsed.width, counted.phases);
      const last = (i) => steps.filter((s) => s.phase === i).map((s) => s.wavefront + 1);
      const served = counted.phases.map((_, i) => Math.max(0, ...last(i)));
      const phases = counted.phases.map((p) => [p.wavefronts, p.perBank, p.atMost]);
      Object.assign(found, { lanes: [...lanes], width: parsed.width, actual, atMost, exact, ideal, excess, served,
        phases, starts: accesses.starts(parsed, tile) });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      found.error = error.message;
    }
    return found;
  };
  return JSON.stringify(JSON.parse(text).map(one));
}"""


@pytest.fixture(scope="module")
def modules(browser):
    """A page that can import the modules; no site is built for that."""
    with served(PLAYGROUND) as address:
        page = browser.new_page()
        page.goto(address + "index.md")
        yield page
        page.close()


def _swizzle(draw: random.Random) -> Swizzle:
    bits = draw.choice((0, 1, 2, 3, 3, 3, 4, 5))
    shift = draw.randint(bits, 8) * draw.choice((1, 1, 1, -1))
    return Swizzle(bits, draw.choice((0, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6)), shift)


def _layout(draw: random.Random, bits: int) -> Layout:
    kind = draw.choice(("row", "row", "padded", "column", "atom", "nested"))
    rows, columns = (draw.choice((8, 16, 32, 64, 128)) for _ in range(2))
    if kind == "atom" and bits <= 32:
        atom = atoms.atom(draw.choice(atoms.ATOMS[:8]), bits)
        (mn, k) = atom.layout.outer.shape
        return atoms.tile(atom, (mn * draw.choice((1, 2, 4)), k * draw.choice((1, 2)))).outer
    if kind == "padded":
        rows, columns = draw.randint(1, 70), draw.randint(1, 70)
        return Layout((rows, columns), (columns + draw.choice((1, 2, 4, 8, 16)), 1))
    if kind == "column":
        return Layout((rows, columns), (1, rows))
    if kind == "nested":
        return Layout(((8, rows // 8), (columns, 2)), ((columns, 8 * columns), (1, rows * columns)))
    return Layout((rows, columns), (columns, 1))


def _instruction(draw: random.Random, bits: int) -> Instruction:
    """Most of them such as fit a tile, some of any sides."""
    names = [
        name for name in NAMES if Instruction(name, 1, 1).width * 8 >= bits and (bits == 8 or "m16n16" not in name)
    ]
    name = draw.choice(NAMES if draw.random() < 0.1 else names)
    down = "matrix" not in name and draw.random() < 0.2
    steps = draw.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2)))
    if draw.random() < 0.15:
        return Instruction(name, draw.randint(1, 33), draw.randint(1, 64), *steps, down)
    asked = Instruction(name, 1, 1)
    vector = max(1, asked.width * 8 // bits)
    if asked.matrices:
        rows = draw.choice([r for r in (8, 16, 32) if asked.matrix_rows <= r <= asked.matrix_rows * asked.matrices])
        return Instruction(name, rows, vector * asked.matrix_rows * asked.matrices // rows, *steps)
    rows = draw.choice((1, 2, 4, 8, 16, 32))
    return Instruction(name, rows, vector * draw.randint(1, 32 // rows), *steps, down)


def _case(draw: random.Random) -> dict:
    bits = draw.choice((8, 16, 16, 32, 64))
    layout, swizzle, access = _layout(draw, bits), _swizzle(draw), _instruction(draw, bits)
    at = (draw.choice((0, 0, 0, 0, 1, 8)), draw.choice((0, 0, 0, 0, 8, 16)))
    if "matrix" not in access.name and access.width * 8 >= bits:
        at = (at[0], at[1] // access.vector(bits) * access.vector(bits))
    n = swizzle.bits + swizzle.base + abs(swizzle.shift) + draw.randint(0, 4)
    offsets = [draw.randrange(1 << 24) for _ in range(4)]
    return {"layout": layout, "bits": bits, "swizzle": swizzle, "access": access, "at": at, "n": n, "offsets": offsets}


def _sent(case: dict) -> dict:
    s = case["swizzle"]
    load = case["access"].name.startswith("ld") and not case["access"].matrices
    said = {"layout": str(case["layout"]), "swizzle": [s.bits, s.base, s.shift], "access": str(case["access"])}
    return {**case, **said, "load": load}


def _table(case: dict) -> tuple[np.ndarray, bool]:
    """Byte addresses with the contiguous mode along the columns, and whether that took a transposition."""
    plain = case["layout"].table()
    along, down = (plain[0, 1] if plain.shape[1] > 1 else 0), (plain[1, 0] if plain.shape[0] > 1 else 0)
    turned = bool(along != 1 and down == 1)
    table = SmemLayout(case["layout"], case["swizzle"], case["bits"]).byte_offsets()
    return np.ascontiguousarray(table.T if turned else table), turned


def _expected(case: dict) -> dict:
    s, bits, access = case["swizzle"], case["bits"], case["access"]
    table, turned = _table(case)
    total = 7
    for i, each in enumerate(table.reshape(-1).tolist()):
        total = (total * 31 + each + i) % 1000003
    try:
        elements = str(s.in_elements(bits))
    except ValueError:
        elements = None
    found = {
        "text": str(s), "period": s.period, "images": [s(each) for each in case["offsets"]],
        "matrix": s.matrix(case["n"]).tolist(), "elements": elements,
        "tile": [*table.shape, turned], "sum": total,
    }  # fmt: skip
    try:
        asked = access.access(table, bits, *case["at"])
    except ValueError:
        return found | {"error": True}
    counted = banks.wavefronts(asked.addresses, asked.width, load=_sent(case)["load"])
    names = {"actual": "actual", "atMost": "at_most", "exact": "exact", "ideal": "ideal", "excess": "excess"}
    return found | {
        "lanes": asked.addresses.tolist(), "width": asked.width,
        **{js: getattr(counted, py) for js, py in names.items()},
        "served": [phase.wavefronts for phase in counted.phases],
        "phases": [[p.wavefronts, list(p.per_bank), p.at_most] for p in counted.phases],
        "starts": list(map(list, access.starts(table.shape, bits))),
    }  # fmt: skip


def _cases(draw: random.Random) -> list[tuple[dict, dict]]:
    """Cases, and what Python makes of each."""
    found: dict[bool, list[tuple[dict, dict]]] = {False: [], True: []}
    while len(found[False]) < CASES:
        case = _case(draw)
        expected = _expected(case)
        found["error" in expected].append((case, expected))
    return found[False] + found[True][:REFUSED]


def test_tiles_accesses_and_swizzles_are_those_of_python(modules):
    cases = _cases(random.Random(2026))
    assert len(cases) == CASES + REFUSED
    found = json.loads(modules.evaluate(COMPUTED, json.dumps([_sent(case) for case, _ in cases], default=str)))
    wrong = []
    for (case, expected), got in zip(cases, found, strict=True):
        got = got | {"error": True} if "error" in got else got
        if got != expected:
            differs = sorted(key for key in got.keys() | expected.keys() if got.get(key) != expected.get(key))
            wrong.append((_sent(case), differs))
    assert wrong == []
    served = [expected for _, expected in cases[:CASES]]  # that the cases are of every sort
    assert sum(each["excess"] > 0 for each in served) > CASES // 5


def _lanes(draw: random.Random) -> tuple[list[int], int, bool]:
    """Addresses of 32 lanes that often share them, as broadcasts do; some lanes are inactive."""
    width, pitch = draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 1, 2, 8, 9))
    place = draw.choice((lambda t: t, lambda t: t >> 1, lambda t: t & 1 | t >> 2 << 1, lambda t: t >> 2))
    lanes = [place(lane) * pitch * width for lane in range(32)]
    if draw.random() < 0.4:
        lanes = [draw.randrange(64) * width for _ in range(32)]
    if draw.random() < 0.5:
        lanes = [-1 if draw.random() < 0.15 else each for each in lanes]
    return lanes, width, draw.random() < 0.7


def test_own_lanes_and_merged_phases_are_those_of_python(modules):
    draw = random.Random(5)
    asked = [_lanes(draw) for _ in range(2_000)]
    found = modules.evaluate(
        """async (asked) => {
          const { wavefronts } = await import("/banks.js");
          return asked.map(([lanes, width, load]) => {
            const { phases, actual, atMost, ideal } = wavefronts(Int32Array.from(lanes), width, load);
            return [actual, atMost, ideal, phases.map((p) => [p.wavefronts, p.perBank, p.atMost])];
          });
        }""",
        asked,
    )
    counted = [banks.wavefronts(np.array(lanes), width, load=load) for lanes, width, load in asked]
    phases = [[[p.wavefronts, list(p.per_bank), p.at_most] for p in one.phases] for one in counted]
    assert found == [[c.actual, c.at_most, c.ideal, p] for c, p in zip(counted, phases, strict=True)]
    assert any(not one.exact for one in counted)
    assert any(len(one.phases) < banks.PHASES[width] for one, (_, width, _) in zip(counted, asked, strict=True))


def test_the_order_of_served_lanes_is_that_of_the_pictures(modules):
    draw = random.Random(7)
    asked = [[draw.randrange(256) for _ in range(32)] for _ in range(200)]
    served = modules.evaluate(
        """async (asked) => {
          const { service, wavefronts } = await import("/banks.js");
          return asked.map((words) => {
            const addresses = Int32Array.from(words, (word) => 4 * word);
            const steps = service(addresses, 4, wavefronts(addresses, 4).phases);
            return words.map((_, lane) => steps.find((step) => step.lane === lane).wavefront);
          });
        }""",
        asked,
    )
    assert served == [served_in(words, 32) for words in asked]


def test_the_pipeline_is_that_of_python(modules):
    draw = random.Random(11)
    asked = [[draw.randint(1, 12), draw.randint(1, 40), draw.randint(1, 20), draw.randint(1, 9)] for _ in range(300)]
    found = modules.evaluate(
        """async (asked) => {
          const { schedule } = await import("/pipeline.js");
          return asked.map((each) => schedule(...each).map((s) =>
            [s.tile, s.stage, s.loadStart, s.loadEnd, s.mathStart, s.mathEnd]));
        }""",
        asked,
    )
    assert found == [[list(step) for step in timeline.schedule(*each)] for each in asked]


def _requests(draw: random.Random) -> tuple[tuple[int, int], int, list[str]]:
    bits = draw.choice((8, 16, 32))
    tile = draw.choice((16, 32, 64, 128)), draw.choice((32, 64, 128))
    accesses = []
    while len(accesses) < draw.randint(1, 3):
        access = _instruction(draw, bits)
        powers = all(side & (side - 1) == 0 for side in (access.rows, access.columns))
        if powers and (access.row_step, access.column_step, access.down) == (1, 1, False):
            try:
                access.check(tile, bits)
            except ValueError:
                continue
            accesses.append(str(access))
    return tile, bits, accesses


def test_a_swizzle_and_its_code_are_those_of_python(modules):
    """Python goes on to permuted layouts; the first, of the row-major layout, is what the playground looks for."""
    draw = random.Random(3)
    asked = [_requests(draw) for _ in range(150)]
    found = modules.evaluate(
        """async (asked) => {
          const [layouts, accesses, solving, cute] = await Promise.all(
            ["layout", "access", "solve", "cute"].map((name) => import(`/${name}.js`)));
          return asked.map(([[rows, columns], bits, texts]) => {
            const tile = layouts.tileOf(layouts.rowMajor(rows, columns), bits);
            const requests = texts.map((text) => {
              const access = accesses.parse(text);
              const [down, along] = accesses.starts(access, tile);
              const starts = down.flatMap((row) => along.map((column) => [row, column]));
              return { places: accesses.lanePlaces(access, bits), width: access.width, load: access.load, starts };
            });
            const { found, counting } = solving.find(tile, requests);
            const code = found ? cute.code(tile, found) : "";
            const said = found ? [code, cute.program(code, found, bits), found.both(bits)] : [];
            return [found && [found.bits, found.base, found.shift], counting, said];
          });
        }""",
        asked,
    )
    kinds = []
    for (tile, bits, accesses), (swizzle, counting, code) in zip(asked, found, strict=True):
        try:
            solution = solve(tile, bits, accesses)
        except Unsolvable as error:
            kinds.append(type(error.proof).__name__)
            assert swizzle is None, (tile, bits, accesses)
            assert (counting is not None) == (kinds[-1] == "CountingProof"), (tile, bits, accesses)
            continue
        kinds.append(solution.kind)
        if solution.kind != "plain":
            assert swizzle is None, (tile, bits, accesses)
            continue
        assert solution.swizzle is not None and swizzle is not None, (tile, bits, accesses)
        if solution.swizzle.bits:
            wanted = solution.swizzle.in_bytes(bits)
            said = [solution.cute_code(), kernel_code(solution.smem_layout), wanted.both(bits)]
            assert (swizzle, code) == ([wanted.bits, wanted.base, wanted.shift], said)
        else:
            assert swizzle[0] == 0
    assert {"plain", "CountingProof"} <= set(kinds)
