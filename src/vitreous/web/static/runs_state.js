// The address of every view of a run: what is on the screen is in it, and nothing else.

/** Every name in the address, with what is meant where it is missing. */
const BLANK = Object.freeze({
  view: "table", // table, scatter, cell, picture
  part: "0", // model and data set
  sort: "", // a column of the table
  way: "", // ascending or descending
  method: "", metric: "", // a cell
  order: "worst", // or best
  page: "0",
  predicted: "", true: "", low: "", high: "", correct: "", name: "", // which pictures
  picture: "",
  of: "methods", // what the points of a scatter are: methods or pictures
  x: "", xm: "", y: "", ym: "", // methods and metrics of its axes
  opacity: "",
});

const VIEWS = ["table", "scatter", "cell", "picture"];
const FILTERS = ["predicted", "true", "low", "high", "correct", "name"];

/** Read a state from the parameters of an address; what is not known is left out. */
export function readRun(parameters) {
  const given = parameters instanceof URLSearchParams ? Object.fromEntries(parameters) : { ...parameters };
  const state = { ...BLANK };
  for (const name of Object.keys(BLANK)) if (typeof given[name] === "string") state[name] = given[name];
  if (!VIEWS.includes(state.view)) state.view = "table";
  if (!/^\d{1,6}$/.test(state.part)) state.part = "0";
  if (!/^\d{1,6}$/.test(state.page)) state.page = "0";
  if (state.order !== "best") state.order = "worst";
  if (state.of !== "pictures") state.of = "methods";
  if (!["", "yes", "no"].includes(state.correct)) state.correct = "";
  for (const name of ["predicted", "true"]) if (!/^\d{0,9}$/.test(state[name])) state[name] = "";
  const share = (text) => Number(text) >= 0 && Number(text) <= 1;
  for (const name of ["low", "high", "opacity"]) if (!share(state[name])) state[name] = "";
  return state;
}

/** The address of a state, without what is meant anyway. */
export function runAddress(id, state) {
  const said = Object.entries(BLANK)
    .filter(([name, blank]) => state[name] !== undefined && String(state[name]) !== blank)
    .map(([name]) => `${name}=${encodeURIComponent(state[name])}`);
  return `#/run/${encodeURIComponent(id)}${said.length ? `?${said.join("&")}` : ""}`;
}

/** The state of another view, with what both have in common: the part, the cell, the filters. */
export function moved(state, changes) {
  return { ...state, ...changes };
}

/** What the server is told about which pictures are wanted. */
export function filtersOf(state) {
  return Object.fromEntries(FILTERS.filter((name) => state[name] !== "").map((name) => [name, state[name]]));
}

/** No filter at all. */
export const UNFILTERED = Object.freeze(Object.fromEntries(FILTERS.map((name) => [name, ""])));

/** The part of a run that a state shows; the first where there is no such part. */
export function partOf(table, state) {
  return table.parts[Number(state.part)] ?? table.parts[0];
}

/** The method and metric of a state, or the first of the part. */
export function cellOf(part, state) {
  const method = part.methods.find((each) => each.name === state.method) ?? part.methods[0];
  const metric = part.metrics.find((each) => each.name === state.metric) ?? part.metrics[0];
  return { method, metric };
}
