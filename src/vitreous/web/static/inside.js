// Inside the model: the same map from every start layer, and the attention of any head.

import { el, fill } from "./common.js";
import { scaleOf, shown as visible } from "./maps.js";
import { Place, slider } from "./parts.js";
import { asked } from "./store.js";
import { Legend, MapCanvas } from "./tile.js";

/** One large map and many small ones to choose it from. */
class Gallery {
  #names = "";

  constructor(store, what, onchoose) {
    this.store = store;
    this.what = what;
    this.onchoose = onchoose;
    this.large = new MapCanvas(store, { side: 640 });
    this.legend = new Legend();
    this.title = el("h2", {});
    this.words = el("p", { class: "note" });
    this.small = el(
      "div",
      { class: "shelf", role: "listbox", "aria-label": what, onkeydown: (event) => this.#key(event) },
    );
    this.items = [];
    this.node = el(
      "div",
      { class: "grid inside" },
      el(
        "section",
        { class: "card" },
        this.title,
        el("div", { class: "over" }, this.large.node),
        this.legend.node,
        this.words,
      ),
      this.small,
    );
  }

  #key(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.onchoose(Math.min(this.items.length - 1, Math.max(0, this.now + by)));
    this.items[this.now]?.node.focus();
  }

  /** `maps`: `[{name, map}]`; `now`: which one is large. Each has its own scale unless one for all is asked for. */
  update(maps, now, { look, title, words, low = null, high: upper = null }) {
    this.now = now;
    const names = maps.map((item) => item.name).join("|");
    if (names !== this.#names) {
      this.#names = names;
      this.items = maps.map(({ name }, place) => {
        const map = new MapCanvas(this.store, { side: 160 });
        map.node.tabIndex = -1;
        const node = el(
          "button",
          { type: "button", class: "shelved", role: "option", onclick: () => this.onchoose(place) },
          map.node,
          el("span", {}, name),
        );
        return { node, map };
      });
      fill(this.small, this.items.map((item) => item.node));
    }
    const { shared, clip, positive } = this.store.state;
    const signed = positive ? false : look.signed;
    const scale = shared ? scaleOf(maps.map((item) => visible(item.map, look)), clip, signed) : null;
    this.items.forEach(({ node, map }, place) => {
      node.setAttribute("aria-selected", String(place === now));
      node.tabIndex = place === now ? 0 : -1;
      map.draw(maps[place].map, { ...look, scale }, `${this.what} ${maps[place].name}`);
    });
    const mine = { ...look, scale };
    const range = this.large.draw(maps[now]?.map ?? null, mine, `${title}. Arrow keys read patches.`);
    this.legend.update(range, low, upper);
    this.title.textContent = title;
    this.words.textContent = words;
  }
}

function lastWithin(value, length) {
  return Math.min(Math.max(0, length - 1), value);
}

/** The same map read from every start layer: what PLUS sums. */
export class LayersView {
  #bases = "";

  constructor(store) {
    this.store = store;
    this.gallery = new Gallery(store, "start layer", (start) => store.set({ start }, { replace: true }));
    this.place = new Place("the layers", store.ways(() => this.#task));
    this.base = el(
      "select",
      {
        class: "field",
        "aria-label": "Method that is read layer by layer",
        onchange: () => store.set({ base: this.base.value, start: null }),
      },
    );
    this.node = el(
      "div",
      { class: "view layers" },
      el(
        "div",
        { class: "row tools" },
        el("label", { class: "row" }, el("span", { class: "note" }, "Method"), this.base),
        el(
          "p",
          { class: "note" },
          "Each map begins at another layer. PLUS sums them; SkipPLUS leaves the first half out.",
        ),
      ),
      this.place.node,
    );
  }

  /** Whether a method can be asked from every layer without a long wait. */
  #layered({ is_combinator, refused, grid, family, forwards, backwards }) {
    return !is_combinator && !refused && grid === "token" && family !== "control" && forwards + backwards <= 4;
  }

  get #name() {
    return this.store.state.base ?? "decompx";
  }

