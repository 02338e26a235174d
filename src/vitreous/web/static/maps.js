// Maps on photographs: the same scale, colours and opacity as the library's own pictures.

import { decode, number } from "./common.js";
import { bilinear, nearest, photograph } from "./resample.js";

export { decode };

const FLOOR = 0.4; // share of the opacity that a zero of an unsigned map still gets
const DIM = 0.65; // brightness of the grey photograph under that zero
const FADE = 0.35; // how far a signed map's neutral regions go towards grey
const CONSTANT = 0.2; // the share of the limit from which on a constant is large
const LOWEST = 5; // the percentile from which on maps on a large constant are shown
const MISSING = 128; // the grey of values that are not finite

/** How maps are drawn where nothing is said. `scale`: one for several maps; `side`: least pixels of the longer side. */
export const LOOK = Object.freeze(
  { opacity: 0.55, clip: 99, signed: null, positive: false, smooth: true, scale: null, side: 0 },
);

let colours = { signed: grey(), unsigned: grey() };

function grey() {
  return Array.from({ length: 256 }, (_, i) => [i, i, i]);
}

/** The colour tables of the library, as the server sends them: `{signed, unsigned}`, 256 x [r, g, b] each. */
export function setColours(tables) {
  colours = tables;
}

/** A gradient for legends, as a CSS value. */
export function gradient(signed) {
  const table = signed ? colours.signed : colours.unsigned;
  const stops = Array.from({ length: 17 }, (_, i) => `rgb(${table[Math.min(255, i * 16)].join(" ")})`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

function percentile(sorted, share) {
  const place = (share / 100) * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

/**
 * Which value gets which colour, for several maps together: the percentile `clip` of |value| has the strongest one.
 * Signed unless told otherwise where any value is below zero. `{limit, low, signed, percentile, floor}`.
 */
export function scaleOf(arrays, clip = 99, signed = null) {
  const values = arrays.flatMap((array) => Array.from(decode(array).data)).filter(Number.isFinite);
  const both = signed ?? values.some((value) => value < 0);
  const size = values.map(Math.abs).sort((a, b) => a - b);
  if (!size.length || size[size.length - 1] === 0) return { limit: 1, low: 0, signed: both, percentile: 0, floor: 0 };
  if (!both) {
    const sorted = [...values].sort((a, b) => a - b);
    const low = percentile(sorted, Math.min(LOWEST, clip));
    const high = percentile(sorted, clip);
    if (low < high && (low < 0 || low > CONSTANT * high)) return {
      limit: high,
      low,
      signed: false,
      percentile: clip,
      floor: LOWEST,
    };
  }
  const limit = percentile(size, clip);
  if (limit > 0) return { limit, low: 0, signed: both, percentile: clip, floor: 0 };
  return { limit: size[size.length - 1], low: 0, signed: both, percentile: 100, floor: 0 };
}

/** Value over limit, clipped: from -1 to 1 if signed, otherwise from 0 (at `low`) to 1. */
export function unit(value, scale) {
  if (!Number.isFinite(value)) return NaN;
  return Math.min(1, Math.max(scale.signed ? -1 : 0, (value - scale.low) / (scale.limit - scale.low)));
}

/** The scale in words. */
export function scaleWords(scale) {
  const from = scale.low !== 0 ? `shown from ${number(scale.low)}, ` : "";
  return `${from}strongest colour at ${scale.signed ? "±" : ""}${number(scale.limit)}`;
}

/** What is drawn of a map: its positive part, if that is asked for. */
export function shown(array, look) {
  const map = decode(array);
  return look.positive ? { shape: map.shape, data: map.data.map((value) => (value < 0 ? 0 : value)) } : map;
}

/** The scale on which a map is drawn under this look. */
export function scaleFor(array, look) {
  const how = { ...LOOK, ...look };
  return how.scale ?? scaleOf([shown(array, how)], how.clip, how.positive ? false : how.signed);
}

/** A canvas element's size in pixels: the picture's own, enlarged by whole steps until `side` is reached. */
function sized(image, side) {
  const height = image.naturalHeight || image.height;
  const width = image.naturalWidth || image.width;
  const factor = Math.max(1, Math.ceil(side / Math.max(height, width)));
  return { shape: [height, width], size: [height * factor, width * factor] };
}

const pictures = new WeakMap();

/** The pixels of a picture at some size, `[h, w, 3]`; remembered as long as the picture is. */
function pixels(image, { shape, size }) {
  const kept = pictures.get(image) ?? new Map();
  pictures.set(image, kept);
  const key = size.join("x");
  if (!kept.has(key)) {
    const [height, width] = shape;
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0, width, height);
    const { data } = context.getImageData(0, 0, width, height);
    kept.set(key, photograph(data.filter((_, i) => i % 4 !== 3), shape, size));
  }
  return kept.get(key);
}

function paint(canvas, [height, width], each) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  const made = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    each(made.data, i);
    made.data[4 * i + 3] = 255;
  }
  context.putImageData(made, 0, 0);
}

