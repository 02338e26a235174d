// Who owns what: several classes at once, and which of them has the stronger evidence in which patch.

import { el, percent, remake } from "./common.js";
import { ClassSearch } from "./classes.js";
import { drawOwners } from "./maps.js";
import { button, icon, Place } from "./parts.js";
import { asked } from "./store.js";
import { MapCanvas } from "./tile.js";

const FIRST = 3;
const MOST = 8;

export class OwnersView {
  title = "Who owns which patch?";
  #drawn = null;

  constructor(store) {
    this.store = store;
    this.map = new MapCanvas(store, { side: 640 });
    this.canvas = this.map.canvas;
    this.place = new Place("who owns what", store.ways(() => this.#task));
    this.classes = el("ul", { class: "owners" });
    this.search = new ClassSearch(store, "One more class", (index) => this.#toggle(index));
    this.node = el("div", { class: "view owners" }, el("div", { class: "grid inside" }, this.#picture(), this.#side()));
    store.addEventListener("patch", () => this.node.isConnected && this.#shares());
  }

  #picture() {
    const words = "The class with the strongest evidence tints the patch. Grey: little evidence, or a tie.";
    const over = el("div", { class: "over" }, this.map.node, this.place.node);
    return el(
      "section",
      { class: "card" },
      over,
      el("p", { class: "note" }, words),
    );
  }

  #side() {
    const words = el("p", { class: "note" }, "How much of the evidence each owns. Point at a patch to see its shares.");
    return el("section", { class: "card" }, el("h2", {}, "Classes"), words, this.classes, this.search.node);
  }

  get compareClasses() {
    const { store } = this;
    if (store.state.compareClasses?.length >= 2) return store.state.compareClasses.slice(0, MOST);
    const asked = [store.target, store.contrast].filter((index) => index !== null);
    const all = new Set([...asked, ...store.prediction.top.map((each) => each.index)]);
    return [...all].slice(0, FIRST);
  }

  #toggle(index) {
    const now = this.compareClasses;
    const compareClasses = now.includes(index) ? now.filter((each) => each !== index) : [...now, index];
    if (compareClasses.length >= 2 && compareClasses.length <= MOST) this.store.set({ compareClasses });
  }

  get #task() {
    const { model, picture } = this.store.question(this.store.chosen);
    const classes = this.compareClasses;
    return this.store.task("owners", { model, picture, target: classes[0], contrast: null }, { compare_classes: classes });
  }

  tasks() {
    return this.store.prediction ? [this.#task] : [];
  }

  /** The lines that make it again name the classes in the method. */
  questions() {
    const { method, output } = this.store.result(this.#task) ?? {};
    return method ? [{ ...asked(this.#task), method, output }] : [];
  }

  /** What only the screen has, for a file. */
  sheet() {
    const { store } = this;
    const result = store.result(this.#task);
    if (!result) return null;
    const words = `${store.model.name}, ${store.state.picture}; grey: little evidence, or a tie`;
    const item = { name: "who owns which patch", canvas: this.canvas, map: result.distribution };
    return { items: [item], title: "Who owns which patch?", words, keys: result.classes };
  }

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const entry = store.answer(this.#task);
    const result = store.result(this.#task);
    this.place.update(entry, () => []);
    const names = this.compareClasses.map((index) => store.label(index)).join(", ");
    if (!result || result !== this.#drawn) this.map.draw(null, {}, `Which class owns which patch: ${names}`);
    if (result && result !== this.#drawn) {
      const tints = result.classes.map((each) => each.colour);
      drawOwners(this.canvas, store.image, result.distribution, result.strength, tints, 640);
      this.canvas.dataset.state = "owners";
    }
    this.#drawn = result;
    this.#list(result);
  }

  /** Each class with its colour and what it owns; the next probable ones can be added. */
  #list(result) {
    const { store, compareClasses } = this;
    const more = store.prediction.top.filter((each) => !compareClasses.includes(each.index)).slice(0, 4);
    const key = JSON.stringify([compareClasses, compareClasses.map((index) => store.label(index)), more, result?.classes]);
    remake(this.classes, key, () => [
      compareClasses.map((index, place) => this.#row(index, result?.classes[place]?.colour ?? "transparent", place)),
      el("li", { class: "chips" }, more.map((each) => this.#offer(each))),
    ]);
    this.#shares();
  }

  #row(index, colour, place) {
    const label = this.store.label(index);
    const few = this.compareClasses.length <= 2;
    return el(
      "li",
      { dataset: { place } },
      el("s", { style: { background: colour } }),
      el("span", { class: "name" }, label),
      el("span", { class: "chance" }),
      button(icon("cross"), () => this.#toggle(index), {
        class: "round tiny",
        disabled: few,
        "aria-label": `Leave ${label} out`,
        title: few ? "Two classes are needed" : null,
      }),
      el("div", { class: "track" }, el("i", { style: { width: "0", background: colour } })),
    );
  }

  #offer({ index, label }) {
    const full = this.compareClasses.length >= MOST;
    return button([icon("plus"), label], () => this.#toggle(index), { class: "pill small", disabled: full });
  }

  /** The shares of the patch that is pointed at. */
  #shares() {
    const result = this.#drawn;
    const { patch, model } = this.store;
    if (!result) return;
    const [rows, columns] = model.grid;
    const owned = patch ? null : shareOwned(result);
    for (const row of this.classes.querySelectorAll("li[data-place]")) {
      const place = Number(row.dataset.place);
      const share = patch
        ? result.distribution.data[place * rows * columns + patch[0] * columns + patch[1]]
        : owned[place];
      row.querySelector(".chance").textContent = percent(share);
      row.querySelector("i").style.width = `${100 * share}%`;
    }
  }
}

/** The share of the evidence that each class owns: strength of the patches where it is the strongest. */
function shareOwned({ distribution, strength }) {
  const [count, h, w] = distribution.shape;
  const owned = new Array(count).fill(0);
  for (let cell = 0; cell < h * w; cell++) {
    let owner = 0;
    const share = (k) => distribution.data[k * h * w + cell];
    for (let k = 1; k < count; k++) if (share(k) > share(owner)) owner = k;
    owned[owner] += strength ? strength.data[cell] : 1;
  }
  const total = owned.reduce((sum, each) => sum + each, 0) || 1;
  return owned.map((each) => each / total);
}
