// What the views of a run share: its address, filters, numbers in words, pictures with their maps.

import { api, el, fill, percent, settled, token } from "./common.js";
import { drawMap, drawPicture, loadImage } from "./maps.js";
import { button, choice } from "./parts.js";

// -- the address of every view

/** Every name in the address, with what is meant where it is missing. */
const BLANK = Object.freeze({
  view: "table", // table, scatter, cell, picture
  part: "0", // model and data set
  sort: "", // a column of the table
  way: "", // ascending or descending
  method: "", metric: "", // a cell
  order: "worst", // or best
  page: "0",
  predicted: "", true: "", low: "", high: "", correct: "", name: "", // which pictures
  picture: "",
  of: "methods", // what the points of a scatter are: methods or pictures
  x: "", xm: "", y: "", ym: "", // methods and metrics of its axes
  opacity: "",
});

const VIEWS = ["table", "scatter", "cell", "picture"];
const FILTERS = ["predicted", "true", "low", "high", "correct", "name"];

/** Read a state from the parameters of an address; what is not known is left out. */
export function readRun(parameters) {
  const values = parameters instanceof URLSearchParams ? Object.fromEntries(parameters) : { ...parameters };
  const state = { ...BLANK };
  for (const name of Object.keys(BLANK)) if (typeof values[name] === "string") state[name] = values[name];
  if (!VIEWS.includes(state.view)) state.view = "table";
  if (!/^\d{1,6}$/.test(state.part)) state.part = "0";
  if (!/^\d{1,6}$/.test(state.page)) state.page = "0";
  if (state.order !== "best") state.order = "worst";
  if (state.of !== "pictures") state.of = "methods";
  if (!["", "yes", "no"].includes(state.correct)) state.correct = "";
  for (const name of ["predicted", "true"]) if (!/^\d{0,9}$/.test(state[name])) state[name] = "";
  const share = (text) => Number(text) >= 0 && Number(text) <= 1;
  for (const name of ["low", "high", "opacity"]) if (!share(state[name])) state[name] = "";
  return state;
}

/** The address of a state, without what is meant anyway. */
export function runAddress(id, state) {
  const pairs = Object.entries(BLANK)
    .filter(([name, blank]) => state[name] !== undefined && String(state[name]) !== blank)
    .map(([name]) => `${name}=${encodeURIComponent(state[name])}`);
  return `#/run/${encodeURIComponent(id)}${pairs.length ? `?${pairs.join("&")}` : ""}`;
}

/** The state of another view, with what both have in common: the part, the cell, the filters. */
export function moved(state, changes) {
  return { ...state, ...changes };
}

/** What the server is told about which pictures are wanted. */
export function filtersOf(state) {
  return Object.fromEntries(FILTERS.filter((name) => state[name] !== "").map((name) => [name, state[name]]));
}

/** No filter at all. */
export const UNFILTERED = Object.freeze(Object.fromEntries(FILTERS.map((name) => [name, ""])));

/** The part of a run that a state shows; the first where there is no such part. */
export function partOf(table, state) {
  return table.parts[Number(state.part)] ?? table.parts[0];
}

/** The method and metric of a state, or the first of the part. */
export function cellOf(part, state) {
  const method = part.methods.find((item) => item.name === state.method) ?? part.methods[0];
  const metric = part.metrics.find((item) => item.name === state.metric) ?? part.metrics[0];
  return { method, metric };
}

// -- which pictures

const PATIENCE = 350; // milliseconds after the last letter
const RIGHT = [["", "right or wrong"], ["yes", "right"], ["no", "wrong"]];

