// What the model says, and what is asked about: one class, or one rather than another.

import { announce, api, brief, el, fill, remake, settled } from "./common.js";
import { button, placeBeside, problem } from "./parts.js";

const SHOWN = 6;

export class ClassPanel {
  constructor(store) {
    this.store = store;
    this.list = el("ul", { class: "classes" });
    this.truth = el("p", { class: "note" });
    this.search = new ClassSearch(store, "Another class", (index, second) => this.ask(index, second));
    this.node = el(
      "section",
      { class: "asked", "aria-labelledby": "asked-title" },
      el("h2", { id: "asked-title" }, "Ask for"),
      this.list,
      this.search.node,
      this.truth,
    );
  }

  /** Ask about a class; or about it against the one asked about now. */
  ask(index, second = false) {
    const { store } = this;
    if (second) {
      const contrast = index === store.contrast || index === store.target ? null : index;
      store.set({ contrast });
      announce(
        contrast === null
          ? `Why ${store.label(store.target)}`
          : `Why ${store.label(store.target)} rather than ${store.label(index)}`,
      );
      return;
    }
    const target = index === store.predicted?.index ? null : index;
    store.set({ target, contrast: store.state.contrast === index ? null : store.state.contrast });
    announce(`Why ${store.label(index)}`);
  }

  update() {
    const { store } = this;
    const said = store.prediction;
    this.search.node.hidden = !said;
    const truth = said?.truth;
    const right = truth?.index === store.predicted?.index;
    this.truth.textContent = truth ? `In truth: ${truth.label}. The model is ${right ? "right" : "wrong"}.` : "";
    if (!said) return void remake(this.list, `${store.state.picture} ${store.problem}`, () => this.#blank());
    const first = said.top.slice(0, SHOWN);
    const asked = [store.target, store.contrast].filter((index) => index !== null);
    const more = asked.filter((index) => !first.some((each) => each.index === index));
    const rows = [...first, ...more.map((index) => this.#known(index))];
    const focused = document.activeElement?.closest?.(".class")?.dataset.index;
    const kind = document.activeElement?.className;
    const fresh = remake(this.list, JSON.stringify([rows, asked]), () => rows.map((each) => this.#row(each)));
    if (fresh && focused) this.list.querySelector(`[data-index="${focused}"] .${kind}`)?.focus();
  }

  /** What stands there before the model has said anything. */
  #blank() {
    const { store } = this;
    if (store.problem) return el("li", {}, problem(store.problem, () => store.load()));
    return Array.from({ length: SHOWN }, () => el("li", { class: "class ghost" }, "\u00a0"));
  }

  #known(index) {
    const said = this.store.prediction.top.find((each) => each.index === index);
    return said ?? { index, label: this.store.label(index), probability: null };
  }

  #row({ index, label, probability }) {
    const { store } = this;
    const target = index === store.target, rival = index === store.contrast;
    const main = button(
      [
        el("span", { class: "name" }, label),
        el("span", { class: "chance" }, probability === null ? "" : brief(probability)),
        el("i", { style: { width: `${100 * (probability ?? 0)}%` } }),
      ],
      (event) => this.ask(index, event.shiftKey),
      {
        class: "pick",
        "aria-pressed": String(target),
        title: target ? "asked about" : `Why “${label}”? Shift-click to contrast.`,
      },
    );
    const second = button("vs", () => this.ask(index, true), {
      class: "versus", "aria-pressed": String(rival), disabled: target,
      "aria-label": rival ? `Do not contrast with ${label}` : `Contrast with ${label}`,
      title: rival ? "no contrast" : "rather than this one",
    });
    return el("li", { class: `class${target ? " on" : ""}${rival ? " off" : ""}`, dataset: { index } }, main, second);
  }
}

/** A box that finds any class by its name or number: type, arrows, Enter; Shift-Enter contrasts. */
export class ClassSearch {
  #found = [];
  #active = -1;
  #asked = 0;

  constructor(store, words, onpick) {
    this.store = store;
    this.onpick = onpick;
    const id = `classes-${Math.random().toString(36).slice(2, 8)}`;
    this.options = el("ul", { class: "options", id, role: "listbox", "aria-label": words, hidden: true });
    this.input = el("input", {
      type: "search",
      class: "field",
      placeholder: `${words} …`,
      autocomplete: "off",
      spellcheck: false,
      role: "combobox",
      "aria-label": words,
      "aria-expanded": "false",
      "aria-controls": id,
      "aria-autocomplete": "list",
      oninput: settled(() => this.#find(), 120),
      onfocus: () => this.input.value && this.#find(),
      onkeydown: (event) => this.#key(event), onblur: () => setTimeout(() => this.#close(), 150),
    });
    this.node = el("div", { class: "combo" }, this.input, this.options);
  }

  async #find() {
    const words = this.input.value.trim();
    if (!words) return this.#close();
    const mine = ++this.#asked;
    try {
      const found = await api("/api/classes", { query: { model: this.store.model.name, q: words } });
      if (mine !== this.#asked) return;
      this.#found = found.slice(0, 12);
      this.store.learnLabels(this.#found);
      this.#active = this.#found.length ? 0 : -1;
      this.#draw(this.#found.length ? null : `No class has “${words}” in its name.`);
    } catch (error) {
      this.#found = [];
      this.#draw(error.message);
    }
  }

  #draw(words) {
    const rows = this.#found.map(({ index, label }, place) =>
      el("li", {
        role: "option",
        id: `${this.options.id}-${place}`,
        "aria-selected": String(place === this.#active),
        onpointerdown: (event) => { event.preventDefault(); this.#take(place, event.shiftKey); },
      },
        el("span", {}, label), el("small", {}, String(index))));
    fill(this.options, words ? el("li", { class: "note" }, words) : rows);
    this.options.hidden = false;
    placeBeside(this.options, this.input);
    this.input.setAttribute("aria-expanded", "true");
    if (this.#active >= 0) this.input.setAttribute("aria-activedescendant", `${this.options.id}-${this.#active}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #take(place, second) {
    const { index } = this.#found[place];
    this.input.value = "";
    this.#close();
    this.onpick(index, second);
  }

  #close() {
    this.#asked++;
    this.options.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    const open = !this.options.hidden && this.#found.length;
    if (event.key === "Escape") {
      if (!this.options.hidden) event.stopPropagation();
      this.#close();
    } else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.#active = (this.#active + (event.key === "ArrowDown" ? 1 : -1) + this.#found.length) % this.#found.length;
      this.#draw(null);
    } else if (open && event.key === "Enter" && this.#active >= 0) {
      event.preventDefault();
      this.#take(this.#active, event.shiftKey);
    }
  }
}
