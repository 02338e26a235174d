// Why did it say that? The first thing one sees: an answer in a sentence, the map, the proof, the doubts; all live.

import { el, fill, percent, remake } from "./common.js";
import { drawOwners } from "./maps.js";
import { button, copy, findings, icon, Place } from "./parts.js";
import { Legend, MapCanvas } from "./tile.js";
import { Tried } from "./tried.js";

export class WhyView {
  constructor(store, test) {
    this.store = store;
    this.test = test;
    this.lead = el("p", { class: "lead" });
    this.map = new MapCanvas(store, { side: 640 });
    this.mapPlace = new Place("the map", store.ways(() => this.#map));
    this.legend = new Legend();
    this.note = el("p", { class: "note" });
    this.trustPlace = new Place("the answer", store.ways(() => this.#why));
    this.tried = new Tried(store, test);
    this.versus = new ContrastCard(store, store.ways(() => this.#versus));
    this.owners = new OwnersCard(store);
    this.command = el("pre", { tabindex: "0", "aria-label": "The command that gives this page" });
    this.settings = el("p", { class: "note" });
    this.node = el("div", { class: "view why" }, this.#parts());
  }

  #parts() {
    const over = el("div", { class: "over" }, this.map.node, this.mapPlace.node);
    const map = el("section", { class: "card", "aria-label": "The map" }, over, this.legend.node, this.note);
    const trust = el(
      "section",
      { class: "card trusted" },
      el("h2", {}, "Can this map be trusted?"),
      this.trustPlace.node,
    );
    const taken = button([icon("copy"), "copy"], () => copy(this.command.textContent), { class: "link" });
    const again = el("div", { class: "head" }, el("h2", {}, "Again"), taken);
    return [
      el("div", { class: "grid answer" }, map, trust),
      this.tried.node,
      el("div", { class: "grid even" }, this.versus.node, this.owners.node),
      el("section", { class: "again" }, again, this.command, this.settings),
    ];
  }

  // -- questions -----------------------------------------------------------------------------------------

  /** The map of the class itself: the contrast has a card of its own here. */
  get #map() {
    return this.store.explain(this.store.chosen, { contrast: null });
  }

  get #why() {
    return this.store.task("why", this.store.question(this.store.chosen, { contrast: null }));
  }

  get #versus() {
    return this.store.explain(this.store.chosen, { contrast: this.rival });
  }

  /** The class to hold against: the one that was chosen, or else the most probable other one. */
  get rival() {
    const { store } = this;
    return store.contrast ?? store.prediction?.top.find((item) => item.index !== store.target)?.index ?? null;
  }

  /** Whether a contrast means anything: there is another class, and the method knows classes. */
  get #contrasts() {
    return this.rival !== null && this.store.result(this.#map)?.class_specific === true;
  }

  tasks() {
    if (!this.store.prediction) return [];
    return [this.#map, ...(this.#contrasts ? [this.#versus] : [])];
  }

  /** What takes longest comes last: after the map, and after all that the map makes possible. */
  later() {
    const map = this.store.prediction ? this.store.answer(this.#map) : null;
    return map && map.status !== "waiting" && map.status !== "running" ? [this.#why] : [];
  }

  questions() {
    return [this.store.question(this.store.chosen, { contrast: null })];
  }

  tested() {
    const array = this.store.result(this.#map)?.map ?? null;
    return { name: this.store.chosen, key: this.#map.key, question: this.questions()[0], array, checkable: true };
  }

  // -- what is seen --------------------------------------------------------------------------------------

  update() {
    const { store } = this;
    if (!store.prediction) return;
    const label = store.label(store.target);
    const map = store.result(this.#map);
    const answer = store.result(this.#why);
    this.lead.textContent = answer?.lead ?? this.#first(label);
    const look = { ...store.look, signed: map?.signed ?? null };
    const scale = this.map.draw(
      map?.map ?? null,
      look,
      map ? `${map.caption}. Arrow keys read patches.` : "The picture",
    );
    this.mapPlace.update(store.answer(this.#map), () => []);
    this.legend.update(scale, scale?.signed ? "against" : "little", scale?.signed ? `for ${label}` : "much");
    this.note.textContent = map ? this.#note(map, scale, label) : "\u00a0";
    this.trustPlace.update(store.answer(this.#why), (content) => [
      el("p", { class: "verdict" }, content.trust_text),
      findings(content.trust),
    ]);
    this.tried.update(label, answer);
    this.versus.update(this.rival, this.#versus, this.#contrasts || !map);
    this.owners.update(answer?.owners);
    this.command.textContent = answer?.command ?? "…";
    this.settings.textContent = answer?.settings ?? "";
  }

  /** What can be said before the answer is there: what the model gives. */
  #first(label) {
    const { store } = this;
    const { name } = store.model;
    const now = percent(store.probability(store.target) ?? 0);
    if (store.target === store.predicted.index) return `${name} gives this picture ${now} ${label}.`;
    const [best] = store.prediction.top;
    return `${name} says “${best.label}” (${percent(best.probability)}); it gives ${label} ${now}.`;
  }

  #note(map, scale, label) {
    if (!map.class_specific) return "This method knows no class: the map would be the same for any.";
    const sides = scale.signed ? ` Red patches speak for ${label}, blue ones against it.` : "";
    return `The strongest patches set the scale.${sides}`;
  }
}

/** What speaks for the class rather than for another one, which can be chosen. */
class ContrastCard {
  constructor(store, ways) {
    this.store = store;
    this.map = new MapCanvas(store);
    this.place = new Place("the contrast", ways);
    this.legend = new Legend();
    this.title = el("h2", {});
    this.contrasts = el("div", { class: "chips", role: "group", "aria-label": "Contrast with" });
    const over = el("div", { class: "over" }, this.map.node, this.place.node);
    const words = el("p", { class: "note" }, "What speaks for the one rather than for the other.");
    this.node = el("section", { class: "card" }, this.title, words, over, this.legend.node, this.contrasts);
  }

  update(rival, task, there) {
    const { store } = this;
    this.node.hidden = rival === null || !there;
    if (this.node.hidden) return;
    const label = store.label(store.target);
    const other = store.label(rival);
    const result = store.result(task);
    const predicted = store.target === store.predicted.index;
    this.title.textContent = predicted ? `Why not “${other}”?` : `“${label}” rather than “${other}”`;
    const look = { ...store.look, positive: false, signed: result?.signed ?? null };
    const words = result ? `${result.caption}. Arrow keys read patches.` : "The picture";
    const scale = this.map.draw(result?.map ?? null, look, words);
    this.place.update(store.answer(task), () => []);
    this.legend.update(scale, scale?.signed ? other : "little", scale?.signed ? label : "much");
    const choices = store.prediction.top.filter((item) => item.index !== store.target).slice(0, 4);
    remake(this.contrasts, JSON.stringify([choices, rival]), () => choices.map((item) => this.#choice(item, rival)));
  }

  #choice({ index, label }, rival) {
    const on = String(index === rival);
    return button(label, () => this.store.set({ contrast: index }), { class: "pill small", "aria-pressed": on });
  }
}

/** Which of two classes owns which patch, where both are probable. */
class OwnersCard {
  #drawn = null;

  constructor(store) {
    this.store = store;
    this.canvas = el("canvas", { role: "img", "aria-label": "Who owns which patch" });
    this.keys = el("div", { class: "keys" });
    const words = el("p", { class: "note" }, "The class with the stronger evidence; grey where neither has much.");
    const over = el("div", { class: "over" }, el("div", { class: "map" }, this.canvas));
    const more = button("compare more classes", () => store.set({ view: "owners" }), { class: "link" });
    this.node = el("section", { class: "card" }, el("h2", {}, "Who owns which patch?"), words, over, this.keys, more);
  }

  update(owned) {
    this.node.hidden = !owned;
    if (!owned || owned === this.#drawn) return;
    this.#drawn = owned;
    const { classes, distribution, strength } = owned;
    drawOwners(this.canvas, this.store.image, distribution, strength, classes.map((item) => item.colour), 448);
    const names = classes.map((item) => item.label).join(" and ");
    this.canvas.setAttribute("aria-label", `Which of ${names} owns which patch`);
    const swatch = (colour) => el("s", { style: { background: colour } });
    fill(this.keys, classes.map(({ colour, label }) => el("span", { class: "owner" }, swatch(colour), label)));
  }
}
