// The pipeline of a main loop: a row a stage, one for the tensor cores, time to the right.

import { GROUPS } from "./draw-tile.js";
import { idle, schedule } from "./pipeline.js";
import { plural, svg } from "./svg.js";

const [LEFT, TOP, ROW] = [104, 24, 26]; // pixels

const MOST = { stages: 16, tiles: 48, load: 32, mma: 32 };

/** Draws the pipeline of a state; returns what it shows, in words. */
export function showPipeline(state, picture) {
  const within = ([key, top]) => Math.min(Math.max(1, Math.floor(state[key]) || 1), top);
  const [stages, tiles, load, mma] = Object.entries(MOST).map(within);
  const steps = schedule(stages, tiles, load, mma);
  const waits = idle(steps, mma);
  drawTimeline(picture, steps, stages);
  return `After the first k-tile the tensor cores wait ${waits.idle} of ${plural(waits.all, "unit")}. ` +
    `${plural(Math.ceil(load / mma) + 1, "stage")} would hide every load.`;
}

function drawTimeline(picture, steps, stages) {
  const end = steps.at(-1).mathEnd;
  const unit = Math.max(16, Math.min(30, 760 / end));
  const below = TOP + stages * ROW + 8;
  const parts = [];
  for (let row = 0; row <= stages; row++) {
    const y = row < stages ? TOP + row * ROW : below;
    parts.push(svg("rect", { x: LEFT, y: y + 1, width: end * unit, height: ROW - 2, class: "empty" }));
    parts.push(svg("text", { x: LEFT - 8, y: y + 17, class: "end" }, row < stages ? `stage ${row}` : "tensor cores"));
  }
  const box = (from, to, y, fill, said) => {
    const width = (to - from) * unit;
    parts.push(svg("rect", { x: LEFT + from * unit + 0.5, y: y + 1, width: width - 1, height: ROW - 2, fill }));
    parts.push(svg("text", { x: LEFT + from * unit + width / 2, y: y + 17, class: "on" }, said));
  };
  for (const step of steps) {
    const y = TOP + step.stage * ROW;
    const room = (step.loadEnd - step.loadStart) * unit > 60;
    box(step.loadStart, step.loadEnd, y, GROUPS[0], room ? `load ${step.tile}` : step.tile);
    box(step.mathStart, step.mathEnd, y, GROUPS[1], step.tile);
    box(step.mathStart, step.mathEnd, below, GROUPS[1], step.tile);
  }
  parts.push(svg("text", { x: LEFT, y: 14, class: "soft" }, "blue: a load in flight; orange: the MMA reads the stage"));
  const [width, height] = [LEFT + end * unit + 8, below + ROW + 6];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  picture.setAttribute("aria-label", `${steps.length} k-tiles through ${stages} stages, ${end} units of time`);
  picture.replaceChildren(...parts);
}
