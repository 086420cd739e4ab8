// The switch between the lanes of a phase and the 32 banks, one served lane after another.

import { BANKS, WORD } from "./banks.js";
import { CONFLICT, GROUPS } from "./draw-tile.js";
import { svg } from "./svg.js";

const [LEFT, TOP, STEP, BANK] = [156, 30, 20, 24]; // pixels
const PACE = 650; // milliseconds a lane
const FLIGHT = 420; // of these in motion

export class Crossbar {
  /** root: the element with buttons, slider, status and svg; stepped: called with the step that is shown. */
  constructor(root, stepped) {
    this.root = root;
    this.picture = root.querySelector("svg");
    this.said = root.querySelector(".pg-said");
    this.slider = root.querySelector("input");
    this.play = root.querySelector("[data-step=play]");
    this.stepped = stepped;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    root.addEventListener("click", (event) => this.press(event.target.dataset.step));
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value), false));
  }

  /** counted: as `wavefronts` gives it; steps: as `service` gives them. */
  update(counted, steps) {
    this.stop();
    Object.assign(this, { counted, steps, phase: -1 });
    this.slider.max = Math.max(0, steps.length - 1);
    this.show(0, false);
  }

  press(what) {
    if (!what || !this.steps?.length) return;
    if (what === "play") return this.timer ? this.stop() : this.start();
    this.stop();
    const next = { first: 0, back: this.at - 1, on: this.at + 1 }[what];
    this.show(Math.min(Math.max(next, 0), this.steps.length - 1), what === "on");
  }

  start() {
    this.play.textContent = "Pause";
    this.said.setAttribute("aria-live", "off"); // not a word for each lane while it runs
    if (this.at === this.steps.length - 1) this.show(0, true);
    this.timer = setInterval(() => {
      if (this.at + 1 < this.steps.length) this.show(this.at + 1, true);
      else this.stop();
    }, PACE);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
    this.said.setAttribute("aria-live", "polite");
  }

  show(at, moving) {
    this.at = at;
    this.slider.value = at;
    const step = this.steps[at];
    if (!step) {
      this.picture.replaceChildren();
      this.said.textContent = "No lane is active.";
      return;
    }
    if (step.phase !== this.phase) this.drawPhase(step.phase);
    this.mark(step);
    this.said.textContent = this.sentence(step);
    this.slider.setAttribute("aria-valuetext", this.said.textContent);
    if (moving && !this.still.matches) this.fly(step);
    this.stepped(step);
  }

  sentence({ phase, wavefront, lane, address, width }) {
    const { phases } = this.counted;
    const bank = Math.floor(address / WORD) % BANKS;
    const banks = width > WORD ? `banks ${bank} to ${bank + width / WORD - 1}` : `bank ${bank}`;
    const of = `Phase ${phase + 1} of ${phases.length}, wavefront ${wavefront + 1} of ${phases[phase].wavefronts}`;
    return `${of}: lane ${lane}, byte ${address}, ${banks}.`;
  }

  drawPhase(index) {
    this.phase = index;
    const lanes = this.counted.phases[index].lanes;
    const height = TOP + lanes.length * STEP + 34;
    const width = LEFT + BANKS * BANK + 12;
    const bottom = TOP + lanes.length * STEP;
    const own = this.steps.filter((step) => step.phase === index);
    const parts = [svg("text", { x: LEFT - 8, y: 14, class: "soft end" }, "lane: byte, wavefront")];
    for (let bank = 0; bank < BANKS; bank++) {
      const x = LEFT + (bank + 0.5) * BANK;
      parts.push(svg("line", { x1: x, x2: x, y1: TOP, y2: bottom, class: "wire" }));
      parts.push(svg("rect", { x: x - BANK / 2 + 1, y: bottom, width: BANK - 2, height: 20, fill: GROUPS[bank >> 2] }));
      parts.push(svg("text", { x, y: bottom + 14, class: "bank" }, bank));
    }
    this.ways = new Map();
    lanes.forEach((lane, row) => {
      const y = TOP + (row + 0.5) * STEP;
      const step = own.find((each) => each.lane === lane);
      const said = step ? `${lane}: ${step.address}, ${step.wavefront + 1}` : `${lane}: –`;
      parts.push(svg("text", { x: LEFT - 8, y: y + 4, class: step?.wavefront ? "end late" : "end" }, said));
      parts.push(svg("line", { x1: LEFT, x2: width - 12, y1: y, y2: y, class: "wire" }));
      if (step) this.ways.set(lane, this.way(step, y, bottom));
    });
    for (const way of this.ways.values()) parts.push(way.group);
    this.dot = svg("circle", { r: 6, class: "dot", cx: -20, cy: -20 });
    this.picture.replaceChildren(...parts, this.dot);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    Object.assign(this.picture.style, { width: `${width}px`, height: `${height}px` });
    const { wavefronts } = this.counted.phases[index];
    this.picture.setAttribute("aria-label", `Phase ${index + 1}: ${own.length} lanes, 32 banks, ${wavefronts} wavefronts`);
  }

  /** The way of a lane's bytes: along its wire, down those of its banks. */
  way({ address, width, wavefront }, y, bottom) {
    const first = Math.floor(address / WORD) % BANKS;
    const group = svg("g", { class: wavefront ? "way late" : "way" });
    const xs = Array.from({ length: Math.max(1, width / WORD) }, (_, i) => LEFT + (first + i + 0.5) * BANK);
    group.append(svg("line", { x1: LEFT, x2: xs.at(-1), y1: y, y2: y }));
    for (const x of xs) {
      group.append(svg("line", { x1: x, x2: x, y1: y, y2: bottom }), svg("rect", { x: x - 4, y: y - 4, width: 8, height: 8 }));
    }
    return { group, x: xs[0], y, bottom };
  }

  /** Of the present wavefront, the lanes served so far; this one strongest. */
  mark(step) {
    const shown = new Map();
    for (const each of this.steps.slice(0, this.at + 1)) {
      if (each.phase === step.phase && each.wavefront === step.wavefront) shown.set(each.lane, each === step ? "now" : "done");
    }
    for (const [lane, { group }] of this.ways) group.dataset.state = shown.get(lane) ?? "";
    this.dot.setAttribute("cx", -20);
  }

  fly({ lane, wavefront }) {
    const { x, y, bottom } = this.ways.get(lane);
    const [across, down] = [x - LEFT, bottom - y];
    const began = performance.now();
    this.dot.style.fill = wavefront ? CONFLICT : "";
    const frame = (now) => {
      const gone = Math.min(1, (now - began) / FLIGHT) * (across + down);
      this.dot.setAttribute("cx", LEFT + Math.min(gone, across));
      this.dot.setAttribute("cy", y + Math.max(0, gone - across));
      if (gone < across + down && this.steps[this.at]?.lane === lane) requestAnimationFrame(frame);
      else this.dot.setAttribute("cx", -20);
    };
    requestAnimationFrame(frame);
  }
}
