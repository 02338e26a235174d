// Small parts that many views are made of: buttons, choices, bars, problems, icons.

import { brief, el, fill, svg } from "./common.js";

const PATHS = {
  cross: "M4 4l8 8M12 4l-8 8",
  plus: "M8 3v10M3 8h10",
  swap: "M3 6h9l-3-3M13 10H4l3 3",
  photo: "M2.5 4.5h11v8h-11zM5.5 7.5h.01M4 12l3.5-3.5 2 2L11.5 8l2 2",
  scenes: "M2.5 2.5h4.5v4.5H2.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5H2.5zM9 9h4.5v4.5H9z",
  save: "M8 2.5v7.5M4.8 7L8 10.2 11.2 7M3 13h10",
  light:
    "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6" +
    "M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M3.2 12.8l1.1-1.1M11.7 4.3l1.1-1.1",
  dark: "M13 9.6A5.6 5.6 0 0 1 6.4 3 5.6 5.6 0 1 0 13 9.6z",
  pen: "M3 13l.8-3L10.5 3.3l2.2 2.2L6 12.2z",
  again: "M12.8 8A4.8 4.8 0 1 1 11.2 4.4M11.4 1.8v2.8H8.6",
  copy: "M5.5 5.5h7.5v7.5H5.5zM10.5 5.5V3H3v7.5h2.5",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

export function button(words, onclick, properties = {}) {
  return el("button", { type: "button", onclick, ...properties }, words);
}

/** A few choices of which one holds. `update(value)` shows which. */
export function choice(name, options, onchoose) {
  const buttons = options.map(
    ([value, words, title]) => button(
      words,
      () => onchoose(value),
      { class: "seg", title: title ?? null, dataset: { value: String(value) } },
    ),
  );
  const node = el("div", { class: "segments", role: "group", "aria-label": name }, buttons);
  const update = (value) => {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.value === String(value)));
  };
  return { node, update };
}

/** A slider with its name and its value in words. */
export function slider(name, { min, max, step, words, title, oninput, onchange }) {
  const input = el(
    "input",
    {
      type: "range",
      min,
      max,
      step,
      title: title ?? null,
      oninput: () => oninput(Number(input.value)),
      onchange: () => onchange?.(Number(input.value)),
    },
  );
  const value = el("output", {});
  const node = el("label", { class: "slide" }, el("span", {}, name), input, value);
  const update = (now) => {
    if (document.activeElement !== input || Number(input.value) !== now) input.value = now;
    value.textContent = words(now);
    input.setAttribute("aria-valuetext", words(now));
    filled(input);
  };
  return { node, input, update };
}

/** The part of a slider left of its thumb has the colour. */
export function filled(input) {
  const share = (Number(input.value) - Number(input.min)) / (Number(input.max) - Number(input.min) || 1);
  input.style.setProperty("--share", `${100 * share}%`);
}

/** Put a list beside its box, below or above, wherever there is room; what scrolls around it does not cut it off. */
export function placeBeside(list, input) {
  const box = input.getBoundingClientRect();
  const below = innerHeight - box.bottom - 16, above = box.top - 16;
  const up = below < 240 && above > below;
  const wide = Math.min(innerWidth - 16, Math.max(box.width, 340));
  Object.assign(list.style, {
    left: `${Math.min(box.left, innerWidth - wide - 8)}px`,
    width: `${wide}px`,
    top: up ? "auto" : `${box.bottom + 5}px`,
    bottom: up ? `${innerHeight - box.top + 5}px` : "auto",
    maxHeight: `${Math.min(340, up ? above : below)}px`,
  });
}

/** What went wrong, where it went wrong, and what can be done. */
export function problem(words, again = null, label = "Try again") {
  return el(
    "div",
    { class: "problem", role: "alert" },
    el("p", {}, sentence(words)),
    again && button([icon("again"), label], again, { class: "quiet" }),
  );
}

export function sentence(words) {
  const text = String(words).trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
}

