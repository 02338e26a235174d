// The claim of a map, tried: the picture, without the strongest patches, with these alone. Linked to the slider.

import { el, percent, printed } from "./common.js";
import { button } from "./parts.js";

/** By its colour: less than before, more than before, or much the same. */
export function changed(now, before) {
  if (now === null || before === null) return "";
  const [then, first] = [printed(now), printed(before)];
  return then < 0.8 * first ? "less" : then > 1.25 * first ? "more" : "";
}

export class Tried {
  constructor(store, test) {
    this.store = store;
    this.test = test;
    this.words = el("p", { class: "note said" });
    this.original = this.#card("the picture", () => ({ k: 0, keep: false }));
    this.without = this.#card("without the strongest patches", () => ({ k: store.k || null, keep: false }));
    this.alone = this.#card("the strongest patches alone", () => ({ k: store.k || null, keep: true }));
    const cards = [this.original, this.without, this.alone].map((item) => item.node);
    this.node = el(
      "section",
      {},
      el("h2", {}, "Put to the test"),
      this.words,
      el("div", { class: "grid three" }, cards),
    );
  }

  #card(words, state) {
    const picture = el("img", { alt: "", width: 224, height: 224 });
    const caption = el("span", { class: "note" }, words);
    const chance = el("b", { class: "big" });
    const others = el("span", { class: "note", hidden: true });
    const show = () => this.store.set({ ...state(), mask: null }, { replace: true });
    const options = { class: "card tried", title: "Show this at the slider" };
    const node = button([picture, caption, chance, others], show, options);
    return { node, picture, caption, chance, others, words };
  }

  /** `found`: the answer, about the strongest fifth, blurred; what it says is shown while the slider is there. */
  update(label, result = null) {
    const { store, test } = this;
    const { k, count } = store;
    const { keep, mask } = store.state;
    const same = store.state.fill === "blur" && k === Math.max(1, Math.round(0.2 * count));
    this.words.textContent =
      `The strongest ${k} of ${count} patches, taken away and left alone. ` +
      `Under each: what the model gives ${label} for exactly this picture. The slider moves them.` +
      (same && result?.criterion ? ` ${result.criterion}` : "");
    const before = store.probability(store.target);
    const first = { picture: store.image.src, top: store.prediction.top, probability: before };
    this.#show(this.original, first, true, before);
    this.original.node.setAttribute("aria-pressed", String(k === 0));
    const there = test.patches() !== null;
    for (const [card, alone] of [[this.without, false], [this.alone, true]]) {
      const note = same ? result?.notes[alone ? 2 : 1] : null;
      card.others.hidden = !note;
      card.others.textContent = note ?? "";
      const look = there ? test.look(card.words, test.gone(k, alone)) : { answer: null, fresh: false };
      this.#show(card, look.answer, look.fresh, before);
      card.node.setAttribute("aria-pressed", String(keep === alone && mask === null && k > 0));
    }
  }

  #show(card, answer, fresh, before) {
    card.picture.classList.toggle("stale", !fresh);
    const picture = answer?.picture ?? this.store.image.src;
    if (card.picture.src !== picture) card.picture.src = picture;
    const still = card === this.original ? "" : answer?.top[0].index === this.store.predicted.index ? "still " : "now ";
    card.caption.textContent = answer ? `${card.words}: ${still}“${answer.top[0].label}”` : card.words;
    card.chance.textContent = answer ? percent(answer.probability ?? NaN) : "…";
    card.chance.className = `big ${answer ? changed(answer.probability, before) : ""}`;
  }
}
