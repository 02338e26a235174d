// A box to compose methods in: completion by keyboard, the cost before it runs, and errors under the character.

import { api, el, fill, seconds, settled } from "./common.js";
import { button, icon, placeBeside, sentence } from "./parts.js";

/** A cost for people: "1 F + 1 B", "61 F + 60 B", "as its base". */
export function cost({ forwards, backwards }) {
  const written = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  const plain = (value, letter) => (typeof value === "number" ? `${written(value)} ${letter}` : value);
  return [
    forwards && plain(forwards, "F"),
    backwards && plain(backwards, "B"),
  ].filter(Boolean).join(" + ") || "nothing";
}

/** Cost and time of a spec that the server has looked at. */
export function costWords(said) {
  return [cost(said), said.seconds ? `about ${seconds(said.seconds)} here` : null].filter(Boolean).join(" · ");
}

export class Composer {
  #said = null;
  #active = -1;
  #asked = 0;

  constructor(store, onadd) {
    this.store = store;
    this.onadd = onadd;
    this.options = el(
      "ul",
      { class: "options", id: "completions", role: "listbox", "aria-label": "Completions", hidden: true },
    );
    this.caret = el("pre", { class: "caret", "aria-hidden": "true" });
    this.words = el("p", { class: "note", id: "composed" }, "Compose: smooth(ixg), consensus(coiba, gradcam)");
    this.input = el("input", {
      type: "text",
      class: "field code",
      placeholder: "consensus(coiba, …)",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: false,
      role: "combobox",
      "aria-label": "Compose a method",
      "aria-expanded": "false",
      "aria-controls": "completions",
      "aria-autocomplete": "list",
      "aria-describedby": "composed",
      onkeydown: (event) => this.#key(event),
      onblur: () => setTimeout(() => this.#close(), 150),
      onscroll: () => this.#place(),
    });
    const ask = settled(() => this.#ask(), 90);
    this.input.addEventListener("input", ask);
    this.add = button(
      icon("plus"),
      () => this.#add(),
      { class: "round", "aria-label": "Add this method", disabled: true },
    );
    this.node = el(
      "div",
      { class: "composer" },
      el("div", { class: "combo row" }, this.input, this.add, this.options),
      this.caret,
      this.words,
    );
  }

  /** Begin a spec, to be gone on with. */
  begin(text) {
    this.input.value = text;
    this.input.focus();
    this.#ask();
  }

  async #ask() {
    const spec = this.input.value;
    const mine = ++this.#asked;
    this.add.disabled = true;
    if (!spec.trim()) {
      this.#said = null;
      this.#close();
      this.caret.textContent = "";
      this.words.className = "note";
      this.words.textContent = "Compose: smooth(ixg), consensus(coiba, gradcam)";
      return;
    }
    let said;
    try {
      said = await api(
        "/api/method",
        { body: { model: this.store.model.name, spec, cursor: this.input.selectionStart } },
      );
    } catch (error) {
      said = { ok: false, error: { message: error.message, at: null }, completions: [] };
    }
    if (mine !== this.#asked) return;
    this.#said = said;
    this.add.disabled = !said.ok;
    this.#active = -1;
    this.#draw();
    this.#tell();
  }

  /** The cost, or what is wrong and where: a mark under the very character. */
  #tell() {
    const { ok, error } = this.#said;
    this.words.className = ok ? "note" : "note wrong";
    this.words.textContent = ok
      ? costWords(this.#said) + (this.#said.class_specific === false ? " · knows no class" : "")
      : sentence(error?.message ?? "this is no method");
    this.input.setAttribute("aria-invalid", String(!ok));
    this.caret.textContent = !ok && error && error.at !== null && error.at !== undefined
      ? " ".repeat(error.at) + "▲"
      : "";
    this.#place();
    if (!ok && document.activeElement === this.input) this.words.scrollIntoView({ block: "nearest" });
  }

  #place() {
    this.caret.style.transform = `translateX(${-this.input.scrollLeft}px)`;
  }

  #draw() {
    const found = this.#said?.completions ?? [];
    const open = found.length > 0 && document.activeElement === this.input;
    this.options.hidden = !open;
    this.input.setAttribute("aria-expanded", String(open));
    if (!open) return;
    placeBeside(this.options, this.input);
    fill(this.options, found.slice(0, 40).map(({ text, note }, place) =>
      el("li", {
        role: "option",
        id: `completion-${place}`,
        "aria-selected": String(place === this.#active),
        onpointerdown: (event) => { event.preventDefault(); this.#take(place); },
      },
        el("code", {}, text), el("small", {}, note ?? ""))));
    if (this.#active >= 0) {
      this.input.setAttribute("aria-activedescendant", `completion-${this.#active}`);
      this.options.children[this.#active].scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  #take(place) {
    const { text, start, end } = this.#said.completions[place];
    const { value } = this.input;
    this.input.value = value.slice(0, start) + text + value.slice(end);
    const cursor = start + text.length;
    this.input.setSelectionRange(cursor, cursor);
    this.#close();
    this.#ask();
  }

  #close() {
    this.options.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  async #add() {
    await this.#ask();
    if (!this.#said?.ok) return;
    const { spec } = this.#said;
    this.input.value = "";
    this.#ask();
    this.onadd(spec);
  }

  #key(event) {
    const found = Math.min(40, this.#said?.completions?.length ?? 0);
    const open = !this.options.hidden && found > 0;
    if (event.key === "Escape") {
      if (open) event.stopPropagation();
      this.#close();
    } else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const by = event.key === "ArrowDown" ? 1 : -1;
      this.#active = this.#active < 0 && by < 0 ? found - 1 : (this.#active + by + found) % found;
      this.#draw();
    } else if (open && event.key === "Tab" && !event.shiftKey) {
      event.preventDefault();
      this.#take(Math.max(0, this.#active));
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (open && this.#active >= 0) this.#take(this.#active);
      else this.#add();
    }
  }
}