  get #task() {
    return this.store.task("layers", this.store.question(this.#name));
  }

  get #now() {
    const layers = this.store.result(this.#task)?.layers ?? [];
    return lastWithin(this.store.state.start ?? Math.floor(layers.length / 2), layers.length);
  }

  tasks() {
    return this.store.prediction ? [this.#task] : [];
  }

  questions() {
    return [asked(this.#task)];
  }

  /** What only the screen has, for a file. */
  sheet() {
    const { store } = this;
    const layers = store.result(this.#task)?.layers ?? [];
    const items = this.gallery.items.map(({ map }, place) => ({
      name: `from layer ${layers[place]?.start}`,
      canvas: map.canvas,
      map: layers[place]?.map,
    }));
    const words = `${this.#name} for ${store.label(store.target)}; ${store.model.name}, ${store.state.picture}`;
    return layers.length ? { items, title: "One map from every start layer", words } : null;
  }

  tested() {
    const result = this.store.result(this.#task);
    const layer = result?.layers[this.#now];
    return {
      name: layer ? `${this.#name} from layer ${layer.start}` : this.#name,
      key: `${this.#task.key} ${this.#now}`,
      question: this.questions()[0],
      array: layer?.map ?? null,
      checkable: false,
    };
  }

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const cheap = store.methods.filter((item) => this.#layered(item)).map((item) => item.name);
    const bases = [...new Set([this.#name, ...cheap])];
    if (bases.join() !== this.#bases) fill(this.base, bases.map((name) => el("option", { value: name }, name)));
    this.#bases = bases.join();
    this.base.value = this.#name;
    const entry = store.answer(this.#task);
    this.place.update(entry, () => this.gallery.node);
    if (entry?.status !== "done") return;
    const { layers, signed } = entry.result;
    const now = this.#now;
    this.gallery.update(layers.map(({ start, map }) => ({ name: `from ${start}`, map })), now, {
      look: { ...store.look, signed: signed ?? null },
      title: `From layer ${layers[now].start} on`,
      words: `${this.#name} for “${store.label(store.target)}”. The model has ${store.model.depth} layers.`,
    });
  }
}

/** Where each head looks, in any layer. */
export class HeadsView {
  title = "Where does each head look?";

  constructor(store) {
    this.store = store;
    this.gallery = new Gallery(store, "head", (head) => store.set({ head }, { replace: true }));
    this.place = new Place("the heads", store.ways(() => this.#task));
    this.layer = slider(
      "Layer",
      { min: 0, max: 1, step: 1, words: String, oninput: (layer) => store.set({ layer }, { replace: true }) },
    );
    this.node = el(
      "div",
      { class: "view heads" },
      el(
        "div",
        { class: "row tools" },
        this.layer.node,
        el("p", { class: "note" }, "Attention says where a head looks, not what speaks for a class."),
      ),
      this.place.node,
    );
  }

  get #layer() {
    return lastWithin(this.store.state.layer ?? this.store.model.depth - 1, this.store.model.depth);
  }

  get #task() {
    const { model, picture } = this.store.question(this.store.chosen);
    return this.store.task("heads", { model, picture }, { layer: this.#layer });
  }

  get #now() {
    return lastWithin(this.store.state.head ?? 0, this.store.result(this.#task)?.heads.length ?? 1);
  }

  tasks() {
    return this.store.prediction ? [this.#task] : [];
  }

  questions() {
    return [this.store.question(`raw_attention(layer=${this.#layer})`, { contrast: null })];
  }

  /** What only the screen has, for a file. */
  sheet() {
    const { store } = this;
    const heads = store.result(this.#task)?.heads ?? [];
    const items = this.gallery.items.map(({ map }, place) => ({
      name: `head ${heads[place]?.head}`,
      canvas: map.canvas,
      map: heads[place]?.map,
    }));
    const words = `attention of layer ${this.#layer}; ${store.model.name}, ${store.state.picture}`;
    return heads.length ? { items, title: "Where each head looks", words } : null;
  }

  tested() {
    const head = this.store.result(this.#task)?.heads[this.#now];
    const name = head ? `layer ${this.#layer}, head ${head.head}` : "heads";
    return {
      name,
      key: `${this.#task.key} ${this.#now}`,
      question: this.store.question(this.store.chosen, { contrast: null }),
      array: head?.map ?? null,
      checkable: false,
    };
  }

  update() {
    const { store } = this;
    if (!store.prediction) return;
    this.layer.input.max = store.model.depth - 1;
    this.layer.update(this.#layer);
    const entry = store.answer(this.#task);
    const busy = entry?.status !== "done" && entry?.status !== "error" && entry?.status !== "cancelled";
    // while others come, the old ones stay
    if (!busy || !this.gallery.items.length) this.place.update(entry, () => this.gallery.node);
    if (entry?.status !== "done") return;
    const { heads, rows } = entry.result;
    const now = this.#now;
    this.gallery.update(heads.map(({ head, map }) => ({ name: `head ${head}`, map })), now, {
      look: { ...store.look, signed: false },
      title: `Layer ${this.#layer}, head ${heads[now].head}`,
      words: `Attention ${rows}. Each map has its own scale.`,
      low: "little", high: "much",
    });
  }
}
