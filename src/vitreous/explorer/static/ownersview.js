// Who owns what: several classes at once, and which of them has the stronger evidence in which patch.

import { el, fill, percent } from "./common.js";
import { ClassSearch } from "./classes.js";
import { drawOwners } from "./maps.js";
import { button, icon, Place } from "./parts.js";
import { MapCanvas } from "./tile.js";

const FIRST = 3;
const MOST = 8;

export class OwnersView {
  #drawn = null;

  constructor(store) {
    this.store = store;
    this.map = new MapCanvas(store, { side: 640 });
    this.canvas = this.map.canvas;
    this.place = new Place("who owns what", { oncancel: () => store.answers.cancel(this.#task.key), onagain: () => store.again(this.#task) });
    this.classes = el("ul", { class: "owners" });
    this.search = new ClassSearch(store, "One more class", (index) => this.#toggle(index));
    this.words = el("p", { class: "note" });
    this.node = el("div", { class: "view owners" },
      el("div", { class: "grid inside" },
        el("section", { class: "card" }, el("h2", {}, "Who owns which patch?"), el("div", { class: "over" }, this.map.node, this.place.node), this.words),
        el("section", { class: "card" }, el("h2", {}, "Classes"), el("p", { class: "note" }, "How much of the evidence each owns. Point at a patch to see its shares."), this.classes, this.search.node)));
    store.addEventListener("patch", () => this.node.isConnected && this.#shares());
  }

  get among() {
    const { store } = this;
    if (store.state.among && store.state.among.length >= 2) return store.state.among.slice(0, MOST);
    const asked = [store.target, store.against].filter((index) => index !== null);
    return [...new Set([...asked, ...store.prediction.top.map((each) => each.index)])].slice(0, Math.max(FIRST, asked.length));
  }

  #toggle(index) {
    const now = this.among;
    const among = now.includes(index) ? now.filter((each) => each !== index) : [...now, index];
    if (among.length >= 2 && among.length <= MOST) this.store.set({ among });
  }

  get #task() {
    const { model, picture } = this.store.question(this.store.chosen);
    return this.store.task("owners", { model, picture, target: this.among[0], against: null }, { among: this.among });
  }

  tasks() {
    return this.store.prediction ? [this.#task] : [];
  }

  questions() {
    const { key, alone, kind, ...question } = this.#task;
    return [{ ...question, method: this.store.spelling(this.store.chosen) }];
  }

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const entry = store.answer(this.#task);
    this.place.update(entry, () => []);
    const result = entry?.status === "done" ? entry.result : null;
    if (!result && !this.#drawn) this.map.draw(null, store.look, "The picture");
    if (result && result !== this.#drawn) {
      this.map.draw(null, store.look, `Which class owns which patch: ${result.classes.map((each) => each.label).join(", ")}`);
      drawOwners(this.canvas, store.image, result.distribution, result.strength, result.classes.map((each) => each.colour), 640);
      this.canvas.dataset.state = "owners";
    }
    this.#drawn = result;
    this.words.textContent = "The class with the strongest evidence tints the patch, the more the further it is ahead. Grey: little evidence, or a tie.";
    this.#list(result);
  }

  /** Each class with its colour and what it owns; the next probable ones can be added. */
  #list(result) {
    const { store } = this;
    const owned = result ? shareOwned(result) : null;
    const colour = (place) => result?.classes[place]?.colour ?? "transparent";
    const rows = this.among.map((index, place) =>
      el("li", { dataset: { place } }, el("s", { style: { background: colour(place) } }), el("span", { class: "name" }, store.label(index)),
        el("span", { class: "chance" }, owned ? percent(owned[place]) : ""), el("div", { class: "track" }, el("i", { style: { width: owned ? `${100 * owned[place]}%` : "0", background: colour(place) } })),
        button(icon("cross"), () => this.#toggle(index), { class: "round tiny", disabled: this.among.length <= 2, "aria-label": `Leave ${store.label(index)} out` })));
    const more = store.prediction.top.filter((each) => !this.among.includes(each.index)).slice(0, 4);
    fill(this.classes, rows, el("li", { class: "chips" }, more.map((each) => button([icon("plus"), each.label], () => this.#toggle(each.index), { class: "pill small", disabled: this.among.length >= MOST }))));
    this.#shares();
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
      const share = patch ? result.distribution.data[place * rows * columns + patch[0] * columns + patch[1]] : owned[place];
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
    for (let k = 1; k < count; k++) if (distribution.data[k * h * w + cell] > distribution.data[owner * h * w + cell]) owner = k;
    owned[owner] += strength ? strength.data[cell] : 1;
  }
  const total = owned.reduce((sum, each) => sum + each, 0) || 1;
  return owned.map((each) => each / total);
}
