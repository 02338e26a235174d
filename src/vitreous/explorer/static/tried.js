// The claim of a map, tried: the picture, the picture without its evidence, the evidence alone. Linked to the slider.

import { el, percent } from "./common.js";
import { button } from "./parts.js";

/** By its colour: less than before, more than before, or much the same. */
export function changed(now, before) {
  if (now === null || before === null) return "";
  return now < 0.8 * before ? "less" : now > 1.25 * before ? "more" : "";
}

export class Tried {
  constructor(store, test) {
    this.store = store;
    this.test = test;
    this.words = el("p", { class: "note said" });
    this.whole = this.#card("the picture", () => ({ k: 0, keep: false }));
    this.without = this.#card("without its evidence", () => ({ k: store.k || null, keep: false }));
    this.alone = this.#card("the evidence alone", () => ({ k: store.k || null, keep: true }));
    const cards = [this.whole, this.without, this.alone].map((each) => each.node);
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
    const said = el("span", { class: "note" }, words);
    const chance = el("b", { class: "big" });
    const show = () => this.store.set({ ...state(), mask: null }, { replace: true });
    const node = button([picture, said, chance], show, { class: "card tried", title: "Show this at the slider" });
    return { node, picture, said, chance, words };
  }

  update(label) {
    const { store, test } = this;
    const { k, count } = store;
    const { keep, mask } = store.state;
    this.words.textContent =
      `The strongest ${k} of ${count} patches, taken away and left alone. ` +
      `Under each: what the model gives ${label} for exactly this picture. The slider moves them.`;
    const before = store.probability(store.target);
    this.#show(this.whole, { picture: store.image.src, top: store.prediction.top, probability: before }, true, before);
    this.whole.node.setAttribute("aria-pressed", String(k === 0));
    const there = test.patches() !== null;
    for (const [card, alone] of [[this.without, false], [this.alone, true]]) {
      const look = there ? test.look(card.words, test.gone(k, alone)) : { answer: null, fresh: false };
      this.#show(card, look.answer, look.fresh, before);
      card.node.setAttribute("aria-pressed", String(keep === alone && mask === null && k > 0));
    }
  }

  #show(card, answer, fresh, before) {
    card.picture.classList.toggle("stale", !fresh);
    const picture = answer?.picture ?? this.store.image.src;
    if (card.picture.src !== picture) card.picture.src = picture;
    const still = card !== this.whole && answer?.top[0].index === this.store.predicted.index ? "still " : "";
    card.said.textContent = answer ? `${card.words}: ${still}“${answer.top[0].label}”` : card.words;
    card.chance.textContent = answer ? percent(answer.probability ?? NaN) : "…";
    card.chance.className = `big ${answer ? changed(answer.probability, before) : ""}`;
  }
}
