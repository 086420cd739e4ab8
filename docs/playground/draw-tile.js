// The tile on a canvas, byte-true: where each element lies among the banks, and which of them the access touches.
// Only what can be seen is drawn: a tile has up to 65536 elements.

import { BANKS, WORD } from "./banks.js";

export const GROUPS = ["#8ecae6", "#ffb703", "#95d5b2", "#f4a3a3", "#cdb4db", "#dbe64c", "#c8ced6", "#d4a373"];
export const CONFLICT = "#d62839";
const ON_COLOUR = "#14171a";
const LINE = BANKS * WORD;
const [ROW, HEAD, LEFT, WORD_WIDTH] = [22, 24, 52, 26]; // pixels
const FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

/** The bytes that lie together along a row, everywhere in the tile: 16 at most. */
export function unitOf(tile, addresses) {
  const size = tile.elementBits / 8;
  for (let unit = 16; unit > size; unit /= 2) {
    const count = unit / size;
    if (tile.columns % count) continue;
    let whole = true;
    for (let i = 0; whole && i < addresses.length; i += count) {
      whole = addresses[i] % unit === 0;
      for (let j = 1; whole && j < count; j++) whole = addresses[i + j] === addresses[i] + j * size;
    }
    if (whole) return unit;
  }
  return size;
}

