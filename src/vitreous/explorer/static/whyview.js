// Why did it say that? The first thing one sees: an answer in a sentence, the map, the proof, the doubts. All of it is live.

import { el, fill, percent } from "./common.js";
import { drawOwners } from "./maps.js";
import { button, copy, findings, icon, Place } from "./parts.js";
import { Legend, MapCanvas } from "./tile.js";

export class WhyView {
  #rivals = "";

  constructor(store, test) {
    this.store = store;
    this.test = test;
    const again = (task) => ({ oncancel: () => store.answers.cancel(task().key), onagain: () => store.again(task()) });
    this.lead = el("p", { class: "lead" });
    this.map = new MapCanvas(store, { side: 640 });
    this.mapPlace = new Place("the map", again(() => this.#map));
    this.legend = new Legend();
    this.note = el("p", { class: "note" });
    this.trustPlace = new Place("the answer", again(() => this.#why));
    this.tried = ["the picture", "without its evidence", "the evidence alone"].map((words, place) => this.#card(words, place));
    this.contrast = new MapCanvas(store);
    this.contrastPlace = new Place("the contrast", again(() => this.#versus));
    this.contrastLegend = new Legend();
    this.contrastTitle = el("h2", {});
    this.rivals = el("div", { class: "chips", role: "group", "aria-label": "Contrast with" });
    this.contrastCard = el("section", { class: "card" }, this.contrastTitle, el("p", { class: "note" }, "What speaks for the one rather than for the other."),
      el("div", { class: "over" }, this.contrast.node, this.contrastPlace.node), this.contrastLegend.node, this.rivals);
    this.owners = el("canvas", { role: "img" });
    this.ownersKeys = el("div", { class: "keys" });
    this.ownersCard = el("section", { class: "card" }, el("h2", {}, "Who owns which patch?"), el("p", { class: "note" }, "The class with the stronger evidence; grey where neither has much."),
      el("div", { class: "over" }, el("div", { class: "map" }, this.owners)), this.ownersKeys, button("compare more classes", () => store.set({ view: "owners" }), { class: "link" }));
    this.command = el("pre", {});
    this.settings = el("p", { class: "note" });
    this.node = el("div", { class: "view why" },
      this.lead,
      el("div", { class: "grid answer" },
        el("section", { class: "card", "aria-label": "The map" }, el("div", { class: "over" }, this.map.node, this.mapPlace.node), this.legend.node, this.note),
        el("section", { class: "card trusted" }, el("h2", {}, "Can this map be trusted?"), this.trustPlace.node)),
      el("section", {}, el("div", { class: "head" }, el("h2", {}, "Put to the test"), el("p", { class: "note", id: "tried-words" })),
        el("div", { class: "grid three" }, this.tried.map((each) => each.node))),
      el("div", { class: "grid even" }, this.contrastCard, this.ownersCard),
      el("section", { class: "again" }, el("div", { class: "head" }, el("h2", {}, "Again"), button([icon("copy"), "copy"], () => copy(this.command.textContent), { class: "link" })), this.command, this.settings));
  }

  #card(words, place) {
    const picture = el("img", { alt: words, width: 224, height: 224 });
    const said = el("span", { class: "note" }), chance = el("b", { class: "big" });
    const node = button([picture, said, chance], () => this.store.set({ k: place === 0 ? 0 : this.store.k || null, keep: place === 2, mask: null }, { replace: true }),
      { class: "card tried", title: place === 0 ? "Show the whole picture at the slider" : "Show this at the slider" });
    return { node, picture, said, chance, words };
  }

  // -- questions -----------------------------------------------------------------------------------------

  /** The map of the class itself: the contrast has a card of its own here. */
  get #map() {
    return this.store.explain(this.store.chosen, { against: null });
  }

  get #why() {
    return this.store.task("why", this.store.question(this.store.chosen, { against: null }));
  }

  /** The class to hold against: the one that was chosen, or else the most probable other one. */
  get rival() {
    const { store } = this;
    return store.against ?? store.prediction?.top.find((each) => each.index !== store.target)?.index ?? null;
  }

  get #versus() {
    return this.store.explain(this.store.chosen, { against: this.rival });
  }

  get #specific() {
    const result = this.store.result(this.#map);
    return result ? result.class_specific : true;
  }

  tasks() {
    if (!this.store.prediction) return [];
    const wanted = [this.#map, this.#why];
    if (this.rival !== null && this.#specific && this.store.result(this.#map)) wanted.push(this.#versus);
    return wanted;
  }

  questions() {
    const { key, alone, kind, ...question } = this.#map;
    return [question];
  }

  tested() {
    const { key, alone, kind, ...question } = this.#map;
    const result = this.store.result(this.#map);
    return { name: this.store.chosen, key, question, array: result?.map ?? null, checkable: true };
  }

  // -- what is seen --------------------------------------------------------------------------------------

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const label = store.label(store.target);
    const map = store.result(this.#map), why = store.answer(this.#why);
    const answer = why?.status === "done" ? why.result : null;
    const chance = store.probability(store.target);
    this.lead.textContent = answer?.lead ?? `${store.model.title ?? store.model.name} gives this picture ${chance === null ? "little" : percent(chance)} ${label}.`;
    const scale = this.map.draw(map?.map ?? null, { ...store.look, signed: map?.signed ?? null }, map ? `${map.caption}. Arrow keys read patches.` : "The picture");
    this.mapPlace.update(store.answer(this.#map), () => []);
    this.legend.update(scale, scale?.signed ? "against" : "little", scale?.signed ? `for ${label}` : "much");
    this.note.textContent = !map ? "\u00a0" : this.#note(map, scale, label);
    this.trustPlace.update(why, (found) => [el("p", { class: "verdict" }, found.trust_text), findings(found.trust)]);
    this.#try(label);
    this.#contrast(label);
    this.#owned(answer);
    this.command.textContent = answer?.command ?? "…";
    this.settings.textContent = answer?.settings ?? "";
  }

  #note(map, scale, label) {
    if (!map.class_specific) return "This method knows no class: the map would be the same for any.";
    return scale.signed ? `Red patches speak for ${label}, blue ones against it. The strongest patch sets the scale.` : "The strongest patch sets the scale.";
  }

  #try(label) {
    const { store, test } = this;
    const [whole, without, alone] = this.tried;
    const first = store.probability(store.target);
    whole.picture.src = store.image.src;
    whole.said.textContent = `the picture: “${store.predicted.label}”`;
    whole.chance.textContent = first === null ? "–" : percent(first);
    const { k } = store;
    const words = document.getElementById("tried-words");
    if (words) words.textContent = `The strongest ${k} of ${store.count} patches, taken away and left alone; under each, what the model gives ${label} for exactly this picture. The slider is linked.`;
    if (!test.patches()) {
      for (const each of [without, alone]) Object.assign(each.picture, { src: store.image.src }), each.picture.classList.add("stale"), (each.said.textContent = each.words), (each.chance.textContent = "…");
      return;
    }
    for (const [card, keep] of [[without, false], [alone, true]]) {
      const { answer, fresh } = test.look(keep ? "alone" : "without", test.gone(k, keep));
      card.picture.classList.toggle("stale", !fresh);
      if (!answer) continue;
      if (card.picture.src !== answer.picture) card.picture.src = answer.picture;
      const still = answer.top[0].index === store.predicted.index ? "still " : "";
      card.said.textContent = `${card.words}: ${still}“${answer.top[0].label}”`;
      card.chance.textContent = percent(answer.probability);
      card.chance.className = `big ${first !== null && answer.probability < 0.8 * first ? "less" : first !== null && answer.probability > 1.25 * first ? "more" : ""}`;
      card.node.setAttribute("aria-pressed", String(store.state.keep === keep && store.state.mask === null));
    }
    whole.node.setAttribute("aria-pressed", String(store.k === 0));
  }

  #contrast(label) {
    const { store, rival } = this;
    this.contrastCard.hidden = rival === null || !this.#specific;
    if (this.contrastCard.hidden) return;
    const other = store.label(rival);
    this.contrastTitle.textContent = `Why not “${other}”?`;
    const result = store.result(this.#versus);
    const scale = this.contrast.draw(result?.map ?? null, { ...store.look, positive: false, signed: result?.signed ?? null }, result ? `${result.caption}. Arrow keys read patches.` : "The picture");
    this.contrastPlace.update(store.answer(this.#versus), () => []);
    this.contrastLegend.update(scale, scale?.signed ? other : "little", scale?.signed ? label : "much");
    const choices = store.prediction.top.filter((each) => each.index !== store.target).slice(0, 4);
    const now = JSON.stringify([choices, rival]);
    if (now === this.#rivals) return;
    this.#rivals = now;
    fill(this.rivals, choices.map((each) => button(each.label, () => store.set({ against: each.index }), { class: "pill small", "aria-pressed": String(each.index === rival) })));
  }

  #owned(answer) {
    const owned = answer?.owners;
    this.ownersCard.hidden = !owned;
    if (!owned || this.ownersDrawn === owned) return;
    this.ownersDrawn = owned;
    drawOwners(this.owners, this.store.image, owned.distribution, owned.strength, owned.classes.map((each) => each.colour), 448);
    this.owners.setAttribute("aria-label", `Which of ${owned.classes.map((each) => each.label).join(" and ")} owns which patch`);
    fill(this.ownersKeys, owned.classes.map((each) => el("span", { class: "owner" }, el("s", { style: { background: each.colour } }), each.label)));
  }
}
