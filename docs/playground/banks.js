// How many wavefronts shared memory takes for one instruction of a warp: the rules of cookbook.banks.

export const BANKS = 32;
export const WORD = 4; // bytes
const LINE = BANKS * WORD;
const PHASES = { 1: 1, 2: 1, 4: 1, 8: 2, 16: 4 }; // by bytes a lane

/**
 * Counts for 32 byte addresses, -1 for an inactive lane; `width` bytes at each.
 *
 * load: whether it is an ld.shared: two phases whose lanes share addresses may then be one.
 *
 * Returns {phases, actual, atMost, exact, ideal, excess}; a phase is {lanes, wavefronts, perBank, atMost}.
 */
export function wavefronts(addresses, width, load = false) {
  const count = PHASES[width];
  const each = addresses.length / count;
  const lanes = Array.from(addresses, (_, lane) => lane);
  let phases = Array.from({ length: count }, (_, i) => phaseOf(addresses, width, lanes.slice(i * each, (i + 1) * each)));
  if (load && count > 1) phases = merged(addresses, width, phases);
  const sum = (name) => phases.reduce((total, phase) => total + phase[name], 0);
  const [actual, atMost] = [sum("wavefronts"), sum("atMost")];
  const ideal = phases.filter((phase) => phase.wavefronts > 0).length;
  return { phases, actual, atMost, exact: actual === atMost, ideal, excess: actual - ideal };
}

function phaseOf(addresses, width, lanes) {
  const words = new Set();
  for (const lane of lanes) {
    if (addresses[lane] < 0) continue;
    const first = Math.floor(addresses[lane] / WORD);
    for (let i = 0; i < Math.max(1, width / WORD); i++) words.add(first + i);
  }
  const perBank = new Array(BANKS).fill(0);
  for (const word of words) perBank[word % BANKS] += 1;
  const most = Math.max(...perBank);
  return { lanes, wavefronts: most, perBank, atMost: most };
}

/** The phases of a load, two that fit into one wavefront made one. */
function merged(addresses, width, phases) {
  const served = [];
  for (let i = 0; i < phases.length; i += 2) {
    const alone = phases.slice(i, i + 2);
    const lanes = [...alone[0].lanes, ...alone[1].lanes];
    const both = phaseOf(addresses, width, lanes);
    if (both.wavefronts !== 1 || !shared(addresses, lanes, false)) served.push(...alone);
    else if (shared(addresses, lanes, true)) served.push(both);
    else served.push({ ...both, atMost: alone[0].atMost + alone[1].atMost });
  }
  return served;
}

/** Whether lanes t and t^1, or t and t^2, have the same address throughout, or (not `everywhere`) one of them none. */
function shared(addresses, lanes, everywhere) {
  return [1, 2].some((distance) =>
    lanes.every((lane) => {
      const [own, other] = [addresses[lane], addresses[lane ^ distance]];
      return own === other || (!everywhere && (own < 0 || other < 0));
    }),
  );
}

/**
 * Lane by lane, in which wavefront of its phase each is served: the first address that asks for a bank comes first.
 *
 * Returns a list of {phase, wavefront, lane, address, width}, in the order in which they are served.
 */
export function service(addresses, width, phases) {
  const unit = Math.max(width, WORD); // aligned vectors use the same banks or none in common
  const steps = [];
  phases.forEach((phase, index) => {
    const queues = new Map();
    for (const lane of phase.lanes) {
      if (addresses[lane] < 0) continue;
      const asked = Math.floor(addresses[lane] / unit);
      const banks = asked % (LINE / unit);
      const queue = queues.get(banks) ?? [];
      queues.set(banks, queue);
      if (!queue.includes(asked)) queue.push(asked);
      steps.push({ phase: index, wavefront: queue.indexOf(asked), lane, address: addresses[lane], width });
    }
  });
  return steps.sort((a, b) => a.phase - b.phase || a.wavefront - b.wavefront || a.lane - b.lane);
}
