// Which methods answer: the steps of effort, a list by family with costs, and a box to compose them in.

import { announce, el, fill, remake } from "./common.js";
import { Composer, cost } from "./compose.js";
import { button, choice, icon } from "./parts.js";

const EFFORTS = { quick: "a fraction of a second", careful: "some seconds", best: "as long as it takes" };

export class MethodPanel {
  constructor(store) {
    this.store = store;
    this.effort = choice(
      "Effort",
      store.efforts.map((name) => [name, name, EFFORTS[name]]),
      (name) => this.strive(name),
    );
    this.list = el("ul", { class: "chosen" });
    this.composer = new Composer(store, (spec) => this.add(spec));
    this.dialog = el("dialog", { class: "sheet wide", "aria-labelledby": "methods-title" });
    this.node = el(
      "section",
      { class: "how" },
      el("h2", { id: "effort-title" }, "Effort"),
      this.effort.node,
      el(
        "div",
        { class: "head" },
        el("h2", {}, "Methods"),
        button("browse", () => this.browse(), { class: "link", "aria-haspopup": "dialog" }),
      ),
      this.list,
      this.composer.node,
      this.dialog,
    );
  }

  /** Another step of effort takes the place of the one that is there. */
  strive(name) {
    const { store } = this;
    const others = store.names.filter((item) => !store.efforts.includes(item));
    store.set({ methods: [name, ...others], chosen: name });
    announce(`Effort: ${name}`);
  }

  add(spec) {
    const { store } = this;
    const names = store.names.includes(spec) ? store.names : [...store.names, spec];
    store.set({ methods: names, chosen: spec, ...(store.view === "why" ? {} : { view: "maps" }) });
    announce(`${spec} added`);
  }

  remove(name) {
    const { store } = this;
    store.set({ methods: store.names.filter((item) => item !== name) });
    announce(`${name} removed`);
  }

  browse() {
    const browser = new MethodBrowser(this.store, {
      add: (name) => this.add(name),
      remove: (name) => this.remove(name),
      begin: (text) => this.composer.begin(text),
    });
    fill(this.dialog, browser.node);
    browser.onclose = () => this.dialog.close();
    this.dialog.showModal();
    browser.input.focus();
  }

  update() {
    const { store } = this;
    const step = store.efforts.find((name) => store.names.includes(name)) ?? null;
    this.effort.update(step);
    const prices = store.names.map((name) => store.price(name));
    const key = JSON.stringify([store.names, store.chosen, prices]);
    remake(this.list, key, () => store.names.map((name, place) => this.#row(name, prices[place])));
  }

  #row(name, price) {
    const { store } = this;
    const on = name === store.chosen;
    const words = [el("span", {}, name), el("small", {}, price ? cost(price) : "")];
    const state = { class: "pick", "aria-pressed": String(on), title: `Put ${name} to the test` };
    const pick = button(words, () => store.set({ chosen: name }), state);
    const away = { class: "round tiny", "aria-label": `Remove ${name}` };
    return el("li", { class: on ? "on" : "" }, pick, button(icon("cross"), () => this.remove(name), away));
  }
}

/** All methods by family, with a search; what a model cannot do says why. */
class MethodBrowser {
  onclose = () => {};

  constructor(store, { add, remove, begin }) {
    Object.assign(this, { store, add, remove, begin });
    this.input = el(
      "input",
      {
        type: "search",
        class: "field",
        placeholder: "Search: a name, a family, a word …",
        "aria-label": "Search the methods",
        oninput: () => this.draw(),
      },
    );
    this.body = el("div", { class: "families" });
    this.count = el("p", { class: "note", role: "status" });
    this.node = el("div", { class: "browser" },
      el(
        "div",
        { class: "head" },
        el("h2", { id: "methods-title" }, "Methods"),
        button(icon("cross"), () => this.onclose(), { class: "round", "aria-label": "Close" }),
      ),
      this.input,
      this.count,
      this.body);
    this.draw();
  }

  draw() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = this.store.methods.filter((item) => {
      const text = `${item.name} ${item.family} ${item.summary} ${(item.aliases ?? []).join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const families = grouped(matches);
    this.count.textContent = matches.length
      ? `${matches.length} of ${this.store.methods.length}. F: forward passes, B: backward passes.`
      : "No method has these words. Try fewer.";
    fill(
      this.body,
      [...families].map(
        ([family, methods]) => el(
          "section",
          { "aria-label": family },
          el("h3", {}, family),
          el("ul", {}, methods.map((item) => this.#row(item))),
        ),
      ),
    );
  }

  #row(item) {
    const there = this.store.names.includes(item.name);
    const price = item.refused ? "refused" : item.is_combinator ? `${item.name}(…)` : (item.cost_text ?? cost(item));
    const blind = item.class_specific === false && !item.refused ? " Knows no class." : "";
    const words = [
      el("b", {}, item.name),
      el("span", { class: "cost" }, price),
      el("span", { class: "summary" }, item.refused ?? item.summary, blind),
    ];
    const node = button(words, () => this.#take(item, there), {
      class: "method",
      "aria-pressed": item.is_combinator ? null : String(there),
      disabled: Boolean(item.refused),
      dataset: { name: item.name },
    });
    return el("li", {}, node);
  }

  /** A method is added or removed; a combinator is begun in the box, for it needs a base. */
  #take(item, there) {
    if (item.is_combinator) {
      this.onclose();
      this.begin(`${item.name}(`);
      return;
    }
    (there ? this.remove : this.add)(item.name);
    this.draw();
    this.body.querySelector(`[data-name="${CSS.escape(item.name)}"]`)?.focus();
  }
}

function grouped(methods) {
  const families = new Map();
  for (const item of methods) families.set(item.family, [...(families.get(item.family) ?? []), item]);
  return families;
}
