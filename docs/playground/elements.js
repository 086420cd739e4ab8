// The playground's views inside the lessons: <swizzle-view>, <bank-view> and <barrier-timeline>. Attributes are fields of
// the playground's state, and give the numbers of the page; a reader changes them. What stands inside an element is for
// readers without this script.

import { laneAddresses } from "./access.js";
import { AT, layoutOf, pair, request } from "./asked.js";
import { service, wavefronts } from "./banks.js";
import { Crossbar } from "./draw-crossbar.js";
import { showPipeline } from "./draw-timeline.js";
import { TileView } from "./draw-tile.js";
import { byteAddresses, layoutText, tileOf } from "./layout.js";
import { DEFAULTS, toQuery } from "./state.js";
import { html, plural, svg } from "./svg.js";
import { Swizzle } from "./swizzle.js";

const HERE = new URL(".", import.meta.url);
const SWIZZLE = ["B", "M", "S"]; // fields of the form that are one of the state
const WORDS = {
  bits: "Bits of an element", rows: "Rows", columns: "Columns", padding: "Padding, elements", at: "First row,column",
  access: "Access", B: "B", M: "M", S: "S", stages: "Stages", tiles: "k-tiles", load: "Time of a load",
  mma: "Time of the MMA",
};
const TEXT = ["access", "at"];

/** A form over a state, and what follows from it. */
class View extends HTMLElement {
  connectedCallback() {
    if (this.state) return; // it was moved
    this.state = { ...DEFAULTS };
    for (const [key, value] of Object.entries(DEFAULTS)) {
      const given = this.getAttribute(key);
      if (given !== null) this.state[key] = typeof value === "number" ? Number(given) : given;
    }
    this.form = html("form", { class: "pg-row", autocomplete: "off", "aria-label": this.constructor.label });
    this.form.append(...this.constructor.fields.map((name) => this.field(name)));
    this.said = html("p", { class: "pg-result", role: "status" });
    this.more = html("a", {}, "the playground");
    const box = html("div", { class: "pg pg-inline" }, this.form, this.said, ...this.parts(), html("p", { class: "pg-note" }, "More in ", this.more, "."));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.edited(event.target));
    this.replaceChildren(box);
    this.render();
  }

  field(name) {
    const value = SWIZZLE.includes(name) ? this.state.swizzle.split(",")[SWIZZLE.indexOf(name)] : this.state[name];
    const kind = TEXT.includes(name) ? { spellcheck: "false" } : { type: "number" };
    return html("label", {}, WORDS[name], " ", html("input", { name, value, ...kind }));
  }

  edited({ name, value }) {
    if (SWIZZLE.includes(name)) {
      const parts = this.state.swizzle.split(",");
      parts[SWIZZLE.indexOf(name)] = value || "0";
      this.state.swizzle = parts.join(",");
    } else {
      this.state[name] = TEXT.includes(name) ? value.trim() : Number(value);
    }
    this.render();
  }

  /** What makes no sense is said; the picture stays as it was. */
  render() {
    try {
      this.show();
      this.said.classList.remove("pg-error");
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.said.textContent = error.message;
      this.said.classList.add("pg-error");
    }
    this.more.href = new URL(toQuery({ ...this.state, recipe: "", operand: "" }, {}), HERE);
  }
}

class TileElement extends View {
  parts() {
    const canvas = html("canvas", { role: "img" });
    const label = "The tile; arrow keys move a cursor";
    const box = html("div", { class: "pg-scroll", tabindex: "0", role: "group", "aria-label": label });
    box.append(html("div", { class: "pg-space" }, canvas));
    const cell = html("p", { class: "pg-note", role: "status" }, "A colour is four banks.");
    this.tileView = new TileView(box, {
      said: (row, column, address) => {
        const bank = Math.floor(address / 4) % 32;
        cell.textContent = `Element (${row}, ${column}): byte ${address}, line ${Math.floor(address / 128)}, bank ${bank}.`;
      },
      chosen: () => {},
    });
    return [box, cell];
  }

  /** The tile and the addresses of its elements. */
  lie() {
    const tile = tileOf(layoutOf(this.state), this.state.bits);
    const swizzle = new Swizzle(...this.state.swizzle.split(",").map(Number));
    if (!swizzle.inElements(tile.elementBits)) {
      throw new RangeError(`M: got ${swizzle}; needed ${Math.log2(tile.elementBits / 8)} at least, or elements are split`);
    }
    return { tile, swizzle, addresses: byteAddresses(tile, swizzle) };
  }
}

