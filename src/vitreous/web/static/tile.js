// One map on one picture: drawn, captioned with its scale, and readable patch by patch.

import { announce, el, fill, number, seconds } from "./common.js";
import { drawMap, drawPicture, gradient, scaleWords } from "./maps.js";
import { Place } from "./parts.js";
import { onPatches, strongestFirst } from "./store.js";

const SIDE = 448; // pixels of a drawn map, at least

/** "1st", "2nd", "3rd", "11th". */
function ordinal(value) {
  const ending = value % 100 >= 11 && value % 100 <= 13 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[value % 10] ?? "th");
  return `${value}${ending}`;
}

/**
 * A picture with a map over it; in words too, for those who cannot see it. The patch that is pointed at, in any map, is
 * marked in all of them.
 */
export class MapCanvas {
  #drawn = "";
  #array = null;
  #ranks = null;

  constructor(store, { side = SIDE, onenter = null } = {}) {
    this.store = store;
    this.side = side;
    this.canvas = el("canvas", { width: 8, height: 8 });
    this.mark = el("span", { class: "mark", hidden: true });
    this.chip = el("span", { class: "chip", hidden: true });
    this.node = el("div", {
      class: "map", tabindex: "0", role: "img", "aria-label": "The picture",
      onpointermove: (event) => this.#point(event),
      onpointerdown: (event) => this.#point(event),
      onpointerleave: () => store.point(null),
      onkeydown: (event) => this.#key(event, onenter), onblur: () => store.point(null),
    }, this.canvas, this.mark, this.chip);
    store.addEventListener("patch", () => this.node.isConnected && this.#read());
  }

  #point(event) {
    const box = this.node.getBoundingClientRect();
    const [rows, columns] = this.store.model.grid;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    this.store.point([Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))]);
  }

  #key(event, onenter) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const [rows, columns] = this.store.model.grid;
    if (step) {
      event.preventDefault();
      const [row, column] = this.store.patch ?? [Math.floor(rows / 2) - step[0], Math.floor(columns / 2) - step[1]];
      const patch = [
        Math.min(rows - 1, Math.max(0, row + step[0])),
        Math.min(columns - 1, Math.max(0, column + step[1])),
      ];
      this.store.point(patch);
      announce(`row ${patch[0] + 1}, column ${patch[1] + 1}: ${this.chip.textContent}`);
    } else if (event.key === "Escape" && this.store.patch) {
      event.stopPropagation();
      this.store.point(null);
    } else if (event.key === "Enter" && onenter) onenter();
  }

  /** Draw a map, or the picture alone while there is none; returns the scale. */
  draw(array, look, what) {
    const { image } = this.store;
    this.node.setAttribute("aria-label", what);
    if (!image) return null;
    const key = JSON.stringify([image.src, look, array?.data.length ?? 0]);
    if (key === this.#drawn && array === this.#array) return this.scale;
    this.#drawn = key;
    this.node.style.aspectRatio = `${image.naturalWidth} / ${image.naturalHeight}`;
    if (array !== this.#array) this.#ranks = null;
    this.#array = array;
    this.canvas.dataset.state = array ? "map" : "picture";
    if (array) this.scale = drawMap(this.canvas, image, array, { ...look, side: this.side });
    else drawPicture(this.canvas, image, this.side);
    if (!array) this.scale = null;
    this.#read();
    return this.scale;
  }

  /** Mark the patch and say its value, and its place among all. */
  #read() {
    const { patch, model } = this.store;
    this.mark.hidden = !patch;
    this.chip.hidden = !patch || !this.#array;
    if (!patch) return;
    const [rows, columns] = model.grid;
    const [row, column] = patch;
    Object.assign(
      this.mark.style,
      {
        left: `${(100 * column) / columns}%`,
        top: `${(100 * row) / rows}%`,
        width: `${100 / columns}%`,
        height: `${100 / rows}%`,
      },
    );
    if (!this.#array) return;
    this.#ranks ??= ranked(onPatches(this.#array, model.grid));
    const cell = row * columns + column;
    const value = this.#ranks.data[cell];
    fill(
      this.chip,
      el("b", {}, (value > 0 && this.scale?.signed ? "+" : "") + number(value).replace("-", "−")),
      ` ${ordinal(this.#ranks.places[cell])} of ${rows * columns}`,
    );
    this.chip.classList.toggle("low", row < rows / 3);
  }
}

function ranked(map) {
  const places = new Uint32Array(map.data.length);
  strongestFirst(map).forEach((cell, place) => (places[cell] = place + 1));
  return { data: map.data, places };
}

/** What the colours mean, with the values at both ends. */
export class Legend {
  constructor() {
    this.low = el("span", {});
    this.high = el("span", {});
    this.ramp = el("u", {});
    this.node = el("div", { class: "legend" }, this.low, this.ramp, this.high);
  }

  update(scale, low = null, high = null) {
    this.node.classList.toggle("ghost", !scale);
    if (!scale) return;
    this.ramp.style.background = gradient(scale.signed);
    this.low.textContent = low ?? (scale.signed ? `−${number(scale.limit)}` : number(scale.low));
    this.high.textContent = high ?? `${scale.signed ? "+" : ""}${number(scale.limit)}`;
    this.node.title = scaleWords(scale);
  }
}

/** A map that is being made or is there: picture, name, scale, progress, problem. */
export class Tile {
  constructor(store, name, { onchoose, onagain, oncancel, onremove }) {
    this.store = store;
    this.name = name;
    this.map = new MapCanvas(store, { onenter: onchoose });
    this.map.node.addEventListener("click", onchoose);
    this.place = new Place(`the map of ${name}`, { oncancel, onagain });
    this.legend = new Legend();
    this.title = el("b", { class: "title", title: name }, name);
    this.about = el("span", { class: "about" });
    this.warning = el("p", { class: "note warn", hidden: true });
    this.pick = el(
      "button",
      { type: "button", class: "test", onclick: onchoose, title: "Put this map to the test" },
      "test",
    );
    const over = el("div", { class: "over" }, this.map.node, this.place.node);
    const head = el("div", { class: "row" }, this.title, this.pick);
    const caption = el("figcaption", {}, head, this.about, this.legend.node, this.warning);
    this.node = el("figure", { class: "tile" }, over, caption);
  }

  update({ entry, look, chosen, label, price }) {
    const result = entry?.status === "done" ? entry.result : null;
    this.node.classList.toggle("on", chosen);
    this.pick.setAttribute("aria-pressed", String(chosen));
    this.pick.setAttribute("aria-label", `Put ${this.name} to the test`);
    const what = result
      ? `${result.caption}. Arrow keys read patches, Enter puts it to the test.`
      : `${this.name}: not there yet`;
    const scale = this.map.draw(result?.map ?? null, { ...look, signed: result ? result.signed : null }, what);
    this.node.classList.toggle("there", Boolean(result));
    this.place.update(entry, () => []);
    this.legend.update(scale);
    const blind = result && !result.class_specific ? "knows no class" : null;
    const words = [label ?? price, result && seconds(result.seconds), blind].filter(Boolean);
    this.about.textContent = words.join(" · ") || "\u00a0";
    const warnings = result?.warnings ?? [];
    this.warning.hidden = warnings.length === 0;
    this.warning.textContent = warnings.join(" ");
  }
}
