// Small parts of the view of a run: numbers, links, pictures with maps.

import { api, el, fill, percent, token } from "./common.js";
import { drawMap, drawPicture, loadImage } from "./maps.js";
import { choice } from "./parts.js";

/** A number with a true minus and so many decimals, or a dash. */
export function digits(value, count) {
  return value === null || value === undefined
    ? "–"
    : (Number(value.toFixed(count)) + 0).toFixed(count).replace("-", "−");
}

/** An arrow for the way that is better. */
export function arrow(metric) {
  return metric.up ? "↑" : "↓";
}

/** A name that may be broken where its parts end. */
export function breakable(name) {
  return name.split(/(?<=[_(,/])/).flatMap((each, place) => (place ? [el("wbr", {}), each] : [each]));
}

/** Ask for something of a run. Lists become repeated names. */
export function ask(id, path, query, signal) {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const each of [value].flat()) told.append(name, each);
  return api(`/api/runs/${encodeURIComponent(id)}${path}?${told}`, { signal });
}

/** Where a picture of a run is fetched from. */
export function runPicture(id, part, picture) {
  const told = new URLSearchParams({ part: part.part, picture, ...(token ? { token } : {}) });
  return `/api/runs/${encodeURIComponent(id)}/picture?${told}`;
}

/** What stands in for a photograph that is not at hand. */
function blank() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [224, 224];
  const context = canvas.getContext("2d");
  context.fillStyle = "#c9ced8";
  context.fillRect(0, 0, 224, 224);
  return canvas;
}

let grey = null;
const waiting = new WeakMap();
const watcher = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    if (!isIntersecting) continue;
    watcher.unobserve(target);
    waiting.get(target)?.();
    waiting.delete(target);
  }
}, { rootMargin: "200px" });

/**
 * A picture of a run with a map over it, drawn when it comes into sight. `words` say what it shows. Without a map the
 * picture alone; without a picture the map alone. `draw(look)` draws it again.
 */
export function drawnPicture(id, part, picture, map, signed, words, look) {
  const canvas = el(
    "canvas",
    { class: "drawn", role: "img", "aria-label": words, width: 224, height: 224, dataset: { state: "waiting" } },
  );
  let now = look;
  let image = null;
  const draw = () => {
    if (image === null) return;
    if (map) drawMap(canvas, image, map, { ...now, signed, side: 224 });
    else drawPicture(canvas, image, 224);
    canvas.dataset.state = "drawn";
  };
  waiting.set(canvas, async () => {
    try {
      image = part.pictures ? await loadImage(runPicture(id, part, picture)) : (grey ??= blank());
    } catch {
      image = grey ??= blank();
      canvas.title = "The picture could not be had; this is the map alone.";
    }
    draw();
  });
  watcher.observe(canvas);
  return { canvas, draw: (other) => { now = other; draw(); } };
}

/** What a model said about a picture, and what it is where that is something else. */
export function saidAbout(image) {
  const said = image.predicted ? image.predicted.label : "";
  const sure = image.confidence === null ? "" : percent(image.confidence);
  const right = image.correct === false ? `wrong${image.true ? `: ${image.true.label}` : ""}` : "";
  return [[said, sure].filter(Boolean).join(" "), right].filter(Boolean).join(" · ");
}

/** A sentence that stands where there is nothing to show. */
export function nothing(words) {
  return el("p", { class: "note nothing" }, words);
}

/** A choice of one of several, with its name. `options`: `[value, words]`. */
export function chooser(name, options, value, onchange, key) {
  const select = el(
    "select",
    { onchange: () => onchange(select.value), dataset: { key } },
    options.map(([each, words]) => el("option", { value: each }, words)),
  );
  select.value = value;
  return el("label", { class: "choose" }, el("span", {}, name), select);
}

/** A few choices of which one holds. `options`: `[value, words]`. */
export function segments(name, options, value, onchoose) {
  const { node, update } = choice(name, options, onchoose);
  for (const each of node.children) each.dataset.key = `${name} ${each.dataset.value}`;
  update(value);
  return node;
}

/** A picture with a score and a name, and where it leads. */
export function shot(canvas, { href, key, score, name, small = null, amiss = false, on = false, spec = null }) {
  return el("figure", { class: on ? "shot on" : "shot" },
    el("a", { href, dataset: { key }, "aria-current": on ? "true" : null }, canvas,
      el("figcaption", {},
        el("b", { class: "number" }, score),
        el("span", { class: "named", title: spec }, breakable(name)),
        small && el("small", { class: amiss ? "amiss" : null }, small))));
}

/** Metrics and methods to choose from. */
export function metricOptions(part) {
  return part.metrics.map((each) => [each.name, `${arrow(each)} ${each.name}`]);
}

export function methodOptions(part) {
  return part.methods.map((each) => [each.name, each.title]);
}

/** Links of which one holds: `[words, address, whether it does]`. */
export function tabs(name, links) {
  return el("nav", { class: "ways", "aria-label": name }, links.map(([words, href, on]) =>
    el("a", { href, class: on ? "way on" : "way", "aria-current": on ? "page" : null }, words)));
}

/** Put something in place, and the focus back on what had it: elements are known by `data-key`. */
export function refill(node, ...children) {
  const active = document.activeElement;
  const key = node.contains(active) ? active.dataset?.key : null;
  fill(node, ...children);
  if (key) [
    ...node.querySelectorAll("[data-key]"),
  ].find((each) => each.dataset.key === key)?.focus({ preventScroll: true });
}
