// Linear algebra over GF(2), the field in which addition is XOR. A vector is a non-negative integer below 2**31.

/** The dimension of the span of bit vectors. */
export function rank(vectors) {
  return reduced(vectors).length;
}

/** A basis of the span, highest bits all different and each in one basis vector alone; lowest vector first. */
export function echelon(vectors) {
  let basis = [];
  for (let vector of vectors) {
    for (const element of basis) vector = Math.min(vector, vector ^ element);
    if (!vector) continue;
    const top = 1 << (31 - Math.clz32(vector));
    basis = basis.map((element) => (element & top ? element ^ vector : element));
    basis.push(vector);
    basis.sort((a, b) => b - a);
  }
  return basis.reverse();
}

/** The first vectors that are independent of those before them: a basis made of what was given, in its order. */
export function independent(vectors) {
  const basis = [];
  return vectors.filter((vector) => {
    let rest = vector;
    for (const element of basis) rest = Math.min(rest, rest ^ element);
    if (rest) basis.push(rest);
    return rest > 0;
  });
}

/** All sums of the vectors: entry i is the XOR of the vectors at the bits of i. */
export function span(vectors) {
  let found = [0];
  for (const vector of vectors) found = [...found, ...found.map((sum) => sum ^ vector)];
  return found;
}

function reduced(vectors) {
  const basis = [];
  for (let vector of vectors) {
    for (const element of basis) vector = Math.min(vector, vector ^ element);
    if (vector) basis.push(vector);
  }
  return basis;
}