/** A tile of shared memory under a swizzle: as a matrix, or (view="memory") by lines of 128 bytes. */
class SwizzleView extends TileElement {
  static fields = ["bits", "rows", "columns", ...SWIZZLE];
  static label = "Tile and swizzle";

  show() {
    const { tile, swizzle, addresses } = this.lie();
    this.tileView.update({ tile, addresses, view: this.state.view, width: 16, lanes: [] });
    this.addresses = addresses;
    const drawn = this.state.view === "memory" ? ", drawn by lines of 128 bytes" : "";
    this.said.textContent = `${swizzle.both(tile.elementBits)}. Tile: ${layoutText(tile.layout)}, ${tile.bytes} bytes${drawn}.`;
  }
}

/** One access of a warp to a tile: its wavefronts, and lane by lane which bank serves it. */
class BankView extends TileElement {
  static fields = ["bits", "rows", "columns", "padding", ...SWIZZLE, "access", "at"];
  static label = "Tile, swizzle and access";

  parts() {
    const step = (name, text, label) => html("button", { type: "button", "data-step": name, ...(label ? { "aria-label": label } : {}) }, text);
    const slider = html("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Step" });
    const bar = html("div", { class: "pg-row", role: "group", "aria-label": "Steps" }, step("first", "|◀", "First step"),
      step("back", "◀", "Step back"), step("play", "Play"), step("on", "▶", "Step on"), html("label", { class: "pg-slide" }, slider));
    const picture = html("div", { class: "pg-scroll", tabindex: "0", role: "region", "aria-label": "Lanes and banks" }, svg("svg", { role: "img" }));
    const steps = html("details", {}, html("summary", {}, "Wavefront by wavefront"), bar, html("p", { class: "pg-said", role: "status" }), picture);
    const parts = super.parts();
    this.crossbar = new Crossbar(steps, (now) => this.model && this.drawn(now.phase));
    return [...parts, steps];
  }

  show() {
    const { tile, swizzle, addresses } = this.lie();
    const own = request(this.state.access, tile, pair(this.state.at, AT), "");
    const lanes = laneAddresses(own.places, own.width, tile, addresses);
    const counted = wavefronts(lanes, own.width, own.load);
    const steps = service(lanes, own.width, counted.phases);
    Object.assign(this, { counted, lanes, model: { tile, addresses, own, steps } });
    this.crossbar.update(counted, steps);
    const most = counted.exact ? counted.actual : `${counted.actual} to ${counted.atMost}`;
    const big = html("strong", { class: counted.excess ? "pg-bad" : "pg-good" }, `${most} ${counted.atMost === 1 ? "wavefront" : "wavefronts"}`);
    const rows = own.places.filter(Boolean).length;
    const reader = this.getAttribute("reader");
    const what = reader ? `${rows} rows of ${own.width} bytes, which ${reader} reads (counted as ${own.text})` : own.text;
    const lost = counted.excess ? `, where ${counted.ideal} would do: ${plural(counted.excess, "wavefront")} lost to bank conflicts.` : ": no bank conflict.";
    this.said.replaceChildren(big, ` for ${what}${lost} ${swizzle.bits ? swizzle.both(tile.elementBits) : "No swizzle"}.`);
  }

  drawn(phase) {
    const { tile, addresses, own, steps } = this.model;
    const lanes = steps.map((step) => {
      const [row, column] = own.places[step.lane];
      return { ...step, row, column, width: own.width, now: step.phase === phase };
    });
    this.tileView.update({ tile, addresses, view: this.state.view, width: own.width, lanes });
  }
}

/** When the loads of k-tiles fill the stages, and when the MMA reads them. */
class BarrierTimeline extends View {
  static fields = ["stages", "tiles", "load", "mma"];
  static label = "Pipeline";

  parts() {
    this.picture = svg("svg", { role: "img" });
    const rule = "A load starts when its stage is empty, the MMA when the stage is full: on Hopper two barriers of the stage say so. " +
      "Times are in units of your choice, not measured.";
    const box = html("div", { class: "pg-scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, this.picture);
    return [box, html("p", { class: "pg-note" }, rule)];
  }

  show() {
    this.said.textContent = showPipeline(this.state, this.picture);
  }
}

document.head.append(html("link", { rel: "stylesheet", href: new URL("playground.css", HERE) }));
customElements.define("swizzle-view", SwizzleView);
customElements.define("bank-view", BankView);
customElements.define("barrier-timeline", BarrierTimeline);
