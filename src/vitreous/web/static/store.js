// What is asked and what is known about it: one place that every part of the page reads.

import { readState, VIEWS, writeState } from "./address.js";
import { Answers } from "./answers.js";
import { api, decode, pictureAddress } from "./common.js";
import { loadImage, LOOK } from "./maps.js";
import { nearest } from "./resample.js";

const PAUSE = 250; // milliseconds between two addresses while a slider moves
const MANY = 12; // forwards and backwards from which on a question is asked by itself

/** Listeners of "change" redraw; those of "patch" hear which patch is pointed at. */
export class Store extends EventTarget {
  prediction = null;
  image = null;
  problem = null;
  patch = null; // [row, column] on the token grid
  #loaded = "";
  #stop = new AbortController();
  #labels = new Map();
  #methods = new Map();
  #prices = new Map();
  #writing = 0;
  #written = 0;

  constructor(start) {
    super();
    this.start = start;
    this.state = readState(new URLSearchParams());
    this.answers = new Answers(start.limits?.tasks ?? 8);
    this.answers.addEventListener("change", (event) => this.#learn(event.detail));
    this.#methods.set(start.models[0].name, start.methods);
  }

  // -- what is asked -----------------------------------------------------------------------------------

  /** Change what is asked; the address follows. `replace`: no new step for the back button, and not at every move. */
  set(changes, { replace = false } = {}) {
    this.state = { ...this.state, ...changes };
    clearTimeout(this.#writing);
    const wait = replace ? this.#written + PAUSE - performance.now() : 0;
    if (wait > 0) this.#writing = setTimeout(() => this.#write(true), wait);
    else this.#write(replace);
    this.#arrive();
  }

  #write(replace) {
    this.#written = performance.now();
    const hash = writeState(this.state);
    if (hash !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", hash);
  }

  /** Take the state from an address. */
  open(parameters) {
    clearTimeout(this.#writing);
    this.state = readState(parameters);
    this.#arrive();
  }

  /** What a picture is called: its file, or its scene. Names of files are known as long as the tab is open. */
  title(picture) {
    const scene = this.start.scenes.find((each) => each.picture === picture);
    return scene?.title ?? sessionStorage.getItem(`title ${picture}`) ?? picture;
  }

  /** A picture that was uploaded. */
  receive({ picture, name }) {
    sessionStorage.setItem(`title ${picture}`, name);
    this.show(picture);
  }

  /** Another picture: what was asked about the old one is dropped. */
  show(picture) {
    this.set({ picture, target: null, contrast: null, mask: null, compareClasses: null });
  }

  get model() {
    const { models } = this.start;
    return models.find((model) => model.name === this.state.model) ?? models[0];
  }

  /** A network without attention has no heads, and no stream of tokens that a map could begin with at each layer. */
  get views() {
    return this.model.attention === "none" ? VIEWS.filter((view) => view !== "layers" && view !== "heads") : VIEWS;
  }

  get view() {
    return this.views.includes(this.state.view) ? this.state.view : "why";
  }

  get methods() {
    return this.#methods.get(this.model.name) ?? [];
  }

  get predicted() {
    return this.prediction?.top[0] ?? null;
  }

  get target() {
    return this.state.target ?? this.predicted?.index ?? null;
  }

  get contrast() {
    return this.state.contrast === this.target ? null : this.state.contrast;
  }

  get efforts() {
    return this.start.efforts.map((effort) => effort.name);
  }

  /** The names on the tiles: steps of the ladder and specs. */
  get names() {
    if (this.state.methods) return [...new Set(this.state.methods)];
    const steps = this.efforts.flatMap((name) => [name, this.spec(name)]);
    return [this.efforts[0], ...this.model.default_methods.filter((name) => !steps.includes(name))];
  }

  get chosen() {
    return this.names.includes(this.state.chosen) ? this.state.chosen : (this.names[0] ?? this.efforts[0]);
  }

  get count() {
    return this.model.grid[0] * this.model.grid[1];
  }

  get k() {
    return Math.min(this.count, this.state.k ?? Math.max(1, Math.round(0.2 * this.count)));
  }

  get look() {
    const { opacity, clip, positive, patches } = this.state;
    return { ...LOOK, opacity, clip, positive, smooth: !patches };
  }

  /** The spec behind a name: a step of the ladder differs from model to model. */
  spec(name) {
    const effort = this.start.efforts.find((each) => each.name === name);
    if (!effort) return name;
    return typeof effort.spec === "string" ? effort.spec : effort.spec[this.model.name];
  }

  label(index) {
    return this.#labels.get(`${this.model.name} ${index}`) ?? `class ${index}`;
  }

  learnLabels(classes) {
    for (const { index, label } of classes) this.#labels.set(`${this.model.name} ${index}`, label);
  }

  probability(index) {
    return this.prediction?.top.find((each) => each.index === index)?.probability ?? null;
  }

  question(method, changes = {}) {
    const { target, contrast } = this;
    return {
      model: this.model.name,
      picture: this.state.picture,
      method: this.spec(method),
      target,
      contrast,
      ...changes,
    };
  }

  /** A task for `answers`: a kind, a question, and what else belongs to it. */
  task(kind, question, more = {}) {
    const key = JSON.stringify([kind, ...Object.values(question), ...Object.values(more)]);
    return { key, alone: kind !== "explain" || this.#costly(question.method), kind, ...question, ...more };
  }

  /** What a method costs on this model, `{forwards, backwards, seconds}`; asked once, nothing until it is known. */
  price(name) {
    const spec = this.spec(name);
    const key = `${this.model.name} ${spec}`;
    if (!this.#prices.has(key)) {
      this.#prices.set(key, null);
      api("/api/method", { body: { model: this.model.name, spec } }).then((said) => {
        if (said.ok) this.#prices.set(key, said);
        this.tell();
      }, () => this.#prices.delete(key));
    }
    return this.#prices.get(key);
  }

  #costly(spec) {
    const known = this.methods.find((each) => each.name === spec);
    return known
      ? !(known.forwards + known.backwards <= MANY)
      : spec.length > 60 && !spec.startsWith("logprob");
  }

  explain(name, changes = {}) {
    return this.task("explain", this.question(name, changes));
  }

  answer(task) {
    return this.answers.get(task.key);
  }

  result(task) {
    const entry = this.answer(task);
    return entry?.status === "done" ? entry.result : null;
  }

  /** Ask again what failed or was cancelled. */
  again(task) {
    this.answers.forget(task.key);
    this.tell();
  }

  /** How a task is cancelled and asked again, for the place where its answer will be. */
  ways(task) {
    return { oncancel: () => this.answers.cancel(task().key), onagain: () => this.again(task()) };
  }

  // -- what is known -----------------------------------------------------------------------------------

  #arrive() {
    const wanted = `${this.model.name} ${this.state.picture ?? ""}`;
    if (wanted !== this.#loaded) this.load();
    else this.tell();
  }

  tell() {
    this.dispatchEvent(new Event("change"));
  }

  point(patch) {
    if (String(patch) === String(this.patch)) return;
    this.patch = patch;
    this.dispatchEvent(new Event("patch"));
  }

  /** Fetch the picture as the model sees it, and what the model says. */
  async load() {
    const { picture } = this.state;
    const { name } = this.model;
    this.#loaded = `${name} ${picture ?? ""}`;
    this.#stop.abort();
    this.#stop = new AbortController();
    const { signal } = this.#stop;
    this.prediction = this.image = this.problem = this.patch = null;
    this.tell();
    if (!picture) return;
    try {
      const asked = api("/api/predict", { body: { model: name, picture }, signal });
      const [prediction, image] = await Promise.all(
        [asked, loadImage(pictureAddress(picture, name)).catch(() => null), this.#list(name)],
      );
      if (signal.aborted) return;
      this.learnLabels([...prediction.top, ...(prediction.truth ? [prediction.truth] : [])]);
      if (!image) throw new Error("The picture could not be loaded.");
      this.image = image;
      this.prediction = prediction;
      await this.#name(signal);
    } catch (error) {
      if (signal.aborted) return;
      this.problem = error.message;
    }
    this.tell();
  }

  /** Classes of the address that are not among the most probable need their names. */
  async #name(signal) {
    for (const index of [this.state.target, this.state.contrast, ...(this.state.compareClasses ?? [])]) {
      if (index === null || this.#labels.has(`${this.model.name} ${index}`)) continue;
      this.learnLabels(await api("/api/classes", { query: { model: this.model.name, q: index }, signal }));
    }
  }

  async #list(name) {
    if (this.#methods.has(name)) return;
    const said = await api("/api/methods", { query: { model: name } });
    this.#methods.set(name, Array.isArray(said) ? said : said.methods);
  }

  #learn(key) {
    const entry = key === null ? null : this.answers.get(key);
    if (entry?.status === "done") entry.result = unpacked(entry.result);
    if (entry?.status === "done" && entry.task.kind === "explain" && entry.task.target !== null)
      this.learnLabels([{ index: entry.task.target, label: entry.result.label }]);
    this.tell();
  }
}

/** The question of a task. */
export function asked({ key, alone, kind, ...question }) {
  return question;
}

/** Arrays as numbers, wherever they are in an answer. */
function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object" || value.data instanceof Float32Array) return value;
  if (Array.isArray(value.shape) && typeof value.data === "string") return decode(value);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, unpacked(each)]));
}

/** A map on the token grid: pixels of one patch are averaged, coarser cells are repeated. */
export function onPatches(array, [rows, columns]) {
  const { shape, data } = decode(array);
  const [height, width] = shape;
  if (height === rows && width === columns) return { shape, data };
  if (height < rows || width < columns) return { shape: [rows, columns], data: nearest(data, shape, [rows, columns]) };
  const made = new Float32Array(rows * columns);
  const counts = new Float32Array(rows * columns);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const cell = Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width);
      made[cell] += data[y * width + x];
      counts[cell] += 1;
    }
  return { shape: [rows, columns], data: made.map((value, i) => value / (counts[i] || 1)) };
}

/** Patches from the strongest to the weakest; of equal ones the first in reading order. */
export function strongestFirst(map) {
  const value = (i) => (Number.isFinite(map.data[i]) ? map.data[i] : -Infinity);
  return Array.from(map.data.keys()).sort((a, b) => value(b) - value(a) || a - b);
}