/** Probabilities as bars: a fixed number of rows, so that nothing jumps. */
export class Bars {
  constructor(rows) {
    this.rows = Array.from({ length: rows }, () => {
      const name = el("b", {}), now = el("i", {}), before = el("u", {}), value = el("span", {});
      return {
        node: el("li", { class: "bar" }, name, el("div", { class: "track" }, now, before), value),
        name,
        now,
        before,
        value,
      };
    });
    this.node = el("ol", { class: "bars" }, this.rows.map((row) => row.node));
  }

  /** `top`: `[{index, label, probability}]`; `roles`: index to "on" or "off"; `was`: index to what it was before. */
  update(top, roles = () => "", was = () => null) {
    this.rows.forEach((row, place) => {
      const each = top?.[place];
      row.node.className = `bar ${each ? roles(each.index) : "blank"}`;
      row.name.textContent = each?.label ?? "\u00a0";
      row.name.title = each?.label ?? "";
      row.value.textContent = each ? brief(each.probability) : "";
      row.now.style.width = each ? `${100 * each.probability}%` : "0";
      const before = each ? was(each.index) : null;
      row.before.hidden = before === null;
      if (before !== null) row.before.style.left = `${100 * before}%`;
    });
  }
}

/** Findings about a map: a word, its verdict, a sentence. */
export function findings(tests) {
  return el("ul", { class: "findings" }, tests.filter((each) => each.verdict !== "-").map((each) =>
    el(
      "li",
      {},
      el("b", { class: `tag ${each.verdict}` }, each.word ?? each.name),
      el("span", {}, sentence(each.sentence)),
    ),
  ));
}

/** How far a question is, in words. */
export function progressWords(entry) {
  if (!entry || entry.status === "waiting") {
    return entry?.before ? `waiting, ${entry.before} before it` : "waiting";
  }
  const left = entry.done > 0.05 ? (entry.seconds * (1 - entry.done)) / entry.done : null;
  const time = left === null || left < 0.8
    ? ""
    : left < 90 ? `, about ${Math.ceil(left)} s left` : `, about ${Math.round(left / 60)} min left`;
  return `${Math.round(100 * entry.done)} %${time}`;
}

/** A bar of progress with its words and a way to stop it. */
export class Progress {
  constructor(what, oncancel) {
    this.bar = el(
      "div",
      { class: "progress", role: "progressbar", "aria-label": what, "aria-valuemin": "0", "aria-valuemax": "100" },
      el("i", {}),
    );
    this.words = el("span", {});
    this.node = el(
      "div",
      { class: "working" },
      this.bar,
      el(
        "div",
        { class: "row" },
        this.words,
        button("cancel", oncancel, { class: "link", "aria-label": `Cancel: ${what}` }),
      ),
    );
  }

  update(entry) {
    const done = entry?.done ?? 0;
    this.bar.firstChild.style.width = `${Math.max(2, 100 * done)}%`;
    this.bar.setAttribute("aria-valuenow", String(Math.round(100 * done)));
    this.bar.classList.toggle("unsure", entry?.status !== "running" || done === 0);
    this.words.textContent = progressWords(entry);
  }
}

/**
 * What stands where an answer will be: progress, a problem, a cancelled question, or the answer. `body(result)` makes
 * the answer's content, once.
 */
export class Place {
  #shown = null;
  #status = "";

  constructor(what, { oncancel, onagain }) {
    this.progress = new Progress(what, oncancel);
    this.onagain = onagain;
    this.node = el("div", { class: "place", "aria-busy": "false" });
  }

  #cancelled() {
    const said = problem("Cancelled", this.onagain, "Run it");
    said.classList.add("calm");
    return said;
  }

  update(entry, body) {
    const busy = !entry || entry.status === "waiting" || entry.status === "running";
    const status = busy ? "busy" : entry.status;
    if (busy) this.progress.update(entry);
    if (status === this.#status && (busy || entry === this.#shown)) return;
    this.#shown = entry;
    this.#status = status;
    this.node.setAttribute("aria-busy", String(busy));
    if (busy) fill(this.node, this.progress.node);
    else if (status === "error") fill(this.node, problem(entry.message, this.onagain));
    else if (status === "cancelled") fill(this.node, this.#cancelled());
    else fill(this.node, body(entry.result));
  }
}

/** Put text on the clipboard; also where the page is not served over a secure address. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = el("textarea", { value: text, class: "unseen" });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}