/**
 * Draw a map over the picture that it explains; returns the scale. `image`: a loaded picture; `array`: `{shape, data}`;
 * `look`: see `LOOK`. With u = value / limit, clipped, a signed map has the opacity `opacity (1 - (1 - |u|)^2)`, an
 * unsigned one `opacity (floor + (1 - floor) u)` over a photograph that turns dim and grey as u falls.
 */
export function drawMap(canvas, image, array, look = {}) {
  const how = { ...LOOK, ...look };
  const map = shown(array, how);
  const scale = scaleFor(array, how);
  const place = sized(image, how.side);
  const under = pixels(image, place);
  const values = (how.smooth ? bilinear : nearest)(map.data, map.shape, place.size);
  const table = scale.signed ? colours.signed : colours.unsigned;
  const faded = Math.min(1, 2 * how.opacity);
  paint(canvas, place.size, (made, i) => {
    const u = unit(values[i], scale);
    const known = !Number.isNaN(u);
    const [r, g, b] = known ? table[Math.round(scale.signed ? 128 + 127 * u : 255 * u)] : [MISSING, MISSING, MISSING];
    const red = under[3 * i], green = under[3 * i + 1], blue = under[3 * i + 2];
    const luma = 0.299 * red + 0.587 * green + 0.114 * blue;
    let strength = known ? Math.abs(u) : 1;
    let opacity, second;
    if (scale.signed) {
      strength = 1 - (1 - strength) ** 2;
      opacity = how.opacity * strength;
      const peak = Math.max(r, g, b, 1);
      const share = FADE + (1 - FADE) * strength;
      second = (own, colour) => ((1 - share) * own + share * luma) * (colour / peak);
    } else {
      opacity = how.opacity * (FLOOR + (1 - FLOOR) * strength);
      const share = strength;
      second = (own) => (1 - share) * DIM * luma + share * own;
    }
    made[4 * i] = (1 - opacity) * ((1 - faded) * red + faded * second(red, r)) + opacity * r;
    made[4 * i + 1] = (1 - opacity) * ((1 - faded) * green + faded * second(green, g)) + opacity * g;
    made[4 * i + 2] = (1 - opacity) * ((1 - faded) * blue + faded * second(blue, b)) + opacity * b;
  });
  return scale;
}

/**
 * Draw which class owns which patch: the photograph in grey, tinted by the class with the largest share, the more the
 * further it is ahead. `distribution`: `[K, h, w]`; `strength`: `[h, w]` or null; `tints`: K colours such as "#c2201f".
 */
export function drawOwners(canvas, image, distribution, strength, tints, side = 0) {
  const { shape, data } = decode(distribution);
  const [count, h, w] = shape;
  const place = sized(image, side);
  const under = pixels(image, place);
  const shares = Array.from(
    { length: count },
    (_, k) => bilinear(data.subarray(k * h * w, (k + 1) * h * w), [h, w], place.size),
  );
  const force = strength ? bilinear(decode(strength).data, [h, w], place.size) : null;
  const rgb = tints.map((tint) => [1, 3, 5].map((at) => parseInt(tint.slice(at, at + 2), 16)));
  paint(canvas, place.size, (made, i) => {
    let owner = 0;
    for (let k = 1; k < count; k++) if (shares[k][i] > shares[owner][i]) owner = k;
    const ahead = Math.min(1, Math.max(0, (shares[owner][i] - 1 / count) / (1 - 1 / count)));
    const opacity = 0.9 * (1 - (1 - ahead) ** 2) * (force ? Math.min(1, Math.max(0, force[i])) : 1);
    const luma = 0.8 * (0.299 * under[3 * i] + 0.587 * under[3 * i + 1] + 0.114 * under[3 * i + 2]);
    const peak = Math.max(...rgb[owner], 1);
    for (let c = 0; c < 3; c++) {
      const tinted = (luma * rgb[owner][c]) / peak;
      made[4 * i + c] = (1 - opacity) * luma + opacity * (0.45 * tinted + 0.55 * rgb[owner][c]);
    }
  });
}

/** Draw the picture alone, at the size that a map would have. */
export function drawPicture(canvas, image, side = 0) {
  const place = sized(image, side);
  const under = pixels(image, place);
  paint(canvas, place.size, (made, i) => {
    for (let c = 0; c < 3; c++) made[4 * i + c] = under[3 * i + c];
  });
}

const loaded = new Map();

/** A loaded picture by its address; the same one for the same address. */
export function loadImage(address) {
  if (!loaded.has(address)) {
    const image = new Image();
    image.src = address;
    const ready = image.decode().then(
      () => image,
      () => {
        loaded.delete(address);
        throw new Error("The picture could not be loaded.");
      },
    );
    loaded.set(address, ready);
    if (loaded.size > 64) loaded.delete(loaded.keys().next().value);
  }
  return loaded.get(address);
}