/** A row of filters; `change` is told what is to change in the state. */
export function filterBar(part, state, change) {
  const set = (name, value) => change({ [name]: value, page: "0" });
  const some = Object.keys(filtersOf(state)).length > 0;
  const list = (words, name) => part.classes.some((item) => item[name])
    && chooser(words, classes(part, name), state[name], (value) => set(name, value), name);
  return el("div", { class: "filters", role: "search", "aria-label": "Which pictures" },
    list("said", "predicted"),
    list("is", "true"),
    el("div", { class: "choose" }, el("span", {}, "confidence, %"), el("span", { class: "fromto" },
      share(state, "low", "from", "0", set), "to", share(state, "high", "to", "100", set))),
    chooser("the model was", RIGHT, state.correct, (value) => set("correct", value), "correct"),
    el("label", { class: "choose" }, el("span", {}, "name"), sought(state, set)),
    some && all(change));
}

function all(change) {
  const properties = { class: "quiet", dataset: { key: "all" } };
  return button("all pictures", () => change({ ...UNFILTERED, page: "0" }), properties);
}

/** The classes that are there, each with the number of its pictures. */
function classes(part, name) {
  const there = part.classes.filter((item) => item[name]);
  return [["", "any class"], ...there.map((item) => [String(item.index), `${item.label} (${item[name]})`])];
}

/** A probability in percent. */
function share(state, name, words, usual, set) {
  const later = settled((value) => set(name, value), PATIENCE);
  const input = el("input", {
    type: "number", min: 0, max: 100, step: 1, inputmode: "numeric", placeholder: usual, dataset: { key: name },
    value: state[name] === "" ? "" : String(Math.round(Number(state[name]) * 100)),
    "aria-label": `confidence ${words} percent`,
    oninput: () => input.validity.valid && later(input.value === "" ? "" : String(Number(input.value) / 100)),
  });
  return input;
}

function sought(state, set) {
  const later = settled((value) => set("name", value), PATIENCE);
  const oninput = () => later(input.value);
  const input = el("input", { type: "search", value: state.name, maxlength: 200, dataset: { key: "name" }, oninput });
  return input;
}

// -- small parts

/** A number with a true minus and so many decimals, or a dash. */
export function digits(value, count) {
  return value === null || value === undefined
    ? "–"
    : (Number(value.toFixed(count)) + 0).toFixed(count).replace("-", "−");
}

/** An arrow for the way that is better. */
export function arrow(metric) {
  return metric.higher_is_better ? "↑" : "↓";
}

/** A name that may be broken where its parts end. */
export function breakable(name) {
  return name.split(/(?<=[_(,/])/).flatMap((item, place) => (place ? [el("wbr", {}), item] : [item]));
}

/** Ask for something of a run. Lists become repeated names. */
export function ask(id, path, query, signal) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const item of [value].flat()) parameters.append(name, item);
  return api(`/api/runs/${encodeURIComponent(id)}${path}?${parameters}`, { signal });
}

/** Where a picture of a run is fetched from. */
export function runPicture(id, part, picture) {
  const parameters = new URLSearchParams({ part: part.part, picture, ...(token ? { token } : {}) });
  return `/api/runs/${encodeURIComponent(id)}/picture?${parameters}`;
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
  const prediction = image.predicted ? image.predicted.label : "";
  const sure = image.confidence === null ? "" : percent(image.confidence);
  const right = image.correct === false ? `wrong${image.true ? `: ${image.true.label}` : ""}` : "";
  return [[prediction, sure].filter(Boolean).join(" "), right].filter(Boolean).join(" · ");
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
    options.map(([item, words]) => el("option", { value: item }, words)),
  );
  select.value = value;
  return el("label", { class: "choose" }, el("span", {}, name), select);
}

/** A few choices of which one holds. `options`: `[value, words]`. */
export function segments(name, options, value, onchoose) {
  const { node, update } = choice(name, options, onchoose);
  for (const item of node.children) item.dataset.key = `${name} ${item.dataset.value}`;
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
  return part.metrics.map((item) => [item.name, `${arrow(item)} ${item.name}`]);
}

export function methodOptions(part) {
  return part.methods.map((item) => [item.name, item.title]);
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
  ].find((item) => item.dataset.key === key)?.focus({ preventScroll: true });
}