export class TileView {
  /** said: called with (row, column, address) of the cell under the cursor; chosen: with its (row, column) on Enter. */
  constructor(box, { said, chosen }) {
    this.box = box;
    this.space = box.firstElementChild;
    this.canvas = this.space.firstElementChild;
    this.said = said;
    this.cursor = null;
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.moveTo(null));
    box.addEventListener("keydown", (event) => this.key(event, chosen));
    new ResizeObserver(() => this.shown && this.draw()).observe(box);
  }

  /** model: {tile, addresses, view, width, lanes: [{lane, address, row, column, width, wavefront, now}]}. */
  update(model) {
    const { tile, addresses, view } = model;
    const unit = Math.min(unitOf(tile, addresses), Math.max(WORD, tile.elementBits / 8, model.width));
    const perByte = WORD_WIDTH / Math.min(WORD, unit);
    const size = tile.elementBits / 8;
    const last = Math.max(...addresses) + size;
    const memory = view === "memory";
    this.shown = { ...model, unit, perByte, size, memory };
    this.rows = memory ? Math.ceil(last / LINE) : tile.rows;
    this.bytes = memory ? LINE : tile.columns * size;
    this.byPlace = memory ? placesOf(tile, addresses, unit) : null;
    this.space.style.width = `${LEFT + this.bytes * perByte + 1}px`;
    this.space.style.height = `${HEAD + this.rows * ROW + 1}px`;
    const what = memory ? "memory, lines of 128 bytes" : `a matrix of ${tile.rows} rows and ${tile.columns} columns`;
    this.canvas.setAttribute("aria-label", `The tile as ${what}, coloured by bank; ${model.lanes.length} lanes marked`);
    this.cursor = null;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height, scrollLeft: left, scrollTop: top } = this.box;
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.textBaseline = "middle";
    this.window = { left, top, width, height };
    this.units(context);
    this.lanes(context);
    this.heads(context);
  }

  place(row, byte) {
    const { left, top } = this.window;
    return [LEFT + byte * this.shown.perByte - left, HEAD + row * ROW - top];
  }

  units(context) {
    const { unit, perByte, tile, addresses, size, memory } = this.shown;
    const { left, top, width, height } = this.window;
    const wide = unit * perByte;
    const rows = [Math.max(0, Math.floor(top / ROW)), Math.min(this.rows, Math.ceil((top + height) / ROW))];
    const first = Math.max(0, Math.floor(left / wide));
    const columns = [first, Math.min(this.bytes / unit, Math.ceil((left + width) / wide))];
    context.textAlign = "center";
    context.font = `11px ${FONT}`;
    for (let row = rows[0]; row < rows[1]; row++) {
      for (let column = columns[0]; column < columns[1]; column++) {
        const element = memory ? this.byPlace.get(row * LINE + column * unit) : row * tile.columns + (column * unit) / size;
        if (element === undefined) continue;
        const [x, y] = this.place(row, column * unit);
        const bank = Math.floor(addresses[element] / WORD) % BANKS;
        context.fillStyle = GROUPS[bank >> 2];
        context.fillRect(x + 0.5, y + 0.5, wide - 1, ROW - 1);
        context.fillStyle = ON_COLOUR;
        const banks = unit > WORD ? `${bank}–${bank + unit / WORD - 1}` : bank;
        const at = `${Math.floor(element / tile.columns)},${element % tile.columns}`;
        context.fillText(memory && wide > 50 ? at : banks, x + wide / 2, y + ROW / 2 + 0.5, wide - 2);
      }
    }
  }

  lanes(context) {
    const { tile, size, perByte, memory, lanes, addresses } = this.shown;
    context.font = `600 11px ${FONT}`;
    context.lineWidth = 2;
    for (const { lane, row, column, width, wavefront, now } of lanes) {
      const address = addresses[row * tile.columns + column];
      const [x, y] = memory ? this.place(Math.floor(address / LINE), address % LINE) : this.place(row, column * size);
      const wide = width * perByte;
      if (now) {
        context.fillStyle = wavefront ? CONFLICT : ON_COLOUR;
        context.fillRect(x + 1, y + 1, wide - 2, ROW - 2);
        context.fillStyle = "#ffffff";
        context.fillText(wide > 50 ? `lane ${lane}` : lane, x + wide / 2, y + ROW / 2 + 0.5, wide - 2);
      }
      context.strokeStyle = ON_COLOUR;
      context.strokeRect(x + 2, y + 2, wide - 4, ROW - 4);
    }
    if (!this.cursor) return;
    const [x, y] = this.place(this.cursor.line, this.cursor.byte);
    context.strokeStyle = "#0057d9";
    context.lineWidth = 3;
    context.strokeRect(x + 1.5, y + 1.5, this.shown.unit * perByte - 3, ROW - 3);
  }

  heads(context) {
    const { unit, perByte, size, memory } = this.shown;
    const { left, top, width, height } = this.window;
    const style = getComputedStyle(this.box);
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, width, HEAD);
    context.fillRect(0, 0, LEFT, height);
    context.fillStyle = style.color;
    context.font = `11px ${FONT}`;
    context.textAlign = "right";
    for (let row = Math.floor(top / ROW); row < Math.min(this.rows, (top + height) / ROW); row++) {
      const y = HEAD + (row + 0.5) * ROW - top;
      if (y > HEAD + 4) context.fillText(memory ? row * LINE : row, LEFT - 6, y);
    }
    context.textAlign = "center";
    const step = memory ? Math.min(WORD, unit) : unit;
    for (let byte = Math.floor(left / perByte / step) * step; byte < this.bytes; byte += step) {
      const x = LEFT + (byte + step / 2) * perByte - left;
      if (x > width) break;
      if (x > LEFT + 8) context.fillText(memory ? Math.floor(byte / WORD) : byte / size, x, HEAD / 2);
    }
    context.textAlign = "left";
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, LEFT, HEAD);
    context.fillStyle = style.color;
    context.fillText(memory ? "bank" : "column", 2, HEAD / 2);
  }

  /** The cell that holds a place on the screen. */
  point(event) {
    if (!this.shown) return;
    const frame = this.box.getBoundingClientRect();
    const x = event.clientX - frame.left + this.box.scrollLeft - LEFT;
    const y = event.clientY - frame.top + this.box.scrollTop - HEAD;
    const { unit, perByte } = this.shown;
    const cell = { line: Math.floor(y / ROW), byte: Math.floor(x / (unit * perByte)) * unit };
    this.moveTo(x < 0 || y < 0 ? null : cell);
  }

  moveTo(cell) {
    if (!this.shown) return;
    const inside = cell && cell.line >= 0 && cell.line < this.rows && cell.byte >= 0 && cell.byte < this.bytes;
    if (!inside && cell) return;
    this.cursor = cell;
    this.draw();
    const element = cell && this.element(cell);
    if (element === null || element === undefined) return;
    const columns = this.shown.tile.columns;
    this.said(Math.floor(element / columns), element % columns, this.shown.addresses[element]);
  }

  element({ line, byte }) {
    const { memory, tile, size } = this.shown;
    return memory ? this.byPlace.get(line * LINE + byte) : line * tile.columns + byte / size;
  }

  key(event, chosen) {
    const { unit } = this.shown ?? {};
    const ways = { ArrowLeft: [0, -unit], ArrowRight: [0, unit], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!this.shown || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && this.cursor && this.element(this.cursor) !== undefined) {
      const element = this.element(this.cursor);
      const columns = this.shown.tile.columns;
      chosen(Math.floor(element / columns), element % columns);
    } else if (ways[event.key]) {
      event.preventDefault();
      const from = this.cursor ?? { line: 0, byte: 0 };
      const [down, along] = this.cursor ? ways[event.key] : [0, 0];
      this.moveTo({ line: from.line + down, byte: from.byte + along });
      this.keepInSight();
    }
  }

  keepInSight() {
    const { line, byte } = this.cursor;
    const { unit, perByte } = this.shown;
    const { box } = this;
    const [x, y] = [byte * perByte, line * ROW];
    box.scrollLeft = Math.min(x, Math.max(box.scrollLeft, x + unit * perByte + LEFT - box.clientWidth));
    box.scrollTop = Math.min(y, Math.max(box.scrollTop, y + ROW + HEAD - box.clientHeight));
  }
}

/** The element whose unit begins at each byte address. */
function placesOf(tile, addresses, unit) {
  const count = unit / (tile.elementBits / 8);
  const found = new Map();
  for (let i = 0; i < addresses.length; i += count) found.set(addresses[i], i);
  return found;
}
