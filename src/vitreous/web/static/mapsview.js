// Maps side by side: one tile for each method, in the order in which they were asked for.

import { announce, el, fill } from "./common.js";
import { cost } from "./compose.js";
import { scaleOf, shown } from "./maps.js";
import { button, icon } from "./parts.js";
import { asked } from "./store.js";
import { Tile } from "./tile.js";

export class MapsView {
  #tiles = new Map();
  #shown = "";
  #told = new Set();

  constructor(store, onmore) {
    this.store = store;
    this.more = button([icon("plus"), "another method"], onmore, { class: "tile add", "aria-haspopup": "dialog" });
    this.grid = el("div", { class: "tiles" });
    this.words = el("p", { class: "note" });
    this.beside = button("", () => store.set({ alone: !store.state.alone }), { class: "link", hidden: true });
    this.node = el(
      "div",
      { class: "view maps" },
      this.grid,
      el("div", { class: "row under" }, this.words, this.beside),
    );
  }

  /** Beside the class that is asked about, the one that the model says: where they differ. */
  get #both() {
    const { store } = this;
    return store.state.target !== null && store.state.target !== store.predicted?.index && store.contrast === null;
  }

  #cells() {
    const { store } = this;
    const differ = this.#both && !store.state.alone;
    return store.names.flatMap((name) => {
      const mine = {
        name,
        task: store.explain(name),
        label: differ ? store.label(store.target) : null,
        target: store.target,
      };
      const known = store.methods.find((each) => each.name === name);
      if (!differ || known?.class_specific === false) return [mine];
      const { index } = store.predicted;
      const task = store.explain(name, { target: index });
      return [mine, { name, task, label: `${store.label(index)}, predicted`, target: index }];
    });
  }

  tasks() {
    return this.store.prediction ? this.#cells().map((cell) => cell.task) : [];
  }

  /** What a download of this view holds. */
  questions() {
    const there = this.#cells().filter(({ task }) => this.store.result(task));
    return there.map(({ task }) => asked(task));
  }

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const cells = this.#cells();
    this.#lay(cells);
    const look = { ...store.look, scale: store.state.shared ? this.#one(cells) : null };
    for (const { task, name, label, target } of cells) {
      const entry = store.answer(task);
      const chosen = name === store.chosen && target === store.target;
      const price = store.price(name);
      this.#tiles.get(task.key).update({ entry, look, label, chosen, price: price && cost(price) });
      if (entry?.status === "done" && !this.#told.has(task.key)) {
        this.#told.add(task.key);
        announce(`${name} is there`);
      }
    }
    this.words.textContent = store.state.shared
      ? "One scale for all maps: the same value has the same colour."
      : "Each map has its own scale, stated under it: compare places, not colours. Point at a patch to read it in all.";
    this.beside.hidden = !this.#both;
    this.beside.textContent = store.state.alone
      ? `show “${store.predicted?.label}” beside it`
      : "without the prediction";
  }

  #lay(cells) {
    const keys = cells.map((cell) => cell.task.key).join();
    if (keys === this.#shown) return;
    this.#shown = keys;
    const { store } = this;
    const tiles = new Map();
    for (const { task, name, target } of cells) {
      const known = this.#tiles.get(task.key);
      const ways = { ...store.ways(() => task), onchoose: () => this.#choose(name, target) };
      tiles.set(task.key, known ?? new Tile(store, name, ways));
    }
    this.#tiles = tiles;
    const paired = this.#both && !store.state.alone;
    this.grid.classList.toggle("paired", paired);
    const groups = paired
      ? store.names.map((name) => cells.filter((cell) => cell.name === name))
      : cells.map((cell) => [cell]);
    const nodes = (group) => group.map((cell) => tiles.get(cell.task.key).node);
    const drawn = groups.map((group) => (group.length > 1 ? el("div", { class: "pair" }, nodes(group)) : nodes(group)));
    fill(this.grid, drawn, this.more);
  }

  /** Put a map to the test; that of the prediction is asked about then. */
  #choose(name, target) {
    const { store } = this;
    const other = target === store.predicted.index ? null : target;
    store.set({ chosen: name, ...(target === store.target ? {} : { target: other }) });
  }

  /** One scale for all maps that are there. */
  #one(cells) {
    const there = cells.map(({ task }) => this.store.result(task)).filter(Boolean);
    const { positive, clip } = this.store.state;
    if (!there.length) return null;
    const maps = there.map((each) => shown(each.map, this.store.look));
    return scaleOf(maps, clip, positive ? false : there.some((each) => each.signed));
  }
}
