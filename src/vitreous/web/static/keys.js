// Keys: one letter each, listed under "?"; they can be switched off, for those whose tools use letters.

import { el, fill } from "./common.js";
import { button, icon } from "./parts.js";

export class Keys {
  #groups = [];
  #bound = new Map();
  page = "image";

  constructor() {
    this.on = sessionStorage.getItem("keys") !== "off";
    this.dialog = el("dialog", { class: "sheet", "aria-labelledby": "keys-title" });
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  /** `[["S", "one scale for all maps", call], …]` for a page; a line without a call only tells. */
  group(page, title, lines) {
    this.#groups.push({ page, title, lines });
    for (const [keys, , call] of lines) if (call) for (const key of keys.split(" ")) this.#bound.set(page + key, call);
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = event.target.closest?.("input:not([type=range], [type=checkbox]), textarea, select");
    if (typing || document.querySelector("dialog[open]")) return;
    const call = this.#bound.get(this.page + (event.key.length === 1 ? event.key.toUpperCase() : event.key));
    if (!call || (!this.on && event.key.length === 1 && event.key !== "?")) return;
    event.preventDefault();
    call();
  }

  show() {
    const toggle = el("input", { type: "checkbox", checked: this.on, onchange: () => {
      this.on = toggle.checked;
      sessionStorage.setItem("keys", this.on ? "on" : "off");
    } });
    const close = button(icon("cross"), () => this.dialog.close(), { class: "round", "aria-label": "Close" });
    const line = ([keys, words]) =>
      el("div", {}, el("dt", {}, keys.split(" ").map((key) => el("kbd", {}, shown(key)))), el("dd", {}, words));
    const group = ({ title, lines }) => el("section", {}, el("h3", {}, title), el("dl", {}, lines.map(line)));
    fill(
      this.dialog,
      el("div", { class: "head" }, el("h2", { id: "keys-title" }, "Keys"), close),
      el("div", { class: "keylist" }, this.#groups.filter(({ page }) => page === this.page).map(group)),
      el("label", { class: "note tick" }, toggle, "Keys of one letter do something"),
    );
    this.dialog.showModal();
  }
}

function shown(key) {
  return { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" }[key] ?? key;
}
