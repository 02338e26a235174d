// Which pictures: by class, by the model's confidence, by whether it was right, by name.

import { el, settled } from "./common.js";
import { button } from "./parts.js";
import { chooser } from "./runs_parts.js";
import { filtersOf, UNFILTERED } from "./runs_state.js";

const PATIENCE = 350; // milliseconds after the last letter
const RIGHT = [["", "right or wrong"], ["yes", "right"], ["no", "wrong"]];

/** A row of filters; `change` is told what is to change in the state. */
export function filterBar(part, state, change) {
  const set = (name, value) => change({ [name]: value, page: "0" });
  const some = Object.keys(filtersOf(state)).length > 0;
  const list = (words, name) => part.classes.some((each) => each[name])
    && chooser(words, classes(part, name), state[name], (value) => set(name, value), name);
  return el("div", { class: "filters", role: "search", "aria-label": "Which pictures" },
    list("said", "predicted"),
    list("is", "true"),
    el("div", { class: "choose" }, el("span", {}, "confidence, %"), el("span", { class: "fromto" },
      share(state, "low", "from", "0", set), "to", share(state, "high", "to", "100", set))),
    chooser("the model was", RIGHT, state.correct, (value) => set("correct", value), "correct"),
    el("label", { class: "choose" }, el("span", {}, "name"), sought(state, set)),
    some && all(change));
}

function all(change) {
  const properties = { class: "quiet", dataset: { key: "all" } };
  return button("all pictures", () => change({ ...UNFILTERED, page: "0" }), properties);
}

/** The classes that are there, each with the number of its pictures. */
function classes(part, name) {
  const there = part.classes.filter((each) => each[name]);
  return [["", "any class"], ...there.map((each) => [String(each.index), `${each.label} (${each[name]})`])];
}

/** A probability in percent. */
function share(state, name, words, usual, set) {
  const later = settled((value) => set(name, value), PATIENCE);
  const input = el("input", {
    type: "number", min: 0, max: 100, step: 1, inputmode: "numeric", placeholder: usual, dataset: { key: name },
    value: state[name] === "" ? "" : String(Math.round(Number(state[name]) * 100)),
    "aria-label": `confidence ${words} percent`,
    oninput: () => input.validity.valid && later(input.value === "" ? "" : String(Number(input.value) / 100)),
  });
  return input;
}

function sought(state, set) {
  const later = settled((value) => set("name", value), PATIENCE);
  const oninput = () => later(input.value);
  const input = el("input", { type: "search", value: state.name, maxlength: 200, dataset: { key: "name" }, oninput });
  return input;
}
