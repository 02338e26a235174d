// What is on the screen, as an address: every view can be shared, and back and forward work.

export const VIEWS = ["why", "maps", "layers", "heads", "owners"];

const WORD = { read: String, write: String };
const WHOLE = { read: (text) => (/^\d+$/.test(text) ? Number(text) : null), write: String };
const SHARE = {
  read: (text) => (Number.isFinite(Number(text)) ? Number(text) : null),
  write: (value) => String(Number(value.toFixed(4))),
};
const YES = { read: (text) => text === "1", write: (value) => (value ? "1" : "0") };
const LIST = { read: (text) => text.split(";").filter(Boolean), write: (value) => value.join(";") };
const NUMBERS = {
  read: (text) => text.split(",").map(Number).filter(Number.isInteger),
  write: (value) => value.join(","),
};

/** Every name in the address: how it is read and written, and what is meant where it is missing. */
const FIELDS = {
  view: [WORD, "why"], // one of VIEWS
  model: [WORD, null], // the first one
  picture: [WORD, null],
  target: [WHOLE, null], // the prediction
  contrast: [WHOLE, null],
  methods: [LIST, null], // those of the model
  chosen: [WORD, null], // the map that is put to the test: the first one
  k: [WHOLE, null], // patches: a fifth
  keep: [YES, false],
  fill: [WORD, "blur"],
  mask: [WORD, null], // patches drawn by hand, bits in base64
  layer: [WHOLE, null],
  head: [WHOLE, null],
  start: [WHOLE, null],
  base: [WORD, null],
  compareClasses: [NUMBERS, null],
  opacity: [SHARE, 0.55],
  clip: [SHARE, 99],
  positive: [YES, false],
  patches: [YES, false],
  shared: [YES, false],
  alone: [YES, false], // not beside the prediction
};

export const BLANK = Object.freeze(
  Object.fromEntries(Object.entries(FIELDS).map(([name, [, blank]]) => [name, blank])),
);

/** `#/image?…` to a state; what cannot be read is as if it were missing. */
export function readState(parameters) {
  const state = { ...BLANK };
  for (const [name, [kind]] of Object.entries(FIELDS)) {
    const text = parameters.get(name);
    if (text !== null) state[name] = kind.read(text) ?? BLANK[name];
  }
  if (!VIEWS.includes(state.view)) state.view = "why";
  if (!["blur", "mean", "black"].includes(state.fill)) state.fill = "blur";
  state.opacity = Math.min(1, Math.max(0, state.opacity));
  state.clip = Math.min(100, Math.max(50, state.clip));
  return state;
}

/** A state to `#/image?…`, without what is meant anyway. */
export function writeState(state) {
  const said = Object.entries(FIELDS)
    .filter(([name, [, blank]]) => state[name] !== blank && state[name] !== null)
    .map(([name, [kind]]) => `${name}=${readable(kind.write(state[name]))}`);
  return "#/image" + (said.length ? `?${said.join("&")}` : "");
}

function readable(text) {
  return encodeURIComponent(text).replaceAll("%2C", ",").replaceAll("%3B", ";").replaceAll("%3D", "=");
}

/** `#/run/<id>?…` to `{page: "run", id, parameters}`, everything else to `{page: "image", parameters}`. */
export function readHash(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parameters = new URLSearchParams(query.replaceAll("+", "%2B"));
  const [page, ...rest] = path.split("/");
  if (page === "run" && rest.length) return { page, id: decoded(rest.join("/")), parameters };
  return { page: "image", parameters };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
