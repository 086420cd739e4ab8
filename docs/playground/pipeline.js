// The main loop's pipeline in chosen units of time, by the rules of cookbook.draw.timeline.schedule.

/**
 * When each k-tile is loaded and used: {tile, stage, loadStart, loadEnd, mathStart, mathEnd}.
 *
 * Tile i uses stage i mod `stages`. Its load starts when that stage is empty, one load a unit at most; the MMA on it
 * waits for its load and for the MMA before it.
 */
export function schedule(stages, tiles, loadTime, mathTime) {
  const steps = [];
  for (let tile = 0; tile < tiles; tile++) {
    const before = steps.at(-1);
    const empty = tile >= stages ? steps[tile - stages].mathEnd : 0;
    const loadStart = Math.max(empty, before ? before.loadStart + 1 : 0);
    const mathStart = Math.max(loadStart + loadTime, before ? before.mathEnd : 0);
    const ends = { loadEnd: loadStart + loadTime, mathEnd: mathStart + mathTime };
    steps.push({ tile, stage: tile % stages, loadStart, mathStart, ...ends });
  }
  return steps;
}

/** Units in which the tensor cores wait after the first tile, of all units from there. */
export function idle(steps, mathTime) {
  const all = steps.at(-1).mathEnd - steps[0].mathStart;
  return { idle: all - steps.length * mathTime, all };
}
