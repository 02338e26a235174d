// Enlarging and shrinking as the library does it: triangles for maps, Lanczos for photographs.

const TRIANGLE = { support: 1, at: (x) => Math.max(0, 1 - Math.abs(x)) };
const LANCZOS = { support: 3, at: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0) };

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** Which cells an output reads and how much of each: half-pixel centres, clamped edges, averaging where it shrinks. */
function taps(filter, from, to) {
  const step = from / to;
  const wide = Math.max(1, step);
  const reach = filter.support * wide;
  return Array.from({ length: to }, (_, place) => {
    const centre = (place + 0.5) * step;
    const first = Math.max(0, Math.floor(centre - reach + 0.5));
    const last = Math.min(from, Math.floor(centre + reach + 0.5));
    const weights = Float64Array.from({ length: last - first }, (_, i) => filter.at((first + i - centre + 0.5) / wide));
    const total = weights.reduce((sum, each) => sum + each, 0);
    return { first, weights: weights.map((each) => each / total) };
  });
}

/** `values` of `height` x `width` cells with some channels each, on `tall` x `broad` cells. */
function separable(filter, values, [height, width], [tall, broad], channels, keep) {
  const across = taps(filter, width, broad);
  const down = taps(filter, height, tall);
  const between = new Float32Array(height * broad * channels);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < broad; x++) {
      const { first, weights } = across[x];
      for (let c = 0; c < channels; c++) {
        let sum = 0;
        for (let i = 0; i < weights.length; i++) sum += weights[i] * values[(y * width + first + i) * channels + c];
        between[(y * broad + x) * channels + c] = keep(sum);
      }
    }
  const row = broad * channels;
  const made = new Float32Array(tall * row);
  for (let y = 0; y < tall; y++) {
    const { first, weights } = down[y];
    for (let x = 0; x < row; x++) {
      let sum = 0;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * between[(first + i) * row + x];
      made[y * row + x] = keep(sum);
    }
  }
  return made;
}

const same = (value) => value;
const byte = (value) => Math.min(255, Math.max(0, Math.round(value)));

/** A photograph, `[h, w, 3]` bytes, on another size. */
export function photograph(pixels, shape, size) {
  return shape[0] === size[0] && shape[1] === size[1] ? pixels : separable(LANCZOS, pixels, shape, size, 3, byte);
}

/** A map on another size, raw values kept; a cell that is not finite stays so and leaves its neighbours alone. */
export function bilinear(values, shape, size) {
  if (values.every(Number.isFinite)) return separable(TRIANGLE, values, shape, size, 1, same);
  const known = values.map((value) => (Number.isFinite(value) ? 1 : 0));
  const total = separable(TRIANGLE, values.map((value, i) => (known[i] ? value : 0)), shape, size, 1, same);
  const weight = separable(TRIANGLE, known, shape, size, 1, same);
  const visible = nearest(known, shape, size);
  return total.map((value, i) => (visible[i] && weight[i] > 0 ? value / weight[i] : NaN));
}

/** The cell under each pixel's centre. */
export function nearest(values, [height, width], [tall, broad]) {
  const made = new Float32Array(tall * broad);
  for (let y = 0; y < tall; y++) {
    const row = Math.min(height - 1, Math.floor(((y + 0.5) * height) / tall)) * width;
    for (let x = 0; x < broad; x++) made[y * broad + x] = values[row + Math.min(
      width - 1,
      Math.floor(((x + 0.5) * width) / broad),
    )];
  }
  return made;
}
