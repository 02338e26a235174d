// What every part of the page shares: elements, requests, numbers in words.

const SVG = "http://www.w3.org/2000/svg";

/** The token of a server that is reached over a network; nothing on loopback. */
export const token = new URLSearchParams(location.search).get("token") ?? "";

/**
 * Make an element. `properties`: `class`, `text`, `style` and `dataset` (objects), `on…` listeners; what is a
 * property of the element is set as one (`value`, `checked`, `hidden`), everything else as an attribute. `false`,
 * `null` and `undefined` leave an attribute out. Children: nodes, strings, lists of them; `null`, `false` are skipped.
 */
export function el(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

/** Make an element of a drawing, the same way. */
export function svg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

function dress(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "class") node.setAttribute("class", value);
    else if (owned(node, name)) node[name] = value;
    else if (name.startsWith("aria-")) node.setAttribute(name, String(value));
    else if (value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Whether a name is a property that can be set. */
function owned(node, name) {
  return name in node && node.namespaceURI !== SVG && !name.includes("-") && !READ_ONLY.has(name);
}

const READ_ONLY = new Set(["list", "form", "width", "height", "role"]);

/** Take everything out of an element and put this in. */
export function fill(node, ...children) {
  node.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

const made = new WeakMap();

/** Fill an element anew only if `key` is another one than last time: what is under a pointer must not be replaced. */
export function remake(node, key, children) {
  if (made.get(node) === key) return false;
  made.set(node, key);
  fill(node, children());
  return true;
}

/**
 * Ask the server. `options`: `query` (object), `body` (an object travels as JSON, a Blob as it is), `method`, `signal`,
 * `as`: "json" (default), "blob" or "response". Throws an Error whose message is a sentence for the reader.
 */
export async function api(path, options = {}) {
  const { query, body, signal, as = "json" } = options;
  const headers = token ? { "X-Vitreous-Token": token } : {};
  const raw = body instanceof Blob;
  if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path + queried(query), {
      method: options.method ?? (body === undefined ? "GET" : "POST"),
      headers,
      body: body === undefined ? undefined : raw ? body : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is “vitreous explore” still running?");
  }
  if (!response.ok) throw new Error(await refusal(response));
  if (as === "response") return response;
  return as === "blob" ? response.blob() : response.json();
}

async function refusal(response) {
  try {
    const said = await response.json();
    if (typeof said.error === "string") return said.error;
  } catch {
    // not one of our own answers: the status has to do
  }
  return `The server answered ${response.status}.`;
}

function queried(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined);
  return given.length ? "?" + new URLSearchParams(given) : "";
}

/** Ask for a stream of JSON, one a line; `each` is called with every one of them as it arrives. */
export async function stream(path, body, each, signal) {
  const response = await api(path, { body, signal, as: "response" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.trim()) each(JSON.parse(line));
  }
  if (rest.trim()) each(JSON.parse(rest));
}

/** Where the picture that a model sees is fetched from. */
export function pictureAddress(picture, model) {
  return `/api/pictures/${encodeURIComponent(picture)}` + queried({ model, token: token || null });
}

/** `{shape, data: base64}` to `{shape, data: Float32Array}`. What is decoded already stays as it is. */
export function decode(array) {
  if (array.data instanceof Float32Array) return array;
  const bytes = Uint8Array.from(atob(array.data), (letter) => letter.charCodeAt(0));
  return { shape: array.shape, data: new Float32Array(bytes.buffer) };
}

/** `{shape, data: Float32Array}` to what travels. */
export function encode(array) {
  const data = array.data instanceof Float32Array ? base64(new Uint8Array(array.data.buffer)) : array.data;
  return { shape: array.shape, data };
}

export function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** A probability in words: 52 %, 3.1 %, 0.02 %, under 0.01 %. */
export function percent(chance) {
  const share = 100 * chance;
  if (!Number.isFinite(share)) return "–";
  if (share >= 10 || share === 0) return `${share.toFixed(0)} %`;
  return share >= 1 ? `${share.toFixed(1)} %` : share >= 0.01 ? `${share.toFixed(2)} %` : "under 0.01 %";
}

/** The number of percent that is printed: what is compared is what a reader sees. */
export function printed(chance) {
  return Number.parseFloat(percent(chance).replace(/^under.*/, "0"));
}

/** The same where there is little room. */
export function brief(chance) {
  return percent(chance).replace("under ", "< ");
}

/** Three significant digits, as in every caption of the library. */
export function number(value) {
  if (!Number.isFinite(value)) return "no number";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 1e-4 || size >= 1e5) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(3)));
}

/** A time for people: 0.4 s, 12 s, 3 min. */
export function seconds(time) {
  if (time < 0.1) return "under 0.1 s";
  if (time < 9.95) return `${time.toFixed(1)} s`;
  return time < 99.5 ? `${Math.round(time)} s` : `${Math.round(time / 60)} min`;
}

/** Say something to those who listen rather than look. */
export function announce(words) {
  const place = document.getElementById("said");
  if (place && place.textContent !== words) place.textContent = words;
}

/** Call at most once a frame, with the latest arguments. */
export function eachFrame(call) {
  let latest = null;
  return (...given) => {
    if (latest === null) requestAnimationFrame(() => {
      const last = latest;
      latest = null;
      call(...last);
    });
    latest = given;
  };
}

/** Wait until nothing new has come for some milliseconds. */
export function settled(call, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), milliseconds);
  };
}
